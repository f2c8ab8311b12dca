"""One whole step with its safety net, on a real Codex."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

import helmsman
from helmsman import Helmsman, load_settings, run_step
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, StepFailed, StepInterrupted, StepOutputInvalid, StepTimedOut
from helmsman.model.events import Event, ItemDelta
from helmsman.model.prompts import CONTINUE
from helmsman.model.questions import Question
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, always, fail, hang, run, say

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture
def step(settings: Settings, codex_home: CodexHome, folder: Path) -> dict[str, Any]:
    """The arguments every step of these tests has."""
    return {"settings": settings, "env": codex_home.env, "cwd": folder}


async def test_a_step_gives_the_final_message(step: dict[str, Any], model: ScriptedModel) -> None:
    model.on("add", say("42"))
    result = await run_step("add", **step)
    assert (str(result), result.attempts, result.output) == ("42", 1, None)
    assert result.usage.input_tokens > 0
    assert result.session_id


async def test_the_output_is_parsed_and_checked_against_the_schema(step: dict[str, Any], model: ScriptedModel) -> None:
    model.on("good", say('{"answer": 42}'))
    model.on("prose", say("the answer is 42"))
    model.on("wrong", say('{"answer": "42"}'))
    assert (await run_step("good", output_schema=SCHEMA, **step)).output == {"answer": 42}
    assert model.requests[-1].output_schema == SCHEMA
    with pytest.raises(StepOutputInvalid, match="is not JSON"):
        await run_step("prose", output_schema=SCHEMA, **step)
    with pytest.raises(StepOutputInvalid, match="does not fit the output schema"):
        await run_step("wrong", output_schema=SCHEMA, **step)
    model.on("nowhere", say('{"answer": "42"}'))
    for place in ("#/$defs/none", "https://nowhere.test/schema"):
        elsewhere = {"type": "object", "properties": {"answer": {"$ref": place}}}
        with pytest.raises(StepOutputInvalid, match="refers to " + re.escape(place.removeprefix("#"))):
            await run_step("nowhere", output_schema=elsewhere, **step)


async def test_an_agent_that_says_it_failed_has_failed(step: dict[str, Any], model: ScriptedModel) -> None:
    model.on("try", say("FAILED: no such file"))
    with pytest.raises(StepFailed, match="FAILED: no such file") as caught:
        await run_step("try", **step)
    assert caught.value.details["attempts"] == 1


async def test_a_failure_that_may_pass_is_continued_in_the_same_thread(
    step: dict[str, Any], model: ScriptedModel
) -> None:
    model.on("flaky", fail(503))
    model.on(CONTINUE, say("done"))
    result = await run_step("flaky", **step)
    assert (result.text, result.attempts) == ("done", 2)
    assert model.requests[-1].user_texts[-2:] == ("flaky", CONTINUE)


async def test_a_failure_that_will_not_pass_is_not_tried_again(step: dict[str, Any], model: ScriptedModel) -> None:
    model.on("bad", fail(400, message="no such model"))
    with pytest.raises(StepFailed, match="no such model") as caught:
        await run_step("bad", **step)
    assert caught.value.details["attempts"] == 1


async def test_a_model_that_stays_silent_is_interrupted_and_told_to_continue(
    step: dict[str, Any], model: ScriptedModel
) -> None:
    model.on("silent", hang())
    model.on(CONTINUE, say("here I am"))
    result = await run_step("silent", first_event_timeout=2, **step)
    assert (result.text, result.attempts) == ("here I am", 2)


async def test_a_model_that_falls_silent_later_is_too(step: dict[str, Any], model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("stall", say("I am about to", gate))
    model.on(CONTINUE, say("done"))
    result = await run_step("stall", inactivity_timeout=2, **step)
    assert (result.text, result.attempts) == ("done", 2)


async def test_the_limits_of_the_settings_hold_where_the_caller_names_none(
    step: dict[str, Any], model: ScriptedModel, codex_home: CodexHome, tmp_path: Path
) -> None:
    env = codex_home.env | {"HELMSMAN_FIRST_EVENT_TIMEOUT_MS": "2000", "CODEX_OUTPUT_TIMEOUT_MS": "400"}
    binary = {"codex_path": str(step["settings"].codex_path), "detach": False}
    step["settings"] = load_settings(binary, env, tmp_path)
    gate = model.gate()
    model.on("silent", hang())
    model.on(CONTINUE, say("I am about to", gate))
    with pytest.raises(StepTimedOut, match=r"nothing more from the model within 0\.4 s.* \(attempt 2 of 2\)"):
        await run_step("silent", attempts=2, **step)


async def test_a_turn_without_a_final_message_has_failed(step: dict[str, Any], model: ScriptedModel) -> None:
    model.on("say nothing", run("true"), say(""))
    with pytest.raises(StepFailed, match="without a final message"):
        await run_step("say nothing", sandbox="read-only", approval_policy="never", **step)


async def test_silence_on_every_attempt_is_a_timeout(step: dict[str, Any], model: ScriptedModel) -> None:
    model.otherwise(always(hang()))
    with pytest.raises(StepTimedOut, match=r"no sign of life .* within 0\.3 s") as caught:
        await run_step("silent", first_event_timeout=0.3, attempts=2, **step)
    assert caught.value.details["attempts"] == 2
    assert caught.value.details["session_id"]


async def test_codexs_own_retries_are_no_sign_of_life(
    step: dict[str, Any], model: ScriptedModel, codex_home: CodexHome
) -> None:
    codex_home.configure(model_providers={"scripted": {"stream_max_retries": 100}})
    model.otherwise(always(fail(503)))
    with pytest.raises(StepTimedOut):
        await run_step("flaky", first_event_timeout=1, attempts=1, **step)


async def test_a_question_stops_the_clock(step: dict[str, Any], model: ScriptedModel, folder: Path) -> None:
    model.on("touch", run("touch x", escalate="please"), say("done"))
    asked = anyio.Event()

    async def slowly(_session: Session, question: Question) -> Sequence[str]:
        asked.set()
        await anyio.sleep(4.5)
        return ["approve"]

    result = await run_step(
        "touch",
        on_question=slowly,
        inactivity_timeout=4,
        sandbox="workspace-write",
        approval_policy="on-request",
        **step,
    )
    assert asked.is_set()
    assert result.attempts == 1
    assert (folder / "x").exists()


async def test_without_a_handler_questions_are_refused_at_once(
    step: dict[str, Any], model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch x", escalate="please"), say("could not"))
    with anyio.fail_after(30):
        result = await run_step("touch", approval_policy="on-request", **step)
    assert result.text == "could not"
    assert not (folder / "x").exists()


async def test_a_step_stopped_from_outside_is_interrupted(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    async with Helmsman(settings, env=codex_home.env) as helm, anyio.create_task_group() as tasks:

        async def stop(prompt: str) -> None:
            await model.wait_for_request(lambda request: prompt in request.user_texts)
            await next(session for session in helm.sessions.values() if session.state.is_running).interrupt()

        tasks.start_soon(stop, "hang")
        with pytest.raises(StepInterrupted):
            await run_step("hang", helm=helm, cwd=folder)
        model.on("hang again", hang())
        model.on(CONTINUE, say("done"))
        tasks.start_soon(stop, "hang again")
        result = await run_step("hang again", helm=helm, cwd=folder, retry_interrupted=True)
        assert (result.text, result.attempts) == ("done", 2)


async def test_a_cancelled_step_leaves_no_turn_running(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    async with Helmsman(settings, env=codex_home.env) as helm:
        async with anyio.create_task_group() as tasks:

            async def step() -> None:
                await run_step("hang", helm=helm, cwd=folder)

            tasks.start_soon(step)
            await model.wait_for_request()
            tasks.cancel_scope.cancel()
        (session,) = helm.sessions.values()
        assert session.status == "interrupted"


async def test_a_step_survives_the_death_of_the_engine(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("I begin", gate))
    model.on(CONTINUE, say("and end"))
    async with HelmsmanService(settings, env=codex_home.env) as helm, anyio.create_task_group() as tasks:

        async def kill() -> None:
            await gate.reached()
            engine: Any = await helm.engine()
            engine._peer._transport.child.kill()

        tasks.start_soon(kill)
        result = await run_step("work", helm=helm, cwd=folder)
    assert (result.text, result.attempts) == ("and end", 2)


async def test_a_step_may_continue_in_an_earlier_session(step: dict[str, Any], model: ScriptedModel) -> None:
    model.on("one", say("first"))
    model.on("two", say("second"))
    first = await run_step("one", **step)
    second = await run_step("two", session_id=first.session_id, **step)
    assert second.session_id == first.session_id
    assert model.requests[-1].user_texts[-2:] == ("one", "two")
    model.on("silent", run("true"), say(""))
    with pytest.raises(StepFailed, match="without a final message"):
        await run_step("silent", session_id=first.session_id, **step)


async def test_every_event_is_reported(step: dict[str, Any], model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("hello", say("Hel", gate, "lo"))
    heard: list[str] = []

    def listen(_session: Session, event: Event) -> None:
        if isinstance(event, ItemDelta):
            heard.append(event.text)
            gate.release()

    await run_step("hello", on_event=listen, **step)
    assert "".join(heard) == "Hello"


async def test_bad_input_is_refused_before_anything_starts(step: dict[str, Any], model: ScriptedModel) -> None:
    with pytest.raises(InvalidInput):
        await run_step(" ", **step)
    with pytest.raises(InvalidInput):
        await run_step("x", **{**step, "cwd": "/no/such/place"})
    assert model.requests == []


async def test_a_step_runs_on_the_exec_engine_too(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("flaky", fail(503))
    model.on(CONTINUE, say('{"answer": 1}'))
    result = await run_step(
        "flaky", output_schema=SCHEMA, settings=replace(settings, engine="exec"), env=codex_home.env, cwd=git_repo
    )
    assert (result.output, result.attempts) == ({"answer": 1}, 2)


async def test_the_synchronous_wrapper_runs_a_step(step: dict[str, Any], model: ScriptedModel) -> None:
    model.on("add", say("42"))
    result = await anyio.to_thread.run_sync(lambda: helmsman.run_step_sync("add", **step))
    assert result.text == "42"
