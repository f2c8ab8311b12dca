"""`helmsman serve` as a separate process, like one that a client's configuration or a user starts."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any, Self

import anyio
import anyio.abc
import httpx2
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from helmsman.base.concurrency import background_tasks
from helmsman.testing import CodexHome
from tests import warm

SECONDS = 60
_GRACE_SECONDS = 10
_LISTENING = "Listening on "


@dataclass(frozen=True)
class Serving:
    """How to start the server: the command, its environment, its directory."""

    env: Mapping[str, str]
    directory: Path
    warm: bool = True
    """Whether the process that is started may be a client to the one that serves."""

    @classmethod
    def on(cls, home: CodexHome, binary: Path, directory: Path, **env: str) -> Self:
        """Start it with a real Codex in a separate home, and nothing of the user's own Codex."""
        measured = {name: value for name, value in os.environ.items() if name.startswith("COV")}
        return cls({**home.env, **measured, "CODEX_CLI_PATH": str(binary), **env}, directory)

    @property
    def state_dir(self) -> Path:
        return Path(self.env["HELMSMAN_STATE_DIR"])

    def command(self, *arguments: str) -> list[str]:
        return (
            warm.command("serve", *arguments) if self.warm else [sys.executable, "-m", "helmsman", "serve", *arguments]
        )

    def on_stdio(self, *arguments: str) -> StdioServerParameters:
        """For the Python client, which starts the server itself."""
        command, *rest = self.command(*arguments)
        return StdioServerParameters(command=command, args=rest, env=dict(self.env), cwd=self.directory)

    @asynccontextmanager
    async def started(
        self, *arguments: str, stdout: int = subprocess.PIPE, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[ServerProcess]:
        """Start it with all streams piped; the block ends it if it still runs."""
        process = await anyio.open_process(
            self.command(*arguments),
            stdout=stdout,
            env={**self.env, **(env or {})},
            cwd=self.directory,
            start_new_session=True,
        )
        async with process, background_tasks() as tasks:
            server = ServerProcess(process)
            tasks.start_soon(server.read_errors)
            try:
                yield server
            finally:
                with anyio.CancelScope(shield=True):
                    await server.end()

    @asynccontextmanager
    async def over_http(self, *arguments: str) -> AsyncIterator[HttpServer]:
        """Serve HTTP on a free port, and be ready for clients."""
        async with self.started("--transport", "http", *arguments) as server:
            address = await server.says(_LISTENING)
            token = (self.state_dir / "http-token").read_text(encoding="utf-8").strip()
            yield HttpServer(server, address.removeprefix(_LISTENING), token)


@dataclass
class ServerProcess:
    """A server that was started."""

    process: anyio.abc.Process
    errors: list[str] = field(default_factory=list[str])
    """The lines of its standard error so far."""

    def __post_init__(self) -> None:
        self._news = anyio.Event()
        self._silent = anyio.Event()

    @functools.cached_property
    def stdout(self) -> BufferedByteReceiveStream:
        assert self.process.stdout is not None
        return BufferedByteReceiveStream(self.process.stdout)

    async def read_errors(self) -> None:
        assert self.process.stderr is not None
        stream = BufferedByteReceiveStream(self.process.stderr)
        try:
            while True:
                line = await stream.receive_until(b"\n", 1_000_000)
                self.errors.append(line.decode())
                self._news.set()
                self._news = anyio.Event()
        except (anyio.EndOfStream, anyio.IncompleteRead):
            self._silent.set()

    async def says(self, beginning: str) -> str:
        """The first line on its standard error that begins so."""
        with anyio.fail_after(SECONDS):
            while True:
                for line in self.errors:
                    if line.startswith(beginning):
                        return line
                assert self.process.returncode is None, self.errors
                await self._news.wait()

    async def ended(self) -> int:
        """Wait for its end, and for that of everyone else who could write to its standard error; the exit code."""
        with anyio.fail_after(SECONDS):
            await self._silent.wait()
            return await self.process.wait()

    async def end_by(self, signal: Signals) -> int:
        self.process.send_signal(signal)
        return await self.ended()

    async def end(self) -> None:
        """Ask it to end, if it still runs, and make sure that it does."""
        if self.process.returncode is None:
            self.process.terminate()
            with anyio.move_on_after(_GRACE_SECONDS):
                await self.process.wait()
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@dataclass(frozen=True)
class HttpServer:
    """A server that listens for HTTP."""

    server: ServerProcess
    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        """For the Python client: HTTP with the token."""
        async with (
            httpx2.AsyncClient(headers=self.headers, timeout=SECONDS) as http,
            streamable_http_client(self.url, http_client=http) as streams,
        ):
            yield streams
