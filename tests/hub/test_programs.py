"""A program's `Helmsman` asks the user's hub: what it starts is there for everybody, and outlives program and hub."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman import ClientTool, Helmsman, Question, Session, Settings, run_step
from helmsman.base.structs import replace
from helmsman.errors import (
    EngineProtocolError,
    HelmsmanError,
    InvalidInput,
    OutcomeUnknown,
    QuestionNotOpen,
    SessionNotFound,
    StepFailed,
)
from helmsman.hub.client import HubClient
from helmsman.hub.control import ask_hub
from helmsman.hub.wire import pack_value
from helmsman.model.events import AgentMessage, CommandExecution, Event, ItemEnded, QuestionClosed, TurnEnded
from helmsman.sessions.state import SessionState
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import CodexHome, Gate, ScriptedModel, add, call, patch, run, say
from helmsman.testing.hubs import hub_pid
from tests.clients.server_process import SECONDS
from tests.hub_service import hub_of
from tests.turns import asked

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here.")]


@pytest.fixture
def in_hub(settings: Settings, detached_engines: Path) -> Settings:
    return replace(settings, detach=True, state_dir=detached_engines)


@pytest.fixture
async def helm(in_hub: Settings, codex_home: CodexHome) -> AsyncIterator[Helmsman]:
    async with Helmsman(in_hub, env=codex_home.env) as helm:
        yield helm


async def ended(session: Session) -> None:
    with anyio.fail_after(SECONDS):
        assert await session.wait(until="end")


@contextmanager
def stopped_reading(client: HubClient) -> Iterator[None]:
    """The program is busy with something else, and reads nothing that the hub says."""
    assert client._answering._events is not None
    stream = client._answering._events._connection._stream
    receive, may_read = stream.receive, anyio.Event()

    async def wait_and_receive() -> bytes:
        await may_read.wait()
        return await receive()

    stream.receive = wait_and_receive  # type: ignore[method-assign]
    try:
        yield
    finally:
        may_read.set()


async def kill_hub(state_dir: Path) -> None:
    pid = hub_pid(state_dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def test_a_session_runs_in_the_hub_and_is_followed_here(
    helm: Helmsman, in_hub: Settings, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("echo one"), say("It is done."))
    session = await helm.start("work", cwd=git_repo)
    with anyio.fail_after(SECONDS):
        events = [event async for event in session.events()]
    assert (session.status, session.result) == ("done", "It is done.")
    assert session.usage.input_tokens > 0
    assert isinstance(events[-1], TurnEnded)
    assert "It is done." in [
        event.item.text for event in events if isinstance(event, ItemEnded) and isinstance(event.item, AgentMessage)
    ]
    assert session is await helm.session(session.id)
    status = ask_hub(in_hub.state_dir, "status")
    assert status is not None
    assert [client["kind"] for client in status["clients"]] == ["program"]
    assert session.task_id is not None
    assert (await helm.tasks.get(session.task_id)).status == "completed"


_LISTS_SESSIONS = """
import sys, anyio, helmsman

async def main():
    async with helmsman.Helmsman() as helm:
        assert helm.asks_hub
        await helm.list()
    protocol = {"helmsman.agents", "helmsman.agents.protocol"}  # what a listed session is
    print(*sorted({name.split(".")[1] for name in sys.modules.keys() - protocol if name.startswith("helmsman.")}))

