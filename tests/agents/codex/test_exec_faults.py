"""Tests of the exec engine with programs that misbehave in ways a real Codex cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from helmsman.agents import agent_process, child_process
from helmsman.agents.codex import exec as module
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.exec import open_exec_engine
from helmsman.agents.codex.features import Version
from helmsman.agents.process_engine import ProcessEngine
from helmsman.errors import EngineLost, EngineProtocolError, EngineStartFailed, SessionNotFound
from helmsman.model.events import AgentMessage, Event, ItemEnded, ProcessStateChanged, TurnEnded
from helmsman.model.options import SessionOptions, TurnInput
from tests.engines import resume_turn, start_turn

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="scripts are a POSIX thing")]

SESSION = "0199a213-81c0-7800-8aa1-bbab2a035a53"

PRELUDE = f"""#!{sys.executable}
import json, os, signal, subprocess, sys, time

def say(**message):
    print(json.dumps(message), flush=True)

def begin(session="{SESSION}"):
    say(type="thread.started", thread_id=session)
    say(type="turn.started")

def message(text):
    say(type="item.completed", item=dict(id="item_0", type="agent_message", text=text))

prompt = sys.stdin.read()
"""


class Scene:
    """Working directory, and a home with one session."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        sessions = self.home / "sessions" / "2026" / "01" / "02"
        sessions.mkdir(parents=True)
        meta = {"id": SESSION, "timestamp": "2026-01-02T03:04:05.000Z", "cwd": str(folder), "originator": "x"}
        line = {"timestamp": "2026-01-02T03:04:05.000Z", "type": "session_meta", "payload": meta}
        rollout = sessions / f"rollout-2026-01-02T03-04-05-{SESSION}.jsonl"
        rollout.write_text(json.dumps(line) + "\n", encoding="utf-8")
        self.events: list[Event] = []
        self._news = anyio.Event()

    def program(self, body: str) -> CodexBinary:
        path = self.folder / "codex"
        path.write_text(PRELUDE + body, encoding="utf-8")
        path.chmod(0o755)
        return self.binary(path)

    def binary(self, path: Path) -> CodexBinary:
        return CodexBinary(
            path=path,
            version=Version.parse("0.166.0"),
        )

    @asynccontextmanager
    async def engine(self, binary: CodexBinary) -> AsyncIterator[ProcessEngine]:
        async with open_exec_engine(binary, codex_home=self.home) as engine:
            engine.attach(SESSION, self._sink)
            yield engine

    def _sink(self, event: Event) -> None:
        if not isinstance(event, ProcessStateChanged):  # shown in tests/agents/test_process_engine.py
            self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    async def start(self, engine: ProcessEngine) -> None:
        with anyio.fail_after(30):
            await start_turn(engine, SessionOptions(cwd=self.folder), TurnInput(text="go"))

    async def end(self) -> TurnEnded:
        with anyio.fail_after(30):
            while not self.ends:
                await self._news.wait()
        return self.ends[0]

    @property
    def ends(self) -> list[TurnEnded]:
        return [event for event in self.events if isinstance(event, TurnEnded)]

    @property
    def messages(self) -> list[str]:
        items = [event.item for event in self.events if isinstance(event, ItemEnded)]
        return [item.text for item in items if isinstance(item, AgentMessage)]


def running_turns(engine: ProcessEngine) -> list[str]:
    return [session.id for session in engine._sessions.values() if session.turn is not None]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(") ")[2][0] != "Z"


# --- before it began -------------------------------------------------------------------------------------------------


async def test_a_program_that_is_not_there_cannot_be_started(scene: Scene) -> None:
    async with scene.engine(scene.binary(scene.folder / "none")) as engine:
        with pytest.raises(EngineStartFailed, match="none"):
            await scene.start(engine)


async def test_a_program_that_exits_at_once_says_why(scene: Scene) -> None:
    body = "print('INFO: hello', file=sys.stderr); print('error: no luck', file=sys.stderr); sys.exit(2)"
    async with scene.engine(scene.program(body)) as engine:
        with pytest.raises(EngineStartFailed, match=r"exited \(2\) before it began: error: no luck") as caught:
            await scene.start(engine)
    assert caught.value.details["exit_code"] == 2
    assert scene.events[:-1] == []


async def test_a_program_that_says_nothing_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT", 0.3)
    async with scene.engine(scene.program("time.sleep(600)")) as engine:
        with pytest.raises(EngineStartFailed, match="did not answer"):
            await scene.start(engine)


async def test_a_program_that_does_not_read_its_prompt_is_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT", 0.3)
    path = scene.folder / "deaf"
    path.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    path.chmod(0o755)
    async with scene.engine(scene.binary(path)) as engine:
        with pytest.raises(EngineStartFailed, match="did not answer"):
            await start_turn(engine, SessionOptions(cwd=scene.folder), TurnInput(text="word " * 1_000_000))


async def test_a_session_that_codex_could_not_find_is_not_begun_anew(scene: Scene) -> None:
    body = "begin('another-session'); open('pid', 'w').write(str(os.getpid())); message('hi'); time.sleep(600)"
    async with scene.engine(scene.program(body)) as engine:
        with pytest.raises(SessionNotFound):
            await resume_turn(engine, SESSION, SessionOptions(cwd=scene.folder), TurnInput(text="go on"))
        assert running_turns(engine) == []
        assert scene.events == []


async def test_a_session_that_is_gone_from_disk_is_not_found(scene: Scene) -> None:
    body = "print('Error: no rollout found for thread id', file=sys.stderr); sys.exit(1)"
    async with scene.engine(scene.program(body)) as engine:
        with pytest.raises(SessionNotFound):
            await resume_turn(engine, SESSION, SessionOptions(cwd=scene.folder), TurnInput(text="go on"))


