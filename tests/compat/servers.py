"""The built-in `codex mcp-server` and Helmsman in its place, each as a process, and a client that believes nothing.

The client writes and reads lines of JSON, keeps every message in the order it came, and answers what the server asks as it
is told. So the same script can be played to both servers, and what they did be compared.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.base.concurrency import background_tasks
from helmsman.testing import CodexHome
from tests import warm

Message: TypeAlias = dict[str, Any]
ServerName = Literal["original", "helmsman"]

SECONDS = 60
_GRACE_SECONDS = 10
_LONGEST_LINE = 50_000_000
_CLIENT = {"name": "pipe", "version": "1"}
PROTOCOL = "2025-06-18"


@dataclass(frozen=True)
class Server:
    """How to start one of the two."""

    name: ServerName
    command: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path

    @classmethod
    def original(cls, binary: Path, home: CodexHome, directory: Path) -> Server:
        return cls("original", (str(binary), "mcp-server"), home.env, directory)

    @classmethod
    def helmsman(cls, binary: Path, home: CodexHome, directory: Path, **env: str) -> Server:
        measured = {name: value for name, value in os.environ.items() if name.startswith("COV")}
        command = tuple(warm.command("serve", "--tools", "compat"))
        bound = {"CODEX_CLI_PATH": str(binary), "HELMSMAN_DETACH": "0"}  # as with the original, nothing stays behind
        return cls("helmsman", command, {**home.env, **measured, **bound, **env}, directory)

    @asynccontextmanager
    async def connected(self, *, elicits: bool = True) -> AsyncIterator[Client]:
        """Start it and shake hands; the block ends it."""
        process = await anyio.open_process(
            self.command, env=self.env, cwd=self.directory, stderr=subprocess.DEVNULL, start_new_session=True
        )
        async with process, background_tasks() as tasks:
            client = Client(process)
            tasks.start_soon(client.read)
            try:
                capabilities: Message = {"elicitation": {}} if elicits else {}
                hello = {"protocolVersion": PROTOCOL, "capabilities": capabilities, "clientInfo": _CLIENT}
                client.hello = await client.request("initialize", hello)
                await client.notify("notifications/initialized")
                yield client
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)


async def _end(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(_GRACE_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


class Client:
    """Writes and reads lines."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.hello: Message = {}
        self.received: list[Message] = []
        """Everything the server said, in order."""
        self.reply: Callable[[Message], Message | None] = lambda _request: None
        """Reply to a request of the server: `{"result": …}` or `{"error": …}`; None leaves it open."""
        self._process = process
        self._asked = 0
        self._news = anyio.Event()

    async def read(self) -> None:
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", _LONGEST_LINE)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
                return
            message: Message = json.loads(line)
            self.received.append(message)
            self._news.set()
            self._news = anyio.Event()
            if "method" in message and "id" in message and (answer := self.reply(message)) is not None:
                await self._send({"id": message["id"], **answer})

    async def _send(self, message: Message) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def notify(self, method: str, params: Message | None = None) -> None:
        await self._send({"method": method, "params": params or {}})

    async def begin(self, method: str, params: Message) -> int:
        """Send a request; its id."""
        self._asked += 1
        await self._send({"id": self._asked, "method": method, "params": params})
        return self._asked

    async def answer(self, request_id: int) -> Message:
        """The whole answer to a request."""
        return await self.until(lambda message: message.get("id") == request_id and "method" not in message)

    async def until_any_answer(self, requests: tuple[int, ...]) -> Message:
        return await self.until(lambda message: message.get("id") in requests and "method" not in message)

    async def request(self, method: str, params: Message) -> Message:
        return await self.answer(await self.begin(method, params))

    async def begin_call(self, tool: str, arguments: Message, **meta: Any) -> int:
        params = {"name": tool, "arguments": arguments}
        return await self.begin("tools/call", {**params, "_meta": meta} if meta else params)

    async def call(self, tool: str, arguments: Message, **meta: Any) -> Message:
        """The result of a call."""
        answer = await self.answer(await self.begin_call(tool, arguments, **meta))
        result: Message = answer["result"]
        return result

    async def cancel(self, request_id: int) -> None:
        await self.notify("notifications/cancelled", {"requestId": request_id, "reason": "enough"})

    async def until(self, is_it: Callable[[Message], bool]) -> Message:
        """The first message of this kind, past or to come."""
        with anyio.fail_after(SECONDS):
            while True:
                for message in self.received:
                    if is_it(message):
                        return message
                await self._news.wait()

    async def until_event(self, kind: str, request_id: int) -> Message:
        """The first `codex/event` of a kind that belongs to a call."""

        def is_it(message: Message) -> bool:
            return (
                message.get("method") == "codex/event"
                and message["params"]["msg"]["type"] == kind
                and message["params"]["_meta"]["requestId"] == request_id
            )

        return await self.until(is_it)

    def events(self, request_id: int | None = None) -> list[Message]:
        """The `codex/event` messages so far, of one call or of all."""
        return [
            message["params"]["msg"]
            for message in self.received
            if message.get("method") == "codex/event" and request_id in (None, message["params"]["_meta"]["requestId"])
        ]
