"""The service, as a program that imports Helmsman sees it."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import ClientTool
from helmsman.base.structs import replace
from helmsman.errors import (
    AnswerInvalid,
    CodexNotFound,
    InvalidInput,
    QuestionNotOpen,
    SessionBusy,
    SessionNotFound,
    TooManySessions,
)
from helmsman.model.client_tools import ToolFunction
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    ItemDelta,
    ItemEnded,
    MessageQueued,
    QuestionClosed,
    TurnEnded,
    TurnRequested,
    Usage,
)
from helmsman.model.inputs import turn_input
from helmsman.model.options import SessionOptions
from helmsman.model.questions import Question
from helmsman.service import HelmsmanService
from helmsman.sessions.session import QueuedTurn, Session
from helmsman.settings import Settings
from helmsman.shapes.session_status import session_status
from helmsman.tasks.drafts import draft_task
from helmsman.testing import CodexHome, ScriptedModel, always, fail, hang, run, say
from helmsman.testing.script import Call
from tests.shared_engine import on_its_own_engine, on_shared_engine
from tests.turns import requested

pytestmark = [pytest.mark.anyio, on_shared_engine]

SECONDS = 30


async def finished(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


def offered(run: ToolFunction, name: str = "look_up") -> ClientTool:
    return ClientTool(name=name, description="Looks something up.", input_schema={"type": "object"}, run=run)


async def test_a_function_of_the_program_is_called_for_as_long_as_its_turn_runs(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, cancelled = anyio.Event(), anyio.Event()

    async def for_ever(_arguments: Mapping[str, Any]) -> str:
        reached.set()
        try:
            await anyio.sleep(math.inf)
            return "never"
        finally:
            cancelled.set()

    model.on("look", Call("look_up"), say("never said"))
    session = await helm.start("look", cwd=folder, tools=[offered(for_ever)])
    with anyio.fail_after(SECONDS):
        await reached.wait()
        await session.interrupt()
        await cancelled.wait()
    assert session.status == "interrupted"
    session.withdraw(*session.tools)  # as when the program has left
    monkeypatch.setattr("helmsman.sessions.tool_calls._OFFERED_SECONDS", 0.1)
    model.on("again", Call("look_up"), say("so be it"))
    await finished(await session.say("again"))
    assert "The program that offers look_up is not there" in model.requests[-1].tool_outputs[-1]


@pytest.mark.parametrize("is_raised", [False, True])
async def test_any_output_of_a_function_reaches_the_model(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, is_raised: bool
) -> None:
    async def names_a_file(_arguments: Mapping[str, Any]) -> str:
        name = os.fsdecode(b"caf\xe9.txt")  # as the system gives the name of a file that is not in UTF-8
        if is_raised:
            raise FileNotFoundError(name)
        return name

    model.on("look", Call("look_up"), say("done"))
    session = await finished(await helm.start("look", cwd=folder, tools=[offered(names_a_file)]))
    assert session.result == "done"
    assert r"caf\udce9.txt" in model.requests[-1].tool_outputs[-1]


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ({"name": "no spaces"}, "'no spaces' cannot be the name of a tool"),
        ({"description": " "}, "has no description"),
        ({"input_schema": {"type": "array"}}, "of the type object"),
        ({"name": "other"}, "Two tools have the same name"),
    ],
)
async def test_a_function_that_makes_no_sense_is_refused(
    helm: HelmsmanService, folder: Path, tool: dict[str, Any], sentence: str
) -> None:
    async def nothing(_arguments: Mapping[str, Any]) -> str:
        return ""

    with pytest.raises(InvalidInput, match=sentence) as refused:
        await helm.start("x", cwd=folder, tools=[replace(offered(nothing), **tool), offered(nothing, "other")])
    assert refused.value.details["parameter"] == "tools"


async def test_a_session_gives_its_events_its_result_and_its_usage(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("Fix it", run("true"), say("It is ", gate, "fixed"))
    session = await helm.start("Fix it", cwd=folder, approval_policy="never")
    events = []
    async for event in session.events():
        events.append(event)
        if isinstance(event, ItemDelta):
            gate.release()
    assert isinstance(events[0], TurnRequested)
    assert isinstance(events[-1], TurnEnded)
    assert (
        "".join(event.text for event in events if isinstance(event, ItemDelta) and event.item_type == "agent_message")
        == "It is fixed"
    )
    assert session.status == "done"
    assert session.result == "It is fixed"
    assert session.usage != Usage()
    assert [item.type for item in session.items if item.type != "user_message"] == [
        "command_execution",
        "agent_message",
    ]


async def test_start_returns_while_codex_is_still_working(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("wait", say(gate, "done"))
    session = await helm.start("wait", cwd=folder)
    assert session.status == "active"
    assert await session.wait(timeout=0) is False
    gate.release()
    assert (await finished(session)).result == "done"


async def test_the_next_message_continues_in_the_same_thread(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("one", say("first"))
    model.on("two", say("second"))
    session = await finished(await helm.start("one", cwd=folder))
    await session.say("two")
    assert (await finished(session)).result == "second"
    assert session.turn_count == 2
    assert model.requests[-1].user_texts[-2:] == ("one", "two")


@on_its_own_engine
async def test_a_session_of_another_process_continues_where_it_was(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("one", say("first"))
    model.on("two", say("second"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = (await finished(await helm.start("one", cwd=folder))).id
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.say(session_id, "two")
        assert (await finished(session)).result == "second"
        assert session.directory == str(folder.resolve())


@on_its_own_engine
async def test_a_session_of_another_process_has_the_agent_its_task_has(helm: HelmsmanService, folder: Path) -> None:
    task, draft = draft_task(
        requested("one", SessionOptions(cwd=folder, agent="other")),
        session_id="s-1",
        policy=None,
    )
    await helm.task_writer.registry(lambda registry: registry.add(draft))
    session = await helm.session("s-1")
    assert (session.options.agent, session.task_ids) == ("other", (task,))
    with pytest.raises(InvalidInput, match="belongs to the agent other"):
        await helm.fork("s-1", agent="codex")


async def test_a_busy_session_says_so_or_queues_or_steers(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", [say("hm", gate), run("true")], say("one"))
    model.on("later", say("two"))
    session = await helm.start("work", cwd=folder, approval_policy="never")
    await gate.reached()
    with pytest.raises(SessionBusy, match="interrupt"):
        await session.say("now")
    await session.say("hurry", when_busy="steer")
    await session.say("later", when_busy="queue")
    gate.release()
    with anyio.fail_after(SECONDS):
        while session.result != "two":
            await session.feed.changed()
    assert "hurry" in [text for request in model.requests for text in request.user_texts]
    assert session.turn_count == 2


async def test_an_interrupted_session_is_interrupted_and_can_continue(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    model.on("again", say("fine"))
    session = await helm.start("hang", cwd=folder)
    await session.interrupt()
    assert session.status == "interrupted"
    await session.interrupt()
    await session.say("again")
    assert (await finished(session)).result == "fine"


async def test_a_question_waits_for_respond(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    model.on("touch", run("touch x", escalate="please"), say("done"))
    session = await helm.start("touch", cwd=folder, sandbox="workspace-write", approval_policy="on-request")
    assert await session.wait(timeout=SECONDS)
    assert session.status == "awaiting_approval"
    (question,) = session.questions
    with pytest.raises(AnswerInvalid, match="approve"):
        await session.respond(question.id, "maybe")
    with pytest.raises(QuestionNotOpen, match=question.id):
        await session.respond("q_0", "approve")
    await session.respond(question.id, "approve")
    with pytest.raises(QuestionNotOpen):
        await session.respond(question.id, "approve")
    assert (await finished(session)).result == "done"
    assert (folder / "x").exists()


@on_its_own_engine
async def test_a_handler_answers_and_may_leave_it_to_others(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch x", escalate="please"), say("done"))
    seen: list[str] = []

    async def general(_session: Session, question: Question) -> Sequence[str]:
        seen.append(question.type)
        return ["approve"]

    async def leaves_it(_session: Session, _question: Question) -> None:
        return None

    async with HelmsmanService(settings, env=codex_home.env, on_question=general) as helm:
        start: dict[str, Any] = {"cwd": folder, "sandbox": "workspace-write", "approval_policy": "on-request"}
        assert (await finished(await helm.start("touch", **start))).status == "done"
        session = await helm.start("touch", **start, on_question=leaves_it)
        await session.wait(timeout=SECONDS)
        assert session.status == "awaiting_approval"
    assert seen == ["command_approval"]


@on_its_own_engine
async def test_an_unanswered_question_is_refused_at_the_deadline(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch x", escalate="please"), say("done"))
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        session = await finished(await helm.start("touch", cwd=folder, approval_policy="on-request"))
        closed = [event for event in session.feed.since(0).events if isinstance(event, QuestionClosed)]
    assert [(event.answer, event.by) for event in closed] == [("deny", "deadline")]
    assert not (folder / "x").exists()


@on_its_own_engine
async def test_a_handler_that_fails_refuses(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch x", escalate="please"), say("done"))

    async def broken(_session: Session, _question: Question) -> Sequence[str]:
        raise ZeroDivisionError

    async with HelmsmanService(settings, env=codex_home.env, on_question=broken) as helm:
        await finished(await helm.start("touch", cwd=folder, approval_policy="on-request"))
    assert not (folder / "x").exists()


@on_its_own_engine
async def test_one_turn_too_many_is_refused_with_what_is_running(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    async with HelmsmanService(replace(settings, max_sessions=1), env=codex_home.env) as helm:
        session = await helm.start("hang", cwd=folder)
        with pytest.raises(TooManySessions, match="MAX_SESSIONS is 1") as caught:
            await helm.start("more", cwd=folder)
        assert caught.value.details["running"] == [session.id]


@on_its_own_engine
async def test_a_message_that_waits_for_room_is_sent_when_there_is_some(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("one", say("first"))
    model.on("hang", hang())
    model.on("later", say("second"))
    async with HelmsmanService(replace(settings, max_sessions=1), env=codex_home.env) as helm:
        session = await finished(await helm.start("one", cwd=folder))
        other = await helm.start("hang", cwd=folder)
        await helm.say(session.id, "later", when_busy="queue")
        for _ in range(5):  # room has been looked for, and there was none
            await anyio.lowlevel.checkpoint()
        assert len(session.queue) == 1
        await other.interrupt()
        with anyio.fail_after(SECONDS):
            while session.result != "second":
                await session.feed.changed()


async def test_a_failed_turn_says_why_and_the_next_one_works(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("fail", fail(400, message="no such model"))
    model.on("again", say("ok"))
    session = await finished(await helm.start("fail", cwd=folder))
    assert session.status == "error"
    assert session.error is not None
    assert "no such model" in session.error.message
    await session.say("again")
    assert (await finished(session)).status == "done"


@on_its_own_engine
async def test_sessions_continue_with_a_new_engine_after_the_old_one_was_killed(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("first", say("one"))
    model.on("hang", hang())
    model.on("again", say("back"))
    session = await finished(await helm.start("first", cwd=folder))
    other = await helm.start("hang", cwd=folder)
    engine: Any = await helm.engine()
    engine._peer._transport.child.kill()
    with anyio.fail_after(10):
        await other.wait(until="end")
    assert other.error is not None
    assert other.error.code == "engine_lost"
    await session.say("again")
    assert (await finished(session)).result == "back"
    assert (await helm.engine()) is not engine
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        current: Any = await helm.engine()
        current._peer._transport.child.kill()
        with anyio.fail_after(10):
            await current.until_lost()
        await helm.engine()
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


@on_its_own_engine
async def test_sessions_are_listed_newest_first(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    model.otherwise(say("ok"))
    first = await finished(await helm.start("the first one", cwd=folder))
    second = await finished(await helm.start("the second one", cwd=folder))
    found, cursor = await helm.list()
    assert {info.session_id for info in found} == {first.id, second.id}
    assert cursor is None
    assert [info.first_prompt for info in found if info.session_id == second.id] == ["the second one"]
    found, _ = await helm.list(query="first one")
    assert [info.session_id for info in found] == [first.id]
    with pytest.raises(InvalidInput, match="limit"):
        await helm.list(limit=0)


async def test_an_unknown_session_is_an_error_everywhere(helm: HelmsmanService) -> None:
    for call in (helm.session("nope"), helm.say("nope", "x"), helm.interrupt("nope"), helm.respond("nope", "q", ["a"])):
        with pytest.raises(SessionNotFound, match="There is no session nope"):
            await call


@on_its_own_engine
async def test_without_codex_there_is_a_clear_error(settings: Settings, tmp_path: Path) -> None:
    async with HelmsmanService(replace(settings, codex_path=tmp_path / "none")) as helm:
        with pytest.raises(CodexNotFound):
            await helm.start("x", cwd=tmp_path)


@on_its_own_engine
@pytest.mark.long
async def test_fifty_sessions_run_on_one_engine_and_none_is_lost(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("count", say("done"))
    model.on("count 1", run("echo counted"), say("done"))  # and 10 to 19: a command takes longer than all the rest
    async with HelmsmanService(replace(settings, max_sessions=50), env=codex_home.env) as helm:
        sessions: list[Session] = []

        async def one(number: int) -> None:
            session = await helm.start(f"count {number}", cwd=folder, approval_policy="never")
            sessions.append(session)
            await session.wait(until="end", timeout=110)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(one, number)
    assert len({session.id for session in sessions}) == 50
    assert {session.status for session in sessions} == {"done"}
    assert {session.result for session in sessions} == {"done"}


async def test_events_of_a_finished_session_end(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    model.on("hello", say("hi"))
    session = await finished(await helm.start("hello", cwd=folder))
    events = [event async for event in session.events()]
    assert any(isinstance(event, ItemEnded) and isinstance(event.item, AgentMessage) for event in events)
    assert [event async for event in session.events(since=session.feed.cursor)] == []


@on_its_own_engine
async def test_a_retry_is_noted_while_it_lasts(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    codex_home.configure(model_providers={"scripted": {"stream_max_retries": 100, "request_max_retries": 0}})
    model.on("flaky", always(fail(503)))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("flaky", cwd=folder)
        with anyio.fail_after(SECONDS):
            while session.state.note is None:
                await session.feed.changed()
        assert "Reconnecting" in session.state.note
        await session.interrupt()
        assert session.status == "interrupted"
        note: str | None = session.state.note
        assert note is None


async def test_a_fork_continues_from_the_same_history(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("one", say("first"))
    model.on("other", say("elsewhere"))
    session = await finished(await helm.start("one", cwd=folder))
    fork = await finished(await helm.fork(session.id, "other"))
    assert fork.id != session.id
    assert fork.result == "elsewhere"
    assert model.requests[-1].user_texts[-2:] == ("one", "other")
    assert (await helm.fork(session.id)).status == "done"


async def test_an_image_is_shown_to_the_model(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    picture = folder / "dot.png"
    picture.write_bytes(one_pixel())
    model.on("look", say("a dot"))
    await finished(await helm.start("look", cwd=folder, images=[picture]))
    assert model.requests[-1].images


def one_pixel() -> bytes:
    """A PNG of one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@on_its_own_engine
