"""A place where `helmsman serve` is a pipe to a hub."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from helmsman.base.files import file_lock
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import CodexHome
from helmsman.testing.hubs import end_hub, hub_pid
from tests.clients.server_process import Serving
from tests.hub.commands import done, whole
from tests.left_processes import hub_processes

SECONDS = 60


class Place(Serving):
    """How to start a pipe, and the hub it finds."""

    @property
    def hub(self) -> int:
        """The hub's pid."""
        pid = hub_pid(self.state_dir)
        assert pid is not None
        return pid

    def stop_hub(self) -> int:
        """Stop the hub between two transactions and return its pid: within one, it would keep the next hub waiting."""
        pid, store = self.hub, self.state_dir / REGISTRY_NAME
        with (
            file_lock(store.with_name(f"{store.name}.lock"), timeout=SECONDS),
            closing(sqlite3.connect(store, timeout=SECONDS, isolation_level=None)) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            os.kill(pid, signal.SIGSTOP)
        return pid

    @contextmanager
    def stopped_hub(self) -> Iterator[Callable[[], None]]:
        """Stop the hub during the block, unless it is resumed earlier."""
        pid = self.stop_hub()

        def go_on() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        try:
            yield go_on
        finally:
            go_on()

    async def kill_starting_hub(self) -> None:
        """Kill the next hub before it has said a word. It is known by its command line, so it has to be a cold one."""
        with anyio.fail_after(SECONDS):
            while not (starting := hub_processes(self.state_dir)):
                await anyio.sleep(0.005)
        for pid in starting:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while set(starting) & set(hub_processes(self.state_dir)):
                await anyio.sleep(0.005)

    async def kill_hub(self) -> None:
        pid = self.hub
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while hub_pid(self.state_dir) == pid:
                await anyio.sleep(0.005)


@pytest.fixture
def place(codex_home: CodexHome, codex_binary: Path, folder: Path, detached_engines: Path) -> Place:
    """With a real Codex on the scripted model."""
    return Place.on(codex_home, codex_binary, folder, HELMSMAN_DETACH="1", HELMSMAN_STATE_DIR=str(detached_engines))


@pytest.fixture
def bare_place(tmp_path: Path) -> Iterator[Place]:
    """Without any Codex."""
    (tmp_path / "home" / ".codex").mkdir(parents=True)
    kept = ("PATH", "TMPDIR", "LANG", "HELMSMAN_TEST_ID")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    state_dir = tmp_path / "state"
    yield Place({**env, "HOME": str(tmp_path / "home"), "HELMSMAN_STATE_DIR": str(state_dir)}, tmp_path)
    end_hub(state_dir)


class HeldAgent:
    """An agent that does not come up before it is let. `begins` is how the shell tells that it is to."""

    def __init__(self, binary: Path, directory: Path, begins: str) -> None:
        directory.mkdir()
        self._gate, self._reached = directory / "gate", directory / "reached"
        os.mkfifo(self._gate)
        self.path = directory / binary.name
        held = f'if {begins} && [ -p "{self._gate}" ]; then'
        wait = f'touch "{self._reached}"; read -r line < "{self._gate}"'
        self.path.write_text(f'#!/bin/sh\n{held} {wait}; fi\nexec "{binary}" "$@"\n', encoding="utf-8")
        self.path.chmod(0o755)

    async def reached(self) -> None:
        """Wait until one has been started."""
        with anyio.fail_after(SECONDS):
            while not self._reached.exists():
                await anyio.sleep(0.01)

    def let(self) -> None:
        """Release everything that is held."""
        opened = self._gate.rename(self._gate.with_name("open"))
        gate = os.open(opened, os.O_RDWR)
        os.write(gate, b"go\n" * 100)
        os.close(gate)


@pytest.fixture
def held_codex(codex_binary: Path, tmp_path: Path) -> HeldAgent:
    return HeldAgent(codex_binary, tmp_path / "held", '[ "$1" = app-server ] && [ "$2" != --help ]')


@pytest.fixture
async def served(bare_place: Place) -> Place:
    """A place with a hub that has run a command."""
    assert (await done(whole("list"), bare_place)).code == 0
    return bare_place