anyio.run(main)
"""


async def test_a_program_that_asks_the_hub_loads_no_service_no_store_and_no_agents(
    in_hub: Settings, codex_home: CodexHome
) -> None:
    env = codex_home.env | {"HELMSMAN_STATE_DIR": str(in_hub.state_dir), "HELMSMAN_DETACH": "1"}
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process([sys.executable, "-c", _LISTS_SESSIONS], env=env)
    loaded = set(done.stdout.decode().split())
    assert {"client", "hub", "sessions"} <= loaded
    assert loaded.isdisjoint({"service", "capabilities", "steering", "store", "agents", "worktrees", "notices"})


async def test_a_session_of_one_program_is_found_by_another_with_its_history(
    in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say("first ", gate, "and last"))
    model.on("not yet", say("queued"))
    model.on("more", say("next"))
    async with Helmsman(in_hub, env=codex_home.env) as first:
        session = await first.start("work", cwd=git_repo)
        async with Helmsman(in_hub, env=codex_home.env) as second:
            seen = await second.session(session.id)
            assert (seen.status, seen.state.prompt) == ("active", "work")
            assert await seen.say("not yet", when_busy="queue") is seen
            assert [(queued.text, seen.is_away(queued)) for queued in seen.queue] == [("not yet", False)]
    assert not await session.wait(timeout=SECONDS)  # whoever has left is told nothing
    gate.release()
    async with Helmsman(in_hub, env=codex_home.env) as third:
        found = await third.session(session.id)
        with anyio.fail_after(SECONDS):
            while found.result != "queued":
                await found.feed.changed()
        await ended(found)
        assert found.queue == ()
        assert await found.say("more") is found
        await ended(found)
        assert (found.result, found.turn_count) == ("next", 3)
        assert [info.session_id for info in (await third.list())[0]] == [session.id]


async def test_a_handler_answers_in_the_program_and_a_session_may_have_its_own(
    in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("touch made.txt"), say("done"))
    model.on("other", run("touch other.txt"), say("done"))
    heard: list[tuple[str, str]] = []

    def answers(name: str, answer: str) -> Any:
        async def handler(session: Session, question: Question, /) -> list[str]:
            heard.append((name, session.id))
            return [answer]

        return handler

    async with Helmsman(in_hub, env=codex_home.env, on_question=answers("all", "approve")) as helm:
        session = await helm.start("work", cwd=git_repo, approval_policy="untrusted", sandbox="workspace-write")
        await ended(session)
        other = await helm.start(
            "other",
            cwd=git_repo,
            approval_policy="untrusted",
            sandbox="workspace-write",
            on_question=answers("own", "deny"),
        )
        await ended(other)
    assert heard == [("all", session.id), ("own", other.id)]
    assert (git_repo / "made.txt").exists()
    assert not (git_repo / "other.txt").exists()


async def test_a_handler_is_cancelled_when_another_program_answers(
    helm: Helmsman, in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("touch made.txt"), say("done"))
    asking, cancelled = anyio.Event(), anyio.Event()

    async def never(_session: Session, _question: Question, /) -> None:
        try:
            asking.set()
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    session = await helm.start(
        "work", cwd=git_repo, approval_policy="untrusted", sandbox="workspace-write", on_question=never
    )
    with anyio.fail_after(SECONDS):
        await asking.wait()
        async with Helmsman(in_hub, env=codex_home.env) as second:
            (question,) = (await second.session(session.id)).questions
            await second.respond(session.id, question.id, ["approve"])
            with pytest.raises(QuestionNotOpen):
                await second.respond(session.id, question.id, ["deny"])
        await cancelled.wait()
        closings = [event async for event in session.events() if isinstance(event, QuestionClosed)]
    assert [closing.answer for closing in closings] == ["approve"]
    assert session.status == "done"


async def test_a_handler_that_fails_has_its_question_refused(
    helm: Helmsman, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("touch made.txt"), say("it was refused"))

    async def fails(_session: Session, _question: Question, /) -> None:
        raise RuntimeError("no")

    session = await helm.start(
        "work", cwd=git_repo, approval_policy="untrusted", sandbox="workspace-write", on_question=fails
    )
    await ended(session)
    assert not (git_repo / "made.txt").exists()
    assert [decision.answer for decision in session.state.decisions(session.state.turn_id)] == ["deny"]


async def test_errors_and_mistakes_are_those_of_the_library(helm: Helmsman, git_repo: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere") as refused:
        await helm.start("work", cwd=tmp_path / "nowhere")
    assert refused.value.details["parameter"] == "cwd"
    with pytest.raises(TypeError, match="sandbox"):
        await helm.start("work", cwd=git_repo, sandbx="read-only")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        await hub_of(helm).call("session", ("a", "b"), {})
    with pytest.raises(SessionNotFound):
        await helm.session("0199a213-81c0-7800-8aa1-bbab2a035a53")


async def test_capabilities_of_a_program_ask_the_hub_too(helm: Helmsman, model: ScriptedModel, git_repo: Path) -> None:
    model.on("work", patch(add("made.txt", "made\n")), say("done"))
    tasks: list[str] = []
    session = await helm.start("work", cwd=git_repo, full_auto=True, worktree=True, on_task=tasks.append)
    await ended(session)
    assert tasks == [session.task_id]
    assert session.worktree is not None
    diff = await helm.extras.changes.diff(session.id)
    assert b"made.txt" in diff.diff.patch
    applied = await helm.extras.changes.apply(session.id)
    assert applied.session_id == session.id
    assert (git_repo / "made.txt").read_text() == "made\n"
    report = await helm.extras.usage.report()
    assert report.groups


async def test_a_relative_directory_is_the_programs_own(
    in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("work", say("done"))
    monkeypatch.chdir(git_repo)
    async with Helmsman(in_hub, env=codex_home.env) as helm:
        session = await helm.start("work")
        await ended(session)
    assert session.directory == str(git_repo)


async def test_a_program_that_goes_elsewhere_means_its_paths_from_there(
    in_hub: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.on("work", say("done"))
    monkeypatch.chdir(tmp_path)
    async with Helmsman(in_hub, env=codex_home.env) as helm:
        monkeypatch.chdir(git_repo)
        session = await helm.start("work", cwd=".")
        await ended(session)
    assert session.directory == str(git_repo)


@pytest.mark.parametrize("worktree", [False, True])
async def test_a_program_with_allowed_roots_sees_answers_and_stops_nothing_outside_them(
    in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path, worktree: bool
) -> None:
    model.on("work", run("touch made.txt"), say("done"))
    inside = tmp_path / "inside"
    inside.mkdir()
    heard: list[Any] = []
    async with (
        Helmsman(in_hub, env=codex_home.env) as wide,
        Helmsman(replace(in_hub, allowed_roots=(inside.resolve(),)), env=codex_home.env) as narrow,
    ):
        narrow.listen(lambda _session, event: heard.append(event))
        session = await wide.start(
            "work", cwd=git_repo, approval_policy="untrusted", sandbox="workspace-write", worktree=worktree
        )
        question = await asked(session)
        assert session.task_id is not None
        task = await wide.tasks.get(session.task_id)
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "look": lambda: narrow.session(session.id),
            "read": lambda: narrow.history(session.id),
            "answer": lambda: narrow.respond(session.id, question.id, ["approve"]),
            "interrupt": lambda: narrow.interrupt(session.id),
            "fork": lambda: narrow.fork(session.id, "work"),
            "task": lambda: narrow.tasks.get(task.id),
            "task as it is": lambda: narrow.tasks.local.now(task),
            "wait": lambda: narrow.tasks.wait(task),
            "results": lambda: narrow.tasks.results(task),
            "cancel": lambda: narrow.tasks.cancel(task),
        }
        for what, attempt in attempts.items():
            with pytest.raises(InvalidInput, match="outside the allowed roots"):
                await attempt()
                pytest.fail(what)
        assert await narrow.tasks.list() == ([], None)
        assert await narrow.list() == ([], None)
        assert (session.status, heard) == ("awaiting_approval", [])
        await session.respond(question.id, "deny")
        await ended(session)


async def test_an_interrupt_takes_effect_though_the_program_leaves_at_once(
    helm: Helmsman, in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say(gate, "done"))
    session = await helm.start("work", cwd=git_repo)
    another = await hub_of(helm)._connected()
    assert another is not None
    with closing(another):
        await another.tell("PUT", "calls/1", {"verb": "interrupt", "arguments": [session.id], "named": {}})
        await another.tell("DELETE", "calls/1")
    await ended(session)
    assert session.status == "interrupted"
    gate.release()


async def test_a_call_without_a_waiting_caller_is_withdrawn(
    helm: Helmsman, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say(gate, "done"))
    session = await helm.start("work", cwd=git_repo)
    assert session.task_id is not None
    task = await helm.tasks.get(session.task_id)
    with anyio.move_on_after(0.2) as scope:
        await helm.tasks.wait(task)
    assert scope.cancelled_caught
    await helm.interrupt(session.id)
    await ended(session)
    assert session.status == "interrupted"


async def test_a_step_is_run_through_the_hub(helm: Helmsman, model: ScriptedModel, git_repo: Path) -> None:
    model.on("answer", say('{"port": 8080}'))
    model.on("fail", say("FAILED: no way"))
    schema = {"type": "object", "properties": {"port": {"type": "integer"}}}
    with anyio.fail_after(SECONDS):
        result = await run_step("answer", cwd=git_repo, output_schema=schema, helm=helm)
        assert (result.output, result.attempts) == ({"port": 8080}, 1)
        with pytest.raises(StepFailed, match="no way"):
            await run_step("fail", cwd=git_repo, helm=helm)


# --- a hub that is killed ---------------------------------------------------------------------------------------------


async def test_a_turn_is_followed_to_its_end_though_the_hub_is_killed(
    helm: Helmsman, in_hub: Settings, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", run("echo before"), say(gate, "It is done."))
    session = await helm.start("work", cwd=git_repo)
    await model.wait_for_request(2)
    ends: list[TurnEnded] = []

    async def follow() -> None:
        ends.extend([event async for event in session.events() if isinstance(event, TurnEnded)])

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            await kill_hub(in_hub.state_dir)
            assert (await helm.session(session.id)).status == "active"
            gate.release()
    assert len(ends) == 1
    assert (session.status, session.result) == ("done", "It is done.")


async def test_a_handler_continues_with_its_question_and_answers_through_the_next_hub(
    helm: Helmsman, in_hub: Settings, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("touch made.txt"), say("done"))
    asked_of, answer = list[str](), anyio.Event()

    async def handler(_session: Session, question: Question, /) -> list[str]:
        asked_of.append(question.id)
        await answer.wait()
        return ["approve"]

    session = await helm.start(
        "work", cwd=git_repo, approval_policy="untrusted", sandbox="workspace-write", on_question=handler
    )
    await asked(session)
    await kill_hub(in_hub.state_dir)
    with anyio.fail_after(SECONDS):
        await helm.session(session.id)
    answer.set()
    await ended(session)
    assert (git_repo / "made.txt").exists()
    assert len(asked_of) == 1


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "restarted"])
async def test_a_function_runs_in_the_program_that_offers_it_once_though_the_hub_is_killed(
    helm: Helmsman, in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, *, is_killed: bool
) -> None:
    model.on("look", call("look_up", {"key": "port"}), say("found"))
    model.on("again", call("look_up", {"key": "host"}), say("found"))
    called, reached, go_on = list[str](), anyio.Event(), anyio.Event()

    async def look_up(arguments: Mapping[str, Any]) -> str:
        called.append(arguments["key"])
        reached.set()
        await go_on.wait()
        return f"value {len(called)} in process {os.getpid()}"

    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    tool = ClientTool(name="look_up", description="Looks a key up.", input_schema=schema, run=look_up)
    session = await helm.start("look", cwd=git_repo, tools=[tool])
    with anyio.fail_after(SECONDS):
        await reached.wait()
        first = hub_pid(in_hub.state_dir)
        if is_killed:
            await kill_hub(in_hub.state_dir)
        else:
            await anyio.to_thread.run_sync(ask_hub, in_hub.state_dir, "restart")
        while hub_pid(in_hub.state_dir) in (first, None):
            await helm.session(session.id)
            await anyio.sleep(0.02)
        assert (await helm.session(session.id)).status == "active"
    go_on.set()
    await ended(session)
    assert called == ["port"]
    assert (session.result, model.requests[-1].tool_outputs) == ("found", (f"value 1 in process {os.getpid()}",))
    async with Helmsman(in_hub, env=codex_home.env) as another:  # as that program started anew
        await ended(await another.say(session.id, "again", tools=[tool]))
    assert called == ["port", "host"]
    assert model.requests[-1].tool_outputs[-1] == f"value 2 in process {os.getpid()}"


async def test_a_call_that_the_dead_hub_had_taken_is_done_once(
    helm: Helmsman, in_hub: Settings, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say(gate, "done"))
    model.on("again", say("done again"))
    begun: list[Session] = []

    async def begin() -> None:
        begun.append(await helm.start("work", cwd=git_repo))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            await model.wait_for_request(1)
            await kill_hub(in_hub.state_dir)
        gate.release()
        await ended(begun[0])
        sessions, _ = await helm.list()
    assert [info.session_id for info in sessions] == [begun[0].id]
    assert len(model.requests) == 1


async def test_an_answer_that_a_dead_hub_wrote_down_and_did_not_give_brings_its_session(
    helm: Helmsman, in_hub: Settings, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", say("done"))
    session = await helm.start("work", cwd=git_repo)
    await ended(session)
    client = hub_of(helm)
    dead = client._peer
    client._copies.clear()  # as if the answer had not come
    client._calls += 1  # whoever asked still waits for it
    await kill_hub(in_hub.state_dir)
    with anyio.fail_after(SECONDS):
        while (peer := client._peer) in (None, dead):
            await client._news.wait()
        assert peer is not None
        found = await client._ask(peer, 1, "start", ("work",), {"cwd": git_repo})
    assert (found.id, found.result) == (session.id, "done")
    assert len(model.requests) == 1


_NO_CALLS: Mapping[str, Any] = {"no object": [], "no verb": {}}
_FAILING_CALLS = (
    {"verb": "list"},
    {"verb": "\ud800", "arguments": [], "named": {}},
    {"verb": "extras.__class__", "arguments": [], "named": {}},
    {"verb": "list", "arguments": [], "named": {}, "client": {"name": "a model"}},
)


async def test_a_malformed_call_does_not_affect_other_calls(in_hub: Settings, codex_home: CodexHome) -> None:
    async with Helmsman(in_hub, env=codex_home.env) as other:
        hub = hub_pid(in_hub.state_dir)
        async with Helmsman(in_hub, env=codex_home.env) as helm:
            peer = await hub_of(helm)._reached()
            with anyio.fail_after(SECONDS):
                for what, call in _NO_CALLS.items():
                    with pytest.raises(EngineProtocolError, match="400"):
                        await peer.call(1, call, SECONDS)
                        pytest.fail(what)
                for call in _FAILING_CALLS:
                    assert "error" in await peer.call(1, call, SECONDS), call
                assert await other.list() == await helm.list() == ([], None)
        assert hub_pid(in_hub.state_dir) == hub


async def test_a_program_that_does_not_read_blocks_no_other_and_learns_what_it_missed(
    in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say(gate, *(["a line of many words\n" * 500] * 400)), say("done"))
    async with Helmsman(in_hub, env=codex_home.env) as lazy, Helmsman(in_hub, env=codex_home.env) as eager:
        session = await lazy.start("work", cwd=git_repo)
        followed = await eager.session(session.id)
        await gate.reached()
        with stopped_reading(hub_of(lazy)):
            gate.release()
            await ended(followed)
            assert session.state.is_running
        await ended(session)
    assert (session.result, session.usage) == (followed.result, followed.usage)
    assert len(session.result or "") > 4_000_000


@pytest.mark.long
async def test_a_program_that_fell_behind_the_buffer_reads_the_events_from_the_log(
    in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", run("true"), say(gate, *(["a line of many words\n" * 500] * 400)))
    model.on("more", *(run(f"echo {number}") for number in range(6)), say("done"))
    settings = replace(in_hub, event_buffer_size=4)
    heard: list[Event] = []
    async with Helmsman(settings, env=codex_home.env) as lazy, Helmsman(settings, env=codex_home.env) as eager:
        lazy.listen(lambda _, event: heard.append(event))
        session = await lazy.start("work", cwd=git_repo, full_auto=True)
        followed = await eager.session(session.id)
        await gate.reached()
        with stopped_reading(hub_of(lazy)):
            gate.release()
            await ended(followed)
            await ended(await eager.say(session.id, "more"))
        with anyio.fail_after(SECONDS):
            while session.result != "done":
                await session.feed.changed()
        items = [event.item for event in heard if isinstance(event, ItemEnded)]
        assert sum(isinstance(item, CommandExecution) for item in items) == 7
        assert session.feed.cursor == (await eager.session(session.id)).feed.cursor
        with anyio.fail_after(SECONDS):
            again = [event async for event in session.events(since=1)]
        first, *_ = ends = [event for event in heard if isinstance(event, ItemEnded)]
        stored = [event for event in again if isinstance(event, ItemEnded)]
        assert (
            stored[stored.index(first) :] == ends
        )  # what had happened when the session began to be followed is not heard


async def test_unreadable_events_are_requested_again_and_a_failing_function_affects_no_other(
    helm: Helmsman, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate, heard = Gate(), Gate(), list[Event]()
    model.on("work", say(begun, "It is ", gate, "done."))

    def listen(_: Session, event: Event) -> None:
        heard.append(event)
        raise RuntimeError("a listener must not do this")

    apply, failed = SessionState.apply, list[Event]()

    def fail_at_end(state: SessionState, event: Event) -> None:
        if isinstance(event, TurnEnded) and not failed:
            failed.append(event)
            raise RuntimeError("nobody has thought of this")
        apply(state, event)

    helm.listen(listen)
    session = await helm.start("work", cwd=git_repo)
    begun.release()
    with anyio.fail_after(SECONDS):
        await gate.reached()
        while not heard:
            await anyio.sleep(0.01)
    connection = hub_of(helm)._peer
    assert hub_of(helm).is_connected, "the listener's failure is its own"
    monkeypatch.setattr(SessionState, "apply", fail_at_end)
    gate.release()
    await ended(session)
    assert (session.status, session.result) == ("done", "It is done.")
    assert failed
    assert hub_of(helm)._peer is not connection
    assert isinstance(heard[-1], TurnEnded)


async def test_a_program_with_too_many_calls_gets_an_error_and_its_other_calls_continue(
    helm: Helmsman, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say(gate, "done"))
    session = await helm.start("work", cwd=git_repo)
    assert session.task_id is not None
    task = await helm.tasks.get(session.task_id)
    ended_as: list[str] = []

    async def wait() -> None:
        ended_as.append((await helm.tasks.wait(task)).status)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as waiting:
            for _ in range(1000):
                waiting.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(HelmsmanError, match="1000 calls of this program are under way"):
                await helm.tasks.get(session.task_id)
            gate.release()
    assert ended_as == ["completed"] * 1000
    assert (await helm.tasks.get(session.task_id)).status == "completed"


async def test_a_request_that_is_repeated_while_its_call_runs_is_no_mistake(
    helm: Helmsman, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say(gate, "done"))
    session = await helm.start("work", cwd=git_repo)
    assert session.task_id is not None
    call = {"verb": "tasks.wait", "arguments": pack_value([await helm.tasks.get(session.task_id)]), "named": {}}
    peer = await hub_of(helm)._reached()
    results: list[Mapping[str, Any]] = []

    async def wait() -> None:
        results.append(await peer.call(1000, call, SECONDS))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(wait)
            for _ in range(2):
                await peer.tell("PUT", "calls/1000", call)
            gate.release()
    assert results[0]["value"]["status"] == "completed"


async def forget_answer(client: HubClient, state_dir: Path) -> int:
    """As if the hub had died before it wrote down what came of the last call: the number of that."""
    number = next(client._numbers) - 1
    with closing(sqlite3.connect(state_dir / REGISTRY_NAME)) as registry, registry:
        assert registry.execute("UPDATE calls SET answer = NULL WHERE seq = ?", (number,)).rowcount == 1
    return number


async def test_a_message_that_an_earlier_hub_has_sent_is_not_sent_again(
    helm: Helmsman, in_hub: Settings, model: ScriptedModel, git_repo: Path
) -> None:
    gate = Gate()
    model.on("work", say("done"))
    model.on("more", say(gate, "more is done"))
    model.on("instead", say(gate, "never"))  # what is put into a turn may break off what the model was saying
    session = await helm.start("work", cwd=git_repo)
    await ended(session)
    await session.say("more")
    client = hub_of(helm)
    number = await forget_answer(client, in_hub.state_dir)
    assert await client._ask(await client._reached(), number, "say", (session.id, "more"), {}) is session
    await gate.reached()
    await session.say("instead", when_busy="steer")
    number = await forget_answer(client, in_hub.state_dir)
    gate.release()
    await ended(session)  # the next hub may be there only when the turn is over
    with pytest.raises(OutcomeUnknown):
        await client._ask(await client._reached(), number, "say", (session.id, "instead"), {"when_busy": "steer"})
    assert session.turn_count == 2
    assert [request.last_user_text for request in model.requests].count("more") == 1


async def test_a_fork_that_an_earlier_hub_may_have_made_is_not_made_again(
    helm: Helmsman, in_hub: Settings, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", say("done"))
    session = await helm.start("work", cwd=git_repo)
    await ended(session)
    await helm.fork(session.id)
    client = hub_of(helm)
    number = await forget_answer(client, in_hub.state_dir)
    with pytest.raises(OutcomeUnknown):
        await client._ask(await client._reached(), number, "fork", (session.id,), {})
