"""Fixtures for the real command, `helmsman`, in a separate process: with a pipe, or on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.settings import Settings
from helmsman.testing import CodexHome, Gate, ScriptedModel, run, say
from helmsman.testing.leaks import MARKER_VARIABLE
from tests import warm
from tests.pseudo_terminal import PseudoTerminal

SECONDS = 60
_PIPE = 64 * 1024
"""Capacity of a pipe without a reader."""


@dataclass(frozen=True)
class Done:
    """How the command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


class OnTerminal:
    """The command on a terminal."""

    def __init__(self, terminal: PseudoTerminal, process: anyio.abc.Process) -> None:
        self.terminal = terminal
        self.process = process
        self.shows = terminal.shows
        self.press = terminal.press

    @property
    def screen(self) -> str:
        return self.terminal.screen

    async def exit_code(self) -> int:
        with anyio.fail_after(SECONDS):
            return await self.process.wait()


class Cli:
    """Runs the command in a directory, with an environment that has nothing of the person's own Codex."""

    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        passed_on = {
            name: value for name, value in os.environ.items() if name.startswith("COV") or name == MARKER_VARIABLE
        }
        self.env: dict[str, str] = {**env, **passed_on, "TERM": "xterm"}
        self.directory = directory

    async def run(self, *arguments: str, stdin: bytes = b"", **env: str) -> Done:
        """Run it to its end, with no stream on a terminal."""
        server = warm.server()
        if server is not None and len(stdin) < _PIPE:
            return await anyio.to_thread.run_sync(self._run_warm, server, arguments, stdin, self.env | env)
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                warm.command(*arguments),
                input=stdin,
                env=self.env | env,
                cwd=self.directory,
                check=False,
                start_new_session=True,
            )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _run_warm(self, server: Path, arguments: tuple[str, ...], stdin: bytes, env: Mapping[str, str]) -> Done:
        with TemporaryFile() as stdout, TemporaryFile() as stderr:
            reading, writing = os.pipe()
            os.write(writing, stdin)
            os.close(writing)
            streams = [reading, stdout.fileno(), stderr.fileno()]
            try:
                code = warm.run(server, arguments, env, self.directory, streams, seconds=SECONDS)
            finally:
                os.close(reading)
            for stream in (stdout, stderr):
                stream.seek(0)
            return Done(code, stdout.read().decode(), stderr.read().decode())

    @asynccontextmanager
    async def started(self, *arguments: str, stdout: int = subprocess.PIPE) -> AsyncIterator[anyio.abc.Process]:
        """Start it; the block ends it."""
        process = await anyio.open_process(
            warm.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            env=self.env,
            cwd=self.directory,
            start_new_session=True,
        )
        async with process:
            try:
                yield process
            except BaseException:  # a test that failed does not send the signals that would end it
                with suppress(ProcessLookupError):
                    process.kill()
                raise

    @asynccontextmanager
    async def on_terminal(
        self, *arguments: str, columns: int = 80, stdout: int | None = None, **env: str
    ) -> AsyncIterator[OnTerminal]:
        """Start it on a terminal; the block ends it. `stdout` may be something else than the terminal."""
        terminal = PseudoTerminal(columns=columns)
        try:
            process = await anyio.open_process(
                warm.command(*arguments, on_terminal=True),
                stdin=terminal.program_side,
                stdout=terminal.program_side if stdout is None else stdout,
                stderr=terminal.program_side,
                env=self.env | env,
                cwd=self.directory,
                start_new_session=True,
            )
            async with process:
                try:
                    yield OnTerminal(terminal, process)
                except BaseException:  # a test that expected something else does not press the keys that would end it
                    with suppress(ProcessLookupError):
                        process.kill()
                    raise
        finally:
            terminal.close()


@pytest.fixture
def cli(codex_home: CodexHome, codex_binary: Path, git_repo: Path) -> Cli:
    """The command with a real Codex and a scripted model, in a fresh repository."""
    return Cli(codex_home.env | {"CODEX_CLI_PATH": str(codex_binary)}, git_repo)


@pytest.fixture
def bare_cli(tmp_path: Path) -> Cli:
    """The command without any Codex: what it does before it needs one."""
    home = tmp_path / "home"
    (home / ".codex").mkdir(parents=True)
    env = {"HOME": str(home), "PATH": os.defpath, "HELMSMAN_STATE_DIR": str(tmp_path / "state"), "HELMSMAN_DETACH": "0"}
    return Cli(env | {"CODEX_CLI_PATH": str(tmp_path / "no-codex-here")}, tmp_path)


# --- sessions of other processes -------------------------------------------------------------------------------------


class LeaveBehind:
    """Starter of sessions in a separate engine, like a process that is gone."""

    def __init__(self, settings: Settings, env: Mapping[str, str], model: ScriptedModel, directory: Path) -> None:
        self._settings = settings
        self._env = env
        self._model = model
        self._directory = directory

    async def working(self, gate: Gate, prompt: str = "A slow job", answer: str = "At last.", begin: str = "") -> str:
        """Start a session whose turn runs until the gate is released. Return its id. `begin` is the text before."""
        self._model.on(prompt, say(begin, gate, answer) if begin else say(gate, answer))
        return await self._start(prompt, gate)

    async def asking(self, prompt: str = "touch a file", gate: Gate | None = None, **settings: Any) -> str:
        """A session that asks whether it may run `touch made.txt`; its id. Once it is answered, the gate holds it."""
        touch = run("touch made.txt", escalate="It must leave the sandbox")
        self._model.on(prompt, touch, say(gate, "Made.") if gate else say("Made."))
        return await self._start(prompt, None, **settings)

    async def _start(self, prompt: str, gate: Gate | None, **settings: Any) -> str:
        async with Helmsman(replace(self._settings, **settings), env=self._env) as helm:
            if not await helm.goes_on_alone():
                pytest.skip("This Codex cannot run without its process.")
            session = await helm.start(
                prompt, cwd=self._directory, sandbox="workspace-write", approval_policy="on-request"
            )
            with anyio.fail_after(30):
                await (session.wait(until="attention") if gate is None else gate.reached())
            return session.id


@pytest.fixture
def detached_cli(cli: Cli, detached_engines: Path) -> Cli:
    """The command as people have it: with engines that outlive it. (Tests end them.)"""
    if os.name != "posix":
        pytest.skip("There are no detached engines here.")
    cli.env["HELMSMAN_DETACH"] = "1"
    return cli


@pytest.fixture
def left_behind(
    detached_cli: Cli, settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> LeaveBehind:
    """Sessions for `cli` that another process has begun."""
    return LeaveBehind(replace(settings, detach=True), codex_home.env, model, git_repo)


@pytest.fixture
async def bound_elsewhere(cli: Cli, model: ScriptedModel) -> AsyncIterator[tuple[str, Gate]]:
    """Yield a session whose turn another process runs in an engine that ends with it, and the gate that lets it end."""
    gate = Gate()
    model.on("bound job", say(gate, "Bound and done."))
    async with cli.started("run", "A bound job"):
        with anyio.fail_after(30):
            await gate.reached()
        (listed,) = (await cli.run("list", "--json")).json
        yield listed["sessions"][0]["sessionId"], gate
        gate.release()
