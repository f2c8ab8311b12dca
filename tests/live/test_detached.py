"""Engines that outlive the process that wanted them, on a real Codex."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.codex.app_servers import listens, open_recorded
from helmsman.agents.codex.connection import open_unix
from helmsman.agents.codex.engine import connect_app_server
from helmsman.base.structs import replace
from helmsman.errors import QuestionNotOpen
from helmsman.model.events import CommandExecution, EngineGone, QuestionClosed
from helmsman.model.options import TurnInput
from helmsman.model.questions import Choice
from helmsman.testing import ScriptedModel, add, always, hang, patch, run, say, spawn_agent
from tests.engines import resume_turn
from tests.live.detached import Place, adopt, begin, commands_of, until, where_it_changed
from tests.live.test_app_server_engine import Follower

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")]


@pytest.mark.matrix
async def test_a_killed_process_leaves_its_turn_and_its_question_to_the_next(
    place: Place, model: ScriptedModel
) -> None:
    model.on("touch", run("echo first"), run("touch made.txt", escalate="please"), say("All done."))
    async with place.used_by_a_process(prompt="touch") as user:
        engine_id = await user.says("engine")
        session_id = await user.says("session")
        await user.says("event", "QuestionAsked")
        await user.kill()
    async with place.open() as engine:
        assert engine.id == engine_id
        assert await engine.running_sessions() == (session_id,)
        follower = await adopt(engine, place, session_id)
        question = await follower.question()
        assert follower.state.status == "awaiting_approval"
        assert follower.opened.turn_id == question.turn_id
        # Codex may say of a command that it has ended after it has asked about the next one.
        await follower.until(lambda: any(command.status == "completed" for command in commands_of(follower)))
        done = commands_of(follower)[0]
        assert ("echo first" in done.command, done.status) == (True, "completed")
        assert done.output in ("first\n", "")  # of a quick command Codex itself misses the output now and then
        await engine.answer(question, (Choice("approve"),))
        assert (await follower.end()).outcome == "completed"
    assert follower.state.result == "All done."
    assert (place.repo / "made.txt").exists()


@where_it_changed
async def test_the_next_process_sees_what_a_patch_would_change(place: Place, model: ScriptedModel) -> None:
    model.on("write", patch(add("new.txt", "hello\n")), say("written"))
    place.options = replace(place.options, writes="nothing")
    async with place.open() as engine:
        asked = await (follower := await begin(engine, place, "write")).question()
    async with place.open() as engine:
        follower = await adopt(engine, place, follower.opened.session_id)
        assert follower.state.questions or follower.opened.is_asking, "who follows it knows at once that it asks"
        again = await follower.question()
        assert again == asked
        assert "+hello" in again.details["diff"]
        await engine.answer(again, (Choice("deny"),))
        await follower.end()


async def test_the_result_of_a_turn_that_ended_meanwhile_is_there(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say("Here ", gate, "it is."))
    async with place.open() as engine:
        session_id = (await begin(engine, place, "slow")).opened.session_id
        with anyio.fail_after(30):
            await gate.reached()
    (record,) = place.records
    gate.release()
    async with open_recorded(record, (), epoch=0) as engine:
        with anyio.fail_after(30):
            while await engine.running_sessions():
                await anyio.sleep(0.02)
        follower = await adopt(engine, place, session_id)
    assert (follower.opened.turn_id, follower.opened.is_asking) == (None, False)
    assert (follower.state.status, follower.state.result) == ("done", "Here it is.")


async def test_leaving_tells_no_session_that_its_work_has_ended(place: Place, model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "touch")
        await follower.question()
    assert engine.lost is not None
    assert follower.state.status == "awaiting_approval"
    assert not any(isinstance(event, EngineGone) for event in follower.events)


async def test_the_death_of_the_engine_is_reported_and_the_next_is_a_new_one(
    place: Place, model: ScriptedModel
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "touch")
        await follower.question()
        (record,) = place.records
        os.kill(record.child.pid, signal.SIGKILL)
        await follower.until(lambda: follower.state.status == "error")
    await until(lambda: not record.is_supervised)
    async with place.open() as second:
        assert second.id != engine.id
        opened = await second.resume(follower.opened.session_id, place.options)
        assert opened.turn_id is None


@where_it_changed
async def test_a_question_that_was_answered_in_a_terminal_is_closed(place: Place, model: ScriptedModel) -> None:
    if not listens(place.binary):
        pytest.skip("No terminal can join this Codex.")
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "touch")
        asked = await follower.question()
        assert engine.listens_at is not None
        async with connect_app_server(
            place.binary,
            lambda _tasks: open_unix(engine.listens_at[0] if engine.listens_at else Path()),
            codex_home=place.codex_home.path,
            engine_id="terminal",
        ) as terminal:
            second = await adopt(terminal, place, follower.opened.session_id)
            assert await second.question() == asked
            await terminal.answer(asked, (Choice("approve"),))
            await follower.end()
            await second.end()
        assert [event.by for event in follower.events if isinstance(event, QuestionClosed)] == ["codex"]
        with pytest.raises(QuestionNotOpen):
            await engine.answer(asked, (Choice("deny"),))
    assert (place.repo / "made.txt").exists()


@where_it_changed
async def test_a_session_left_idle_takes_the_next_message_of_another_process(
    place: Place, model: ScriptedModel
) -> None:
    model.on("one", run("touch one.txt"), say("1"))
    model.on("two", run("touch two.txt"), say("2"))
    async with place.open() as engine:
        follower = await begin(engine, place, "one")
        await follower.end()
    async with place.open() as engine:
        options = replace(place.options, developer_instructions="Be brief.")
        opened = await resume_turn(engine, follower.opened.session_id, options, TurnInput(text="two"))
        assert "did not take developer_instructions" in " ".join(opened.notes)
        follower = Follower(opened)
        engine.attach(opened.session_id, follower)
        assert (await follower.end()).outcome == "completed"
    assert (place.repo / "two.txt").exists()


async def test_a_sub_agents_question_comes_back_with_its_session(place: Place, model: ScriptedModel) -> None:
    model.on("parent", spawn_agent("child work"), always(hang()))
    model.on("child work", run("touch child.txt", escalate="please"), say("child done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "parent")
        asked = await follower.question()
        assert asked.agent_id is not None
    async with place.open() as engine:
        session_id = follower.opened.session_id
        assert await engine.running_sessions() == (session_id,)
        follower = await adopt(engine, place, session_id)
        assert await follower.question() == asked
        await engine.answer(asked, (Choice("approve"),))
        await until((place.repo / "child.txt").exists)
        await engine.interrupt(session_id)


@where_it_changed
async def test_a_running_turn_can_be_stopped_by_the_next_owner(place: Place, model: ScriptedModel) -> None:
    model.on("slow", run("sleep 1000"), say("done"))
    async with place.open() as engine:
        follower = await begin(engine, place, "slow")
        await follower.until(lambda: any(isinstance(item, CommandExecution) for item in follower.state.items))
    async with place.open() as engine:
        follower = await adopt(engine, place, follower.opened.session_id)
        await engine.interrupt(follower.opened.session_id)
        assert (await follower.end()).outcome == "interrupted"
        assert await engine.running_sessions() == ()
