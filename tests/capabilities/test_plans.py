"""Plan first, on a real Codex: nothing changes before the plan is approved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import run_step
from helmsman.base.structs import replace
from helmsman.errors import (
    AnswerInvalid,
    QuestionNotOpen,
    SessionBusy,
    StepFailed,
    StepInterrupted,
    TooManySessions,
    Unsupported,
)
from helmsman.model.events import Event, TurnEnded
from helmsman.model.question_text import describe
from helmsman.model.questions import Question
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState
from helmsman.settings import Settings, load_settings
from helmsman.testing import CodexHome, ScriptedModel, add, ask_user, fail, patch, question, run, say
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]

SECONDS = 60
PLAN = "I have looked.\n<proposed_plan>\n# Plan\n1. Make a file.\n</proposed_plan>\n"
MAKE_FILE = run("echo made > made.txt")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, also those of git."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def asked(session: Session) -> Question:
    assert await session.wait(until="attention", timeout=SECONDS)
    assert session.status == "awaiting_approval", (session.status, session.error)
    (only,) = session.questions
    return only


async def ended(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


@pytest.fixture
def writes(git_repo: Path) -> dict[str, Any]:
    return {"cwd": git_repo, "sandbox": "workspace-write", "approval_policy": "never"}


async def test_nothing_changes_before_the_plan_is_approved(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    tries = [
        MAKE_FILE,
        patch(add("patched.txt", "hi\n")),
        run("git commit --allow-empty -m no"),
        run("rm -r README.md"),
    ]
    model.on("Make a file", *tries, say(PLAN))
    model.on("The plan is approved", MAKE_FILE, say("Done"))
    before = contents(git_repo)
    session = await helm.extras.plans.start("Make a file", **writes)
    plan = await asked(session)
    assert contents(git_repo) == before
    assert (plan.type, plan.prompts[0].options) == ("user_input", ("approve", "revise", "stop"))
    assert plan.details["plan"] == "# Plan\n1. Make a file."
    assert (plan.details["verified"], [one["what"] for one in plan.details["evidence"]]) == (
        True,
        ["Nothing in the working tree was changed."],
    )

    await session.respond(plan.id, "approve")
    assert (await ended(session)).result == "Done"
    made = contents(git_repo).keys() - before.keys()
    assert {name for name in made if not name.startswith(".git/")} == {"made.txt"}  # git has a snapshot of it, too


async def test_a_plan_that_names_what_is_not_there_says_so_before_it_is_approved(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    steps = "1. Change `src/nowhere.py:12`.\n2. Create `src/fresh.py`.\n3. Tell of it in `README.md`."
    model.on("Change it", say(f"<proposed_plan>\n{steps}\n</proposed_plan>"))
    model.on("Look again", say(f"<proposed_plan>\n{steps}\n</proposed_plan>"))
    session = await helm.extras.plans.start("Change it", **writes)
    plan = await asked(session)
    assert plan.details["verified"] is False
    assert [(one["ok"], one["what"]) for one in plan.details["evidence"]] == [
        (True, "Nothing in the working tree was changed."),
        (False, "There is no file src/nowhere.py, and the plan does not say that it is new."),
        (True, "1 of the 3 files that the plan names are there."),
    ]
    assert "✗ There is no file src/nowhere.py" in describe(plan).text()
    (git_repo / "other.txt").write_text("made meanwhile\n", encoding="utf-8")
    await session.respond(plan.id, "revise: Look again")
    again = await asked(session)
    assert [one["ok"] for one in again.details["evidence"]] == [False, False, True]
    await session.respond(again.id, "stop")
    await ended(session)


async def test_full_access_too_is_given_only_to_an_approved_plan(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    write = run(f"echo made > {outside}")
    model.on("Write outside", write, say(PLAN))
    model.on("The plan is approved", write, say("Done"))
    session = await helm.extras.plans.start(
        "Write outside", cwd=git_repo, dangerously_bypass_approvals_and_sandbox=True
    )
    plan = await asked(session)
    assert not outside.exists()
    await session.respond(plan.id, "approve")
    await ended(session)
    assert outside.exists()


async def test_a_waiting_client_sees_no_idle_session_between_plan_and_work(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    gate = model.gate()
    model.on("Make a file", say(PLAN))
    model.on("The plan is approved", say(gate, "Done"))
    session = await helm.extras.plans.start("Make a file", **writes)
    plan = await asked(session)
    seen: list[str | None] = []

    async def wait_for_the_end() -> None:
        assert await session.wait(until="end", timeout=SECONDS)
        seen.append(session.result)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_the_end)
        await session.respond(plan.id, "approve")
        assert session.state.is_running
        gate.release()
    assert seen == ["Done"]


async def test_a_client_that_gets_events_one_by_one_sees_no_end_before_that_of_the_work(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("Look again", say(PLAN))
    model.on("The plan is approved", say("Done"))
    session = await helm.extras.plans.start("Make a file", **writes)
    copy = SessionState(session.id)
    copy.restore(session.state.snapshot())
    seen: list[tuple[str, str | None]] = []

    def take(_session: Session, event: Event) -> None:
        copy.apply(event)
        if isinstance(event, TurnEnded):
            seen.append((copy.status, copy.result))
        assert copy.is_running or (copy.status, copy.result) == ("done", "Done"), event

    stop = helm.listen(take)
    try:
        plan = await asked(session)
        await session.respond(plan.id, "revise: Look again")
        while session.questions in ([plan], []):
            with anyio.fail_after(SECONDS):
                await session.feed.changed()
        await session.respond((await asked(session)).id, "approve")
        await ended(session)
    finally:
        stop()
    assert [status for status, _ in seen] == ["active", "active", "done"]
    tasks = [await helm.tasks.get(task_id) for task_id in session.task_ids]
    assert [task.status for task in tasks] == ["completed", "completed", "completed"]


async def test_a_session_that_cannot_continue_from_its_plan_fails_with_the_reason(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("Make a file", say(PLAN))
    session = await helm.extras.plans.start("Make a file", **writes)
    plan = await asked(session)

    def full(*_: object) -> None:
        raise TooManySessions("There is no room. Wait for one to end.", running=[])

    monkeypatch.setattr(helm, "_check_room", full)
    await session.respond(plan.id, "approve")
    await ended(session)
    assert (session.status, session.error and session.error.code) == ("error", "too_many_sessions")


async def test_revising_plans_again_in_the_same_thread(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("call it other.txt", MAKE_FILE, say(PLAN.replace("a file", "other.txt")))
    model.on("The plan is approved", run("echo x > other.txt"), say("Done"))
    session = await helm.extras.plans.start("Make a file", **writes)
    first = await asked(session)
    await session.respond(first.id, "revise: call it other.txt")
    while session.questions == [first] or not session.questions:
        with anyio.fail_after(SECONDS):
            await session.feed.changed()
    second = await asked(session)
    assert second.details["plan"] == "# Plan\n1. Make other.txt."
    assert not (git_repo / "made.txt").exists()
    assert model.requests[-1].user_texts[0] == "Make a file"
    await session.respond(second.id, "approve: and be quick")
    assert (await ended(session)).result == "Done"
    assert "and be quick" in model.requests[-1].last_user_text
    assert (git_repo / "other.txt").exists()
    assert len(session.task_ids) == 3


async def test_stop_ends_it(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    before = contents(git_repo)
    session = await helm.extras.plans.start("Make a file", **writes)
    plan = await asked(session)
    await session.respond(plan.id, "stop")
    assert (session.status, session.questions) == ("interrupted", [])
    task = await helm.tasks.get(session.task_ids[0])
    assert task.status == "canceled"
    assert task.note is not None
    assert "not approved" in task.note
    assert contents(git_repo) == before
    with pytest.raises(QuestionNotOpen):
        await session.respond(plan.id, "approve")


async def test_a_plan_that_is_cancelled_for_a_reason_says_the_reason(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    session = await helm.extras.plans.start("Make a file", **writes)
    await asked(session)
    task, _ = await helm.tasks.cancel(await helm.tasks.get(session.task_ids[0]), reason="not today")
    assert (task.status, task.note) == ("canceled", "It was cancelled: not today")


async def test_after_a_stop_the_session_works_on_in_the_ordinary_way(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("just do it", MAKE_FILE, say("Done"))
    session = await helm.extras.plans.start("Make a file", **writes)
    await session.respond((await asked(session)).id, "stop")
    await session.say("just do it")
    assert (await ended(session)).result == "Done"
    assert (git_repo / "made.txt").exists()


@on_its_own_engine
async def test_a_plan_without_an_answer_is_stopped(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        session = await helm.extras.plans.start("Make a file", **writes)
        assert (await ended(session)).status == "interrupted"
    assert not (git_repo / "made.txt").exists()


async def test_an_interrupt_is_a_stop(helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]) -> None:
    model.on("Make a file", say(PLAN))
    session = await helm.extras.plans.start("Make a file", **writes)
    await asked(session)
    await session.interrupt()
    assert (session.status, session.questions) == ("interrupted", [])


async def test_revise_needs_words(helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]) -> None:
    model.on("Make a file", say(PLAN))
    session = await helm.extras.plans.start("Make a file", **writes)
    plan = await asked(session)
    for answer in ("revise", "revise:", "maybe"):
        with pytest.raises(AnswerInvalid):
            await session.respond(plan.id, answer)
    assert session.questions == [plan]
    await session.respond(plan.id, "stop")


async def test_a_handler_answers_the_plan_like_any_question(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("The plan is approved", MAKE_FILE, say("Done"))
    shown: list[str] = []

    async def approve(_session: Session, asked: Question) -> Sequence[str]:
        shown.append(asked.details["plan"])
        return ["approve"]

    session = await helm.extras.plans.start("Make a file", on_question=approve, **writes)
    assert (await ended(session)).result == "Done"
    assert shown == ["# Plan\n1. Make a file."]
    assert (git_repo / "made.txt").exists()


async def test_the_approved_work_has_to_fit_the_output_schema(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    model.on("Make a file", say(PLAN))
    model.on("The plan is approved", say('{"ok": true}'))
    session = await helm.extras.plans.start("Make a file", output_schema=schema, **writes)
    await session.respond((await asked(session)).id, "approve")
    assert (await ended(session)).output == {"ok": True}
    assert [request.output_schema for request in model.requests] == [None, schema]


async def test_questions_during_planning_are_asked(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("Make a file", ask_user(question("Which name?", "a.txt", "b.txt")), say(PLAN))
    session = await helm.extras.plans.start("Make a file", **writes)
    first = await asked(session)
    assert "Which name?" in first.prompts[0].text
    await session.respond(first.id, "b.txt")
    with anyio.fail_after(SECONDS):
        while not session.questions:
            await session.feed.changed()
    assert (await asked(session)).prompts[0].text == "Carry out this plan?"
    await session.interrupt()


async def test_a_message_instead_of_a_plan_can_be_answered(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say("Which file do you mean?"))
    session = await helm.extras.plans.start("Make a file", **writes)
    only = await asked(session)
    assert "no plan yet" in only.prompts[0].text
    assert only.details["plan"] == "Which file do you mean?"
    await session.interrupt()


async def test_a_plan_that_fails_is_an_error_and_no_question(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("Make a file", fail(400))
    session = await helm.extras.plans.start("Make a file", **writes)
    assert (await ended(session)).status == "error"
    assert session.questions == []


async def test_a_queued_message_waits_for_the_answer(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("next", say("Next done"))
    session = await helm.extras.plans.start("Make a file", **writes)
    plan = await asked(session)
    with pytest.raises(SessionBusy):
        await session.say("next")
    await session.say("next", when_busy="queue")
    ends: list[TurnEnded] = []
    helm.listen(lambda _session, event: ends.append(event) if isinstance(event, TurnEnded) else None)
    await session.respond(plan.id, "stop")
    with anyio.fail_after(SECONDS):
        while len(ends) < 2:
            await session.feed.changed()
    assert session.result == "Next done"


@on_its_own_engine
async def test_an_engine_that_dies_meanwhile_does_not_take_the_plan_with_it(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("The plan is approved", MAKE_FILE, say("Done"))
    session = await helm.extras.plans.start("Make a file", **writes)
    plan = await asked(session)
    engine: Any = await helm.engine()
    engine._peer._transport.child.kill()
    with anyio.fail_after(SECONDS):
        await engine.until_lost()
    assert session.questions == [plan]
    await session.respond(plan.id, "approve")
    assert (await ended(session)).result == "Done"
    assert (git_repo / "made.txt").exists()


@pytest.mark.needs_git
async def test_a_plan_in_a_worktree_is_carried_out_there(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("The plan is approved", MAKE_FILE, say("Done"))
    session = await helm.extras.plans.start("Make a file", worktree=True, **writes)
    await session.respond((await asked(session)).id, "approve")
    await ended(session)
    assert session.worktree is not None
    assert (session.worktree.path / "made.txt").exists()
    assert not (git_repo / "made.txt").exists()


async def test_a_step_that_plans_first_asks_its_handler(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    model.on("The plan is approved", MAKE_FILE, say("Done"))

    async def approve(_session: Session, asked: Question) -> Sequence[str]:
        return ["approve"]

    result = await run_step("Make a file", plan=True, helm=helm, on_question=approve, **writes)
    assert result.text == "Done"
    assert (git_repo / "made.txt").exists()


async def test_a_step_whose_plan_cannot_be_approved_does_nothing(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", say(PLAN))
    with pytest.raises(StepInterrupted):
        await run_step("Make a file", plan=True, helm=helm, **writes)
    assert not (git_repo / "made.txt").exists()


async def test_a_step_whose_plan_failed_is_not_continued_without_one(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, writes: dict[str, Any]
) -> None:
    model.on("Make a file", fail(500))
    with pytest.raises(StepFailed):
        await run_step("Make a file", plan=True, attempts=3, helm=helm, **writes)
    assert len(model.requests) == 1


@on_its_own_engine
async def test_the_exec_engine_refuses_and_names_the_one_that_can(
    codex_binary: Path, codex_home: CodexHome, git_repo: Path, tmp_path: Path
) -> None:
    settings = load_settings({"codex_path": str(codex_binary), "engine": "exec"}, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        with pytest.raises(Unsupported, match="app-server"):
            await helm.extras.plans.start("Make a file", cwd=git_repo)
