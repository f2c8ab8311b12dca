"""A client of the app-server that does just enough to drive a real Codex in the tests of the kit itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.testing import CodexHome

OpenAppServer = Callable[[], AbstractAsyncContextManager["RawAppServer"]]

Json = dict[str, Any]
LONGEST_LINE = 16 * 1024 * 1024


class RawAppServer:
    """One request or one turn at a time; everything that arrives meanwhile is kept in `messages`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._last_id = 0
        self.messages: list[Json] = []
        self.thread_id = ""
        self.answer: Callable[[Json], Json] = lambda request: {"decision": "accept"}

    async def send(self, message: Json) -> None:
        await self._stdin.send(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Json:
        message: Json = json.loads(await self._lines.receive_until(b"\n", LONGEST_LINE))
        if "method" in message:
            self.messages.append(message)
            if "id" in message:
                await self.send({"id": message["id"], "result": self.answer(message)})
        return message

    async def request(self, method: str, params: Json) -> Json:
        self._last_id += 1
        await self.send({"id": self._last_id, "method": method, "params": params})
        while True:
            message = await self.receive()
            if message.get("id") == self._last_id and "method" not in message:
                return message

    async def start_thread(self, **params: Any) -> None:
        answer = await self.request("thread/start", params)
        self.thread_id = answer["result"]["thread"]["id"]

    async def start_turn(self, prompt: str, **params: Any) -> str:
        text = {"type": "text", "text": prompt}
        answer = await self.request("turn/start", {"threadId": self.thread_id, "input": [text], **params})
        return str(answer["result"]["turn"]["id"])

    async def wait_for(self, method: str) -> Json:
        """The params of the next notification with this method on our thread."""
        while True:
            message = await self.receive()
            params = message.get("params") or {}
            if message.get("method") == method and params.get("threadId") == self.thread_id:
                return params

    async def run(self, prompt: str, **params: Any) -> Json:
        """A whole turn; what `turn/completed` says of it."""
        await self.start_turn(prompt, **params)
        turn: Json = (await self.wait_for("turn/completed"))["turn"]
        return turn

    def items(self, kind: str) -> list[Json]:
        """The completed items of one kind."""
        done = [message["params"]["item"] for message in self.messages if message["method"] == "item/completed"]
        return [item for item in done if item["type"] == kind]

    def params(self, method: str) -> list[Json]:
        return [message["params"] for message in self.messages if message["method"] == method]


@asynccontextmanager
async def raw_app_server(program: Path, env: Mapping[str, str] | None, cwd: Path) -> AsyncIterator[RawAppServer]:
    async with await anyio.open_process(
        [program, "app-server"], env=env, cwd=cwd, stderr=subprocess.DEVNULL
    ) as process:
        try:
            server = RawAppServer(process)
            client = {"name": "kit", "title": "Kit", "version": "1"}
            capabilities = {"experimentalApi": True}
            await server.request("initialize", {"clientInfo": client, "capabilities": capabilities})
            await server.send({"method": "initialized"})
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                assert process.stdin is not None
                await process.stdin.aclose()
                with anyio.move_on_after(5):
                    await process.wait()
                if process.returncode is None:
                    process.kill()


@pytest.fixture
def app_server(codex_binary: Path, codex_home: CodexHome, folder: Path) -> OpenAppServer:
    """Opens a real app-server: `async with app_server() as server:`."""
    return lambda: raw_app_server(codex_binary, codex_home.env, folder)
