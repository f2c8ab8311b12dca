"""Servers for the clients of a soak: a `helmsman serve` as a pipe for each, or HTTP on a shared port.

Both connect to the same hub. Hubs and servers may be killed at any time.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import httpx2
import mcp_types as types
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from helmsman.mcp.toolset import ERROR_META
from mcp import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from anyio.abc import Process, TaskStatus
    from mcp.client.session import ElicitationFnT

_LISTENING: Final = "Listening on "
_START_SECONDS: Final = 60
_END_SECONDS: Final = 30
_CALL_SECONDS: Final = 300
"""Timeout of an answer. On a busy machine hubs that are killed in a row make little progress."""
_SERVE: Final = [sys.executable, "-m", "helmsman", "serve", "--tools", "sessions,extras"]


class ToolError(Exception):
    """Error of a tool, with its stable `code`."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(str(content.get("message")))
        self.code = str(content.get("code"))
        self.retryable = bool(content.get("retryable"))


class HungUp(Exception):
    """Raised when the client hangs up during a call."""


class Connects(Protocol):
    """Server that clients connect to."""

    def connection(self) -> AbstractAsyncContextManager[Connection]: ...


class Pipes:
    """Pipes of one kind of client: each connection starts its own `helmsman serve`."""

    def __init__(
        self, env: Mapping[str, str], directory: Path, folder: Path, *, mode: Any, person: ElicitationFnT | None = None
    ) -> None:
        self._env = env
        self._directory = directory
        self._folder = folder
        self._mode = mode
        self._person = person
        self.open: set[int] = set()
        """Processes that are pipes of a client now."""
        self.killed: set[int] = set()

    def kill(self, pid: int) -> None:
        """Kill a pipe. Only its client may notice."""
        self.killed.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        whose = self._folder / f"pipe-{next(_NUMBERS)}"
        command, *words = ["sh", "-c", 'echo $$ >"$0"; exec "$@"', str(whose), *_SERVE]
        with whose.with_suffix(".log").open("w", encoding="utf-8") as errors:
            parameters = StdioServerParameters(command=command, args=words, env=dict(self._env), cwd=self._directory)
            transport = stdio_client(parameters, errlog=errors)
            async with Client(transport, mode=self._mode, elicitation_callback=self._person) as client:
                pid = await _number_in(whose)
                self.open.add(pid)
                try:
                    yield Connection(client, pid)
                finally:
                    self.open.discard(pid)


_NUMBERS: Final = itertools.count(1)


async def _number_in(path: Path) -> int:
    with anyio.fail_after(_START_SECONDS):
        while True:
            with suppress(OSError, ValueError):
                return int(await anyio.Path(path).read_text(encoding="ascii"))
            await anyio.sleep(0.01)


class HttpServer:
    """HTTP server on one port during a soak. It is restarted whenever it ends."""

    def __init__(self, name: str, env: Mapping[str, str], directory: Path, logs: Path) -> None:
        self.name = name
        self.starts = 0
        self.pid = 0
        self._env = env
        self._directory = directory
        self._logs = logs
        self._url = ""
        self._process: Process | None = None
        self._ready = anyio.Event()
        self._closing = False

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keep it running until `close`. Raises when it cannot be started."""
        try:
            while not self._closing:
                await self._start()
                task_status.started()
                task_status = anyio.TASK_STATUS_IGNORED
                assert self._process is not None
                await self._process.wait()
                self._ready = anyio.Event()
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def _start(self) -> None:
        self.starts += 1
        log = self._logs / f"{self.name}-{self.starts}.log"
        with log.open("wb") as errors:
            self._process = await anyio.open_process(
                [*_SERVE, "--transport", "http"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=dict(self._env),
                cwd=self._directory,
                start_new_session=True,
            )
        self.pid = self._process.pid
        with anyio.fail_after(_START_SECONDS):
            while not (address := _address_in(log)):
                if self._process.returncode is not None:
                    raise RuntimeError(f"The server did not start: {log.read_text(encoding='utf-8')[-2000:]}")
                await anyio.sleep(0.05)
        self._url = address
        self._ready.set()

    def kill(self) -> None:
        """Kill it, like the system when memory runs out, or an impatient user."""
        if self._process is not None and self._ready.is_set():
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """Ask it to end, and see to it that it does."""
        self._closing = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        with anyio.move_on_after(_END_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
            raise RuntimeError(f"The server {self.name} did not end within {_END_SECONDS} s of SIGTERM.")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Connect a client as soon as the server is ready."""
        with anyio.fail_after(_START_SECONDS):
            await self._ready.wait()
        token = await anyio.Path(self._env["HELMSMAN_STATE_DIR"], "http-token").read_text(encoding="utf-8")
        headers = {"Authorization": f"Bearer {token.strip()}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=_CALL_SECONDS) as http,
            Client(streamable_http_client(self._url, http_client=http)) as client,
        ):
            yield Connection(client, None)


class Connection:
    """Connected client; `pipe` is its process, if it has its own."""

    def __init__(self, client: Client, pipe: int | None) -> None:
        self._client = client
        self.pipe = pipe

    async def call(self, tool: str, *, hang_up_after: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Call a tool.

        Raises:
            ToolError: It says no.
            HungUp: `hang_up_after` seconds have passed.
            TimeoutError: There was no answer.
        """
        with anyio.move_on_after(hang_up_after if hang_up_after is not None else _CALL_SECONDS):
            result = await self._client.call_tool(tool, arguments)
            assert isinstance(result, types.CallToolResult)
            if result.is_error:
                raise ToolError((result.meta or {}).get(ERROR_META, {}))
            return dict(result.structured_content or {})
        if hang_up_after is None:
            raise TimeoutError(f"{tool} did not answer within {_CALL_SECONDS} s.")
        raise HungUp


def _address_in(log: Path) -> str | None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.removeprefix(_LISTENING) for line in lines if line.startswith(_LISTENING)), None)
