"""Minimal client on the pipes of a program that speaks lines of JSON: `codex app-server`, or an MCP server.

This is the lower bound: no library, only what the protocol requires.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.base.concurrency import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

Message = dict[str, Any]

_LONGEST_LINE = 100_000_000
_SECONDS = 300
_GRACE_SECONDS = 10
_CLIENT = {"name": "bench", "title": "Bench", "version": "1"}


class Wire:
    """Requests, their answers, and all other messages."""

    version: ClassVar[Mapping[str, str]] = {}

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        self._asked = 0
        self._answers: dict[int, tuple[anyio.Event, list[Message]]] = {}
        self.on_message: Callable[[Message], None] = lambda _message: None
        """Called with every notification and request of the other side."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self) -> None:
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", _LONGEST_LINE)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
                return
            self.take(json.loads(line))

    def take(self, message: Message) -> None:
        if "method" in message:
            self.on_message(message)
        elif (waiting := self._answers.pop(message["id"], None)) is not None:
            waiting[1].append(message)
            waiting[0].set()

    async def send(self, message: Message) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps({**self.version, **message}).encode() + b"\n")

    async def request(self, method: str, params: Message) -> Message:
        """Return the result of a request."""
        self._asked += 1
        number, waiting = self._asked, (anyio.Event(), list[Message]())
        self._answers[number] = waiting
        await self.send({"id": number, "method": method, "params": params})
        with anyio.fail_after(_SECONDS):
            await waiting[0].wait()
        answer = waiting[1][0]
        if "result" not in answer:
            raise RuntimeError(f"{method} failed: {answer}")
        result: Message = answer["result"]
        return result

    async def shake_hands(self) -> None:
        raise NotImplementedError

    @classmethod
    @asynccontextmanager
    async def open(cls, command: Sequence[str | Path], env: Mapping[str, str], directory: Path) -> AsyncIterator[Self]:
        """Start the program and shake hands; the block ends it."""
        words = [os.fspath(word) for word in command]
        process = await anyio.open_process(
            words, env=env, cwd=directory, stderr=subprocess.DEVNULL, start_new_session=True
        )
        async with background_tasks() as tasks:
            wire = cls(process)
            tasks.start_soon(wire.read)
            try:
                await wire.shake_hands()
                yield wire
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)


async def _end(process: anyio.abc.Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    for stop in (None, process.terminate, process.kill):
        if process.returncode is None:
            if stop is not None:
                stop()
            with anyio.move_on_after(_GRACE_SECONDS):
                await process.wait()
    await process.aclose()


class McpWire(Wire):
    """Client of an MCP server."""

    version: ClassVar[Mapping[str, str]] = {"jsonrpc": "2.0"}

    async def shake_hands(self) -> None:
        await self.request(
            "initialize",
            {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}, "clientInfo": _CLIENT},
        )
        await self.send({"method": "notifications/initialized", "params": {}})

    async def call(self, tool: str, arguments: Message) -> Message:
        """Return the result of a tool, which must not be an error."""
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise RuntimeError(f"{tool} failed: {result}")
        return result


class AppServerWire(Wire):
    """Client of `codex app-server`."""

    def __init__(self, process: anyio.abc.Process) -> None:
        super().__init__(process)
        self.on_message = self._take
        self.on_request: Callable[[Message], None] = lambda _request: None
        self._ended: dict[str, anyio.Event] = {}

    async def shake_hands(self) -> None:
        await self.request("initialize", {"clientInfo": _CLIENT, "capabilities": {"experimentalApi": True}})
        await self.send({"method": "initialized"})

    def _take(self, message: Message) -> None:
        if "id" in message:
            self.on_request(message)
        elif message["method"] == "turn/completed":
            self._ended.setdefault(message["params"]["threadId"], anyio.Event()).set()

    async def start(self, prompt: str, directory: Path, **thread: Any) -> str:
        """Return a thread and its first turn; returns when Codex has acknowledged both."""
        started = await self.request("thread/start", {"cwd": str(directory), **thread})
        thread_id: str = started["thread"]["id"]
        text = {"type": "text", "text": prompt}
        await self.request("turn/start", {"threadId": thread_id, "input": [text]})
        return thread_id

    async def ended(self, thread_id: str) -> None:
        """Wait for the end of a thread's turn."""
        with anyio.fail_after(_SECONDS):
            await self._ended.setdefault(thread_id, anyio.Event()).wait()
        del self._ended[thread_id]