async def test_closing_the_engine_ends_a_start_that_is_under_way(scene: Scene) -> None:
    program = scene.program("open('here', 'w').close(); time.sleep(600)")
    async with anyio.create_task_group() as tasks, scene.engine(program) as engine:

        async def start() -> None:
            with anyio.fail_after(30), pytest.raises(EngineLost):
                await start_turn(engine, SessionOptions(cwd=scene.folder), TurnInput(text="go"))

        tasks.start_soon(start)
        with anyio.fail_after(30):
            while not await anyio.Path(scene.folder / "here").exists():
                await anyio.sleep(0.01)


async def test_a_detached_session_gets_no_events(scene: Scene) -> None:
    async with scene.engine(scene.program("begin(); message('hi'); say(type='turn.completed')")) as engine:
        engine.detach(SESSION)
        await scene.start(engine)
        with anyio.fail_after(30):
            while running_turns(engine):
                await anyio.sleep(0.01)
    assert scene.events == []


async def test_a_first_line_without_end_is_an_error(scene: Scene) -> None:
    async with scene.engine(scene.program("sys.stdout.write('x' * (65 * 1024 * 1024)); sys.stdout.flush()")) as engine:
        with pytest.raises(EngineProtocolError):
            await scene.start(engine)


# --- in mid-turn -----------------------------------------------------------------------------------------------------


async def test_lines_that_make_no_sense_are_skipped(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    body = """
print("not json"); print("[1, 2]"); print("")
begin()
sys.stdout.buffer.write(b"\\xff\\xfe\\n"); print("[" * 100_000); print('{"type": ["odd"]}')
message("still here")
say(type="turn.completed")
"""
    async with scene.engine(scene.program(body)) as engine:
        await scene.start(engine)
        assert (await scene.end()).outcome == "completed"
    assert scene.messages == ["still here"]
    assert "skipped a line" in caplog.text


async def test_a_line_without_end_fails_the_turn(scene: Scene) -> None:
    body = "begin(); sys.stdout.write('x' * (65 * 1024 * 1024)); sys.stdout.flush(); time.sleep(600)"
    async with scene.engine(scene.program(body)) as engine:
        await scene.start(engine)
        end = await scene.end()
    assert end.failure is not None
    assert end.failure.code == "engine_protocol_error"


async def test_an_exit_without_a_word_fails_the_turn(scene: Scene) -> None:
    async with scene.engine(scene.program("begin(); print('out of luck', file=sys.stderr)")) as engine:
        await scene.start(engine)
        end = await scene.end()
    assert end.failure is not None
    assert (end.failure.code, end.failure.retryable) == ("engine_lost", True)
    assert "exited (0)" in end.failure.message


async def test_a_turn_ends_only_once(scene: Scene) -> None:
    body = "begin(); say(type='turn.completed'); say(type='turn.failed', error=dict(message='no')); sys.exit(1)"
    async with scene.engine(scene.program(body)) as engine:
        await scene.start(engine)
        await scene.end()
    assert [end.outcome for end in scene.ends] == ["completed"]


async def test_a_process_that_lingers_after_its_turn_is_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "STDIN_CLOSED_GRACE", 0.1)
    body = "begin(); say(type='turn.completed'); os.close(1); time.sleep(600)"
    async with scene.engine(scene.program(body)) as engine:
        await scene.start(engine)
        assert (await scene.end()).outcome == "completed"


async def test_output_held_open_by_a_grandchild_does_not_hold_up_the_turn(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_process, "_EXIT_GRACE", 0.1)
    body = "begin(); subprocess.Popen(['sleep', '600']); say(type='turn.completed')"
    async with scene.engine(scene.program(body)) as engine:
        await scene.start(engine)
        assert (await scene.end()).outcome == "completed"


STUBBORN = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
command = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
begin()
message(str(command.pid))
time.sleep(600)
"""


async def test_an_agent_that_ignores_an_interrupt_is_killed_with_its_commands(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERRUPTED_GRACE", 0.2)
    monkeypatch.setattr(child_process, "STDIN_CLOSED_GRACE", 0.2)
    monkeypatch.setattr(child_process, "TERMINATED_GRACE", 0.2)
    async with scene.engine(scene.program(STUBBORN)) as engine:
        await scene.start(engine)
        with anyio.fail_after(30):
            while not scene.messages:
                await scene._news.wait()
            await engine.interrupt(SESSION)
        assert [end.outcome for end in scene.ends] == ["interrupted"]
        assert not is_running(int(scene.messages[0]))


async def test_a_failure_caused_by_an_interrupt_is_an_interrupt(scene: Scene) -> None:
    body = """
def stop(*_):
    say(type="turn.failed", error=dict(message="interrupted"))
    sys.exit(1)
signal.signal(signal.SIGINT, stop)
begin()
time.sleep(600)
"""
    async with scene.engine(scene.program(body)) as engine:
        await scene.start(engine)
        with anyio.fail_after(30):
            await engine.interrupt(SESSION)
    assert [end.outcome for end in scene.ends] == ["interrupted"]


async def test_an_interrupt_stops_a_turn_that_has_not_begun_yet(scene: Scene) -> None:
    async with scene.engine(scene.program("time.sleep(600)")) as engine, anyio.create_task_group() as tasks:

        async def resume() -> None:
            with pytest.raises(EngineStartFailed, match="before it began"):
                await resume_turn(engine, SESSION, SessionOptions(cwd=scene.folder), TurnInput(text="go on"))

        tasks.start_soon(resume)
        with anyio.fail_after(30):
            while not running_turns(engine):
                await anyio.lowlevel.checkpoint()
            await engine.interrupt(SESSION)
        assert running_turns(engine) == []
    assert scene.ends == []
