"""Tests of the engine with an app-server that misbehaves in ways a real one cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from helmsman.agents import agent_process, child_process
from helmsman.agents.codex import connection, processes
from helmsman.agents.codex import engine as engine_module
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.engine import AppServerEngine, open_app_server
from helmsman.base.line_framer import LineFramer
from helmsman.errors import (
    EngineLost,
    EngineProtocolError,
    EngineStartFailed,
    EngineTimeout,
    PolicyWidened,
    QuestionNotOpen,
)
from helmsman.model.events import EngineGone, Event, QuestionAsked, TurnEnded, Unknown
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice
from helmsman.testing.fake_app_server import (
    TURN,
    FakeAppServer,
    answer,
    ask,
    batch,
    end_turn,
    exit_now,
    ignore_sigterm,
    long_line,
    notify,
    raw,
    stderr,
    stop_reading,
)
from tests.engines import start_turn

pytestmark = [pytest.mark.anyio, pytest.mark.long]

E = TypeVar("E", bound=Event)

RACE = "Error: failed to initialize sqlite state runtime under /home: failed to initialize state runtime\n"
APPROVAL = {"threadId": "$thread", "turnId": "$turn", "itemId": "c1", "command": "ls", "cwd": "/"}


@asynccontextmanager
async def engine_of(server: FakeAppServer, tmp_path: Path) -> AsyncIterator[AppServerEngine]:
    binary = await find_codex(explicit=server.path, state_dir=None)
    async with open_app_server(binary, codex_home=tmp_path / "home") as engine:
        yield engine


class Sink:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = anyio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, kind: type[E]) -> E:
        with anyio.fail_after(10):
            while True:
                for event in self.events:
                    if isinstance(event, kind):
                        return event
                self._changed = anyio.Event()
                await self._changed.wait()


async def begin(engine: AppServerEngine, tmp_path: Path, **options: Any) -> tuple[str, Sink]:
    sink = Sink()
    opened = await start_turn(engine, SessionOptions(cwd=tmp_path, **options), TurnInput(text="go"))
    engine.attach(opened.session_id, sink)
    return opened.session_id, sink


async def test_a_start_race_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_RACE_PAUSE", 0)
    server = FakeAppServer(tmp_path / "bin", at_start=[stderr(RACE), exit_now(1)], launches=2)
    async with engine_of(server, tmp_path) as engine:
        _, sink = await begin(engine, tmp_path)
        assert (await sink.until(TurnEnded)).outcome == "completed"


async def test_any_other_failure_at_the_start_is_reported_with_what_codex_said(tmp_path: Path) -> None:
    server = FakeAppServer(tmp_path / "bin", at_start=[stderr("Error: bad config\n"), exit_now(3)])
    with pytest.raises(EngineStartFailed, match="bad config") as caught:
        async with engine_of(server, tmp_path):
            pass
    assert caught.value.details["exit_code"] == 3


async def test_a_server_that_never_answers_the_handshake_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_TIMEOUT", 0.3)
    monkeypatch.setattr(child_process, "STDIN_CLOSED_GRACE", 0.1)
    monkeypatch.setattr(child_process, "TERMINATED_GRACE", 0.1)
    server = FakeAppServer(tmp_path / "bin", on={"initialize": [ignore_sigterm(), stop_reading()]})
    with pytest.raises(EngineStartFailed, match="did not answer initialize"):
        async with engine_of(server, tmp_path):
            pass


async def test_cancelling_the_start_leaves_no_process(tmp_path: Path) -> None:
    server = FakeAppServer(tmp_path / "bin", on={"initialize": []})
    with anyio.move_on_after(0.3):
        async with engine_of(server, tmp_path):
            pass


@pytest.mark.parametrize(
    "noise",
    [
        raw("this is not JSON\n"),
        raw("\n\n   \n"),
        raw('{"method": 3}\n{"id": 999, "result": {}}\n[]\nnull\n'),
        raw("\xff\xfe not text\n"),
        batch(notify("turn/started", TURN)),
        notify("thread/brandNew/thing", {"threadId": "$thread", "anything": [1, 2]}),
        notify("codex/event/task_started", {"id": "1"}),
        stderr("x" * 1000 + "\n", times=2000),
        long_line(3_000_000),
    ],
    ids=[
        "garbage",
        "blank lines",
        "odd messages",
        "not utf-8",
        "a batch",
        "unknown",
        "duplicates",
        "stderr flood",
        "long line",
    ],
)
async def test_noise_in_a_turn_changes_nothing(tmp_path: Path, noise: dict[str, Any]) -> None:
    server = FakeAppServer(
        tmp_path / "bin", on={"turn/start": [answer(), notify("turn/started", TURN), noise, end_turn()]}
    )
    async with engine_of(server, tmp_path) as engine:
        _, sink = await begin(engine, tmp_path)
        assert (await sink.until(TurnEnded)).outcome == "completed"


async def test_unknown_notifications_are_kept(tmp_path: Path) -> None:
    new = notify("thread/brandNew/thing", {"threadId": "$thread", "anything": 1})
    server = FakeAppServer(tmp_path / "bin", on={"turn/start": [answer(), new, end_turn()]})
    async with engine_of(server, tmp_path) as engine:
        _, sink = await begin(engine, tmp_path)
        assert (await sink.until(Unknown)).name == "thread/brandNew/thing"


async def test_a_turn_that_ends_before_its_answer_is_read_is_over(tmp_path: Path) -> None:
    server = FakeAppServer(tmp_path / "bin", on={"turn/start": [notify("turn/started", TURN), end_turn(), answer()]})
    async with engine_of(server, tmp_path) as engine:
        session_id, sink = await begin(engine, tmp_path)
        await sink.until(TurnEnded)
        await engine.interrupt(session_id)
        await engine.run_turn(session_id, SessionOptions(cwd=tmp_path), TurnInput(text="next"))


@pytest.mark.rare
async def test_a_line_beyond_the_cap_ends_the_engine_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_process, "LineFramer", lambda: LineFramer(1_000_000))
    server = FakeAppServer(tmp_path / "bin", on={"turn/start": [answer(), long_line(2_000_000), end_turn()]})
    async with engine_of(server, tmp_path) as engine:
        _, sink = await begin(engine, tmp_path)
        assert (await sink.until(EngineGone)).failure.code == "engine_protocol_error"
        with pytest.raises(EngineProtocolError):
            await engine.api.loaded_threads()


@pytest.mark.parametrize("last_words", [raw('{"id": 1, "resu'), raw("{}\n")], ids=["half a line", "nothing"])
async def test_a_server_that_exits_in_a_turn_is_noticed_at_once(tmp_path: Path, last_words: dict[str, Any]) -> None:
    server = FakeAppServer(
        tmp_path / "bin", on={"turn/start": [answer(), stderr("thread 'main' panicked\n"), last_words, exit_now(101)]}
    )
    async with engine_of(server, tmp_path) as engine:
        _, sink = await begin(engine, tmp_path)
        gone = await sink.until(EngineGone)
        assert gone.failure.retryable
        with pytest.raises(EngineLost) as caught:
            await engine.api.loaded_threads()
        assert caught.value.details["exit_code"] == 101
        assert "panicked" in caught.value.details["stderr"]


async def test_a_method_that_is_never_answered_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OPEN_TIMEOUT", 0.2)
    server = FakeAppServer(tmp_path / "bin", on={"thread/start": []})
    async with engine_of(server, tmp_path) as engine:
        with pytest.raises(EngineTimeout, match="thread/start"):
            await begin(engine, tmp_path)


async def test_a_turn_that_does_not_stop_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "INTERRUPT_TIMEOUT", 0.3)
    server = FakeAppServer(
        tmp_path / "bin", on={"turn/start": [answer(), notify("turn/started", TURN)], "turn/interrupt": [answer({})]}
    )
    async with engine_of(server, tmp_path) as engine:
        session_id, _ = await begin(engine, tmp_path)
        with pytest.raises(EngineTimeout, match="did not stop"):
            await engine.interrupt(session_id)


async def test_an_interrupt_that_is_never_answered_counts_when_the_turn_has_ended(tmp_path: Path) -> None:
    server = FakeAppServer(
        tmp_path / "bin",
        on={"turn/start": [answer(), notify("turn/started", TURN)], "turn/interrupt": [end_turn("interrupted")]},
    )
    async with engine_of(server, tmp_path) as engine:
        session_id, sink = await begin(engine, tmp_path)
        with anyio.fail_after(5):
            await engine.interrupt(session_id)
        assert (await sink.until(TurnEnded)).outcome == "interrupted"


async def test_secrets_that_codex_prints_do_not_reach_the_error(tmp_path: Path) -> None:
    key = "sk-proj-" + "a1B2" * 12
    server = FakeAppServer(tmp_path / "bin", at_start=[stderr(f"Error: OPENAI_API_KEY={key} is bad\n"), exit_now(1)])
    with pytest.raises(EngineStartFailed) as caught:
        async with engine_of(server, tmp_path):
            pass
    assert key not in str(caught.value.as_dict())


async def test_an_unknown_request_is_refused(tmp_path: Path) -> None:
    strange = ask("item/brandNew/requestApproval", APPROVAL, id=7)
    homeless = ask("attestation/generate", {}, id="text-id")
    server = FakeAppServer(tmp_path / "bin", on={"turn/start": [answer(), strange, homeless, end_turn()]})
    async with engine_of(server, tmp_path) as engine:
        await begin(engine, tmp_path)
        with anyio.fail_after(10):
            await server.wait_for(lambda message: message.get("id") == 7 and "error" in message)
            await server.wait_for(lambda message: message.get("id") == "text-id" and "error" in message)


async def test_a_question_of_an_unknown_thread_is_refused(tmp_path: Path) -> None:
    strange = ask("item/commandExecution/requestApproval", {**APPROVAL, "threadId": "stranger"}, id=8)
    server = FakeAppServer(tmp_path / "bin", on={"turn/start": [answer(), strange, end_turn()]})
    async with engine_of(server, tmp_path) as engine:
        await begin(engine, tmp_path)
        with anyio.fail_after(10):
            await server.wait_for(lambda message: message.get("id") == 8 and "error" in message)


async def test_a_question_that_codex_takes_back_is_closed(tmp_path: Path) -> None:
    server = FakeAppServer(
        tmp_path / "bin",
        on={
            "turn/start": [
                answer(),
                notify("turn/started", TURN),
                ask("item/commandExecution/requestApproval", APPROVAL, id=0),
                notify("serverRequest/resolved", {"threadId": "$thread", "requestId": 0}),
                end_turn(),
            ]
        },
    )
    async with engine_of(server, tmp_path) as engine:
        _, sink = await begin(engine, tmp_path)
        asked = await sink.until(QuestionAsked)
        await sink.until(TurnEnded)
        with pytest.raises(QuestionNotOpen):
            await engine.answer(asked.question, (Choice("approve"),))
    assert not any(message.get("id") == 0 and "result" in message for message in server.received())


@pytest.mark.parametrize(
    ("asked", "applied"),
    [
        ({"writes": "nothing"}, {"sandbox": {"type": "dangerFullAccess"}}),
        ({"writes": "nothing"}, {"sandbox": {"type": "somethingNew"}}),
        ({"asks": "unless_harmless"}, {"approvalPolicy": "never"}),
        ({"asks": "when_needed"}, {"approvalPolicy": {"granular": {}}}),
    ],
)
async def test_a_policy_wider_than_asked_for_is_refused_before_anything_runs(
    tmp_path: Path, asked: dict[str, Any], applied: dict[str, Any]
) -> None:
    thread = {"id": "t-1", "cwd": str(tmp_path), "turns": []}
    echo = {"thread": thread, "sandbox": {"type": "readOnly"}, "approvalPolicy": "untrusted", "model": "m", **applied}
    server = FakeAppServer(tmp_path / "bin", on={"thread/start": [answer(echo)]})
    async with engine_of(server, tmp_path) as engine:
        with pytest.raises(PolicyWidened):
            await begin(engine, tmp_path, **asked)
    assert server.received("turn/start") == []


async def test_a_server_that_does_not_end_with_its_input_is_terminated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "STDIN_CLOSED_GRACE", 0.1)
    server = FakeAppServer(tmp_path / "bin", on={"thread/loaded/list": [answer({"data": []}), stop_reading()]})
    async with engine_of(server, tmp_path) as engine:
        assert await engine.api.loaded_threads() == ()
