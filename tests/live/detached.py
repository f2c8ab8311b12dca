"""One CODEX_HOME with detached engines, and who uses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.agents.codex.app_servers import EngineRequest, open_detached
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.engine import AppServerEngine
from helmsman.agents.supervisor.records import ProcessRecord, read_records
from helmsman.model.events import CommandExecution
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.testing import CodexHome
from tests.engines import start_turn
from tests.live.test_app_server_engine import Follower

where_it_changed = pytest.mark.matrix(changed_in=["0.105.0", "0.163.0"])
"""On the oldest and the newest Codex, and where it began to tell whether a session is active, and to guard its socket."""


USER = Path(__file__).with_name("engine_user.py")


class Place:
    """One CODEX_HOME with the engines of one state directory."""

    def __init__(self, binary: CodexBinary, codex_home: CodexHome, state_dir: Path, repo: Path) -> None:
        self.binary = binary
        self.codex_home = codex_home
        self.state_dir = state_dir
        self.repo = repo
        self.options = SessionOptions(cwd=repo, writes="workspace", asks="when_needed")

    @asynccontextmanager
    async def open(
        self, binary: CodexBinary | None = None, allowed_roots: Sequence[Path] = (), **request: Any
    ) -> AsyncIterator[AppServerEngine]:
        place = self.codex_home.path, self.state_dir, self.codex_home.env
        wanted = await EngineRequest.of(binary or self.binary, *place, **request)
        async with open_detached(wanted, allowed_roots=allowed_roots) as engine:
            yield engine

    @property
    def records(self) -> list[ProcessRecord]:
        return read_records(self.state_dir)

    @asynccontextmanager
    async def used_by_a_process(self, **order: str) -> AsyncIterator[User]:
        order = {
            "codex": str(self.binary.path),
            "codex_home": str(self.codex_home.path),
            "state_dir": str(self.state_dir),
            "cwd": str(self.repo),
            **order,
        }
        async with await anyio.open_process(
            [sys.executable, str(USER), json.dumps(order)],
            env=self.codex_home.env,
            stderr=None,
            stdin=subprocess.DEVNULL,
        ) as process:
            try:
                yield User(process)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()


class User:
    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        assert process.stdout is not None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def says(self, key: str, value: str | None = None) -> str:
        with anyio.fail_after(60):
            while True:
                message = json.loads(await self._lines.receive_until(b"\n", 65536))
                if key in message and value in (None, message[key]):
                    return str(message[key])

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process has been stopped: the signal takes its time."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T" for thread in threads)


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.02)


async def begin(engine: AppServerEngine, place: Place, prompt: str) -> Follower:
    opened = await start_turn(engine, place.options, TurnInput(text=prompt))
    follower = Follower(opened)
    engine.attach(opened.session_id, follower)
    return follower


async def adopt(engine: AppServerEngine, place: Place, session_id: str) -> Follower:
    opened = await engine.adopt(session_id, place.options)
    follower = Follower(opened)
    engine.attach(session_id, follower)
    return follower


def commands_of(follower: Follower) -> list[CommandExecution]:
    return [item for item in follower.state.items if isinstance(item, CommandExecution)]