async def test_a_cancelled_start_leaves_no_turn_running(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    await helm.engine()
    with anyio.move_on_after(0.001):
        await helm.start("hang", cwd=folder)
    with anyio.fail_after(SECONDS):
        while not helm.sessions or next(iter(helm.sessions.values())).state.is_running:
            await anyio.sleep(0.01)
    (session,) = helm.sessions.values()
    assert session.status == "interrupted"


async def test_unsendable_text_is_refused_and_affects_no_other_call(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    model.on("again", say("fine"))
    other = await helm.start("hang", cwd=folder)
    with pytest.raises(InvalidInput, match="cannot be sent"):
        await helm.start("x", cwd=folder, developer_instructions="\ud800")
    assert other.status == "active"
    await other.interrupt()
    await other.say("again")
    assert (await finished(other)).result == "fine"


async def test_a_turn_that_could_not_begin_is_over_and_what_waits_behind_it_runs(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("one", say("first"))
    model.on("later", say("second"))
    session = await finished(await helm.start("one", cwd=folder))
    for _ in range(5):  # what the end of the first turn set off has looked at the queue
        await anyio.lowlevel.checkpoint()

    session.attach_queued("T-local-later", QueuedTurn(session.request(turn_input("later")), helm.run_queued))
    session.apply(MessageQueued(session_id=session.id, task_id="T-local-later", text="later"))
    with pytest.raises(InvalidInput):
        await helm.say(session.id, "x", output_schema={"type": "object", "default": {1, 2}})
    with anyio.fail_after(SECONDS):
        while session.result != "second":
            await session.feed.changed()


@on_its_own_engine
async def test_an_interrupt_while_a_session_is_being_resumed_stops_its_turn(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("one", say("first"))
    model.on("hang", hang())
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = (await finished(await helm.start("one", cwd=folder))).id
    async with HelmsmanService(settings, env=codex_home.env) as helm, anyio.create_task_group() as tasks:
        tasks.start_soon(helm.say, session_id, "hang")
        session = await helm.session(session_id)
        with anyio.fail_after(SECONDS):
            while not session.state.is_running:
                await session.feed.changed()
        await session.interrupt()
        assert session.status == "interrupted"


async def test_another_model_holds_from_the_next_turn_on_and_what_codex_would_ignore_is_refused(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("ok"))
    session = await finished(await helm.start("one", cwd=folder))
    await finished(await helm.say(session.id, "two", model="gpt-5.4"))
    assert model.requests[-1].model == "gpt-5.4"
    with pytest.raises(InvalidInput, match="developer_instructions only when it opens a session"):
        await helm.say(session.id, "three", developer_instructions="be kind")
    with pytest.raises(InvalidInput, match="There is no agent 'other'"):
        await helm.say(session.id, "three", agent="other")
    await finished(await helm.say(session.id, "four", model="gpt-5.4"))


async def test_a_command_that_outlives_its_turn_is_shown_as_running_and_not_as_failed(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    """Codex stops waiting for a command after some seconds, for example in a slow login shell, and the turn may end."""
    waiting = f"until test -e {folder / 'go'}; do sleep 0.05; done"
    model.on("work", run(waiting, yield_ms=300), say("started it"))
    session = await finished(
        await helm.start("work", cwd=folder, sandbox="danger-full-access", approval_policy="never")
    )
    assert session.status == "done"
    (command,) = [item for item in session.items if isinstance(item, CommandExecution)]
    assert (command.status, command.exit_code) == ("in_progress", None)
    assert "a command of it still runs" in (session_status(session).note or "")
    (folder / "go").touch()
    with anyio.fail_after(SECONDS):
        while session.state.left_running_note is not None:
            await session.feed.changed()
    (command,) = [item for item in session.items if isinstance(item, CommandExecution)]
    assert (command.status, command.exit_code) == ("completed", 0)
    assert session.status == "done"


async def test_an_interrupt_ends_a_command_that_outlives_its_turn(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("work", run("sleep 600", yield_ms=300), say("started it"))
    session = await finished(
        await helm.start("work", cwd=folder, sandbox="danger-full-access", approval_policy="never")
    )
    assert session.state.left_running_note is not None
    await session.interrupt()
    with anyio.fail_after(SECONDS):
        while session.state.left_running_note is not None:
            await session.feed.changed()
