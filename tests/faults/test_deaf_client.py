"""Tests of a client that writes and does not read: the server does not grow, and other clients are not delayed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.testing import say
from tests.clients.server_process import ServerProcess, Serving
from tests.faults.scene import SECONDS, Scene, bound, needs_proc
from tests.mcp.test_stdio import Pipe

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    needs_proc,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by"),
]

REQUESTS = 600
"""Their answers are some 16 MB."""

PADDING = "x" * 1000
"""So that only a few fit into the pipe."""

MAY_GROW = 8 * 1024 * 1024


def memory(server: ServerProcess) -> int:
    """The server's resident memory in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


class DeafClient:
    """Asks for ever longer than anyone listens."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.pipe = Pipe(server)
        self.asked = 0

    async def ask_much(self) -> None:
        for number in range(1, REQUESTS + 1):
            await self.pipe.send("tools/list", {"_meta": {"padding": PADDING}}, id=10_000 + number)
            self.asked = number

    def close_at_once(self) -> None:
        """Close the pipe with unsent data, like a process that ends."""
        stdin: Any = self._server.process.stdin
        stdin._stream.transport.abort()

    async def until_stuck(self) -> None:
        """Wait until the server takes no more, or has taken all."""
        asked, since = -1, anyio.current_time()
        with anyio.fail_after(SECONDS):
            while self.asked < REQUESTS and anyio.current_time() - since < 1:
                if self.asked != asked:
                    asked, since = self.asked, anyio.current_time()
                await anyio.sleep(0.05)


@bound
async def test_a_client_that_does_not_read_is_waited_for_and_loses_nothing(scene: Scene, serving: Serving) -> None:
    gate = scene.model.gate()
    scene.model.on("work", say("All ", gate, "done."))
    cold = replace(serving, warm=False)  # its memory is looked at
    async with cold.started() as server, anyio.create_task_group() as tasks:
        client = DeafClient(server)
        await client.pipe.initialize()
        await client.pipe.ask("tools/list", {})
        session_id = (await client.pipe.call("codex_start", prompt="work"))["sessionId"]
        with anyio.fail_after(SECONDS):
            await gate.reached()
        before = memory(server)
        tasks.start_soon(client.ask_much)
        await client.until_stuck()
        assert memory(server) - before < MAY_GROW
        gate.release()  # without a reader, the work continues
        async with scene.helmsman() as other:
            with anyio.fail_after(SECONDS):
                while not (found := (await other.tasks.list())[0]) or found[0].is_running:
                    await anyio.sleep(0.05)
            assert found[0].result == "All done."
        answered: set[int] = set()
        while len(answered) < REQUESTS:
            message = await client.pipe.receive()
            answered.add(message["id"])
        assert answered == {10_000 + number for number in range(1, REQUESTS + 1)}
        assert (await client.pipe.call("codex_status", sessionId=session_id))["result"] == "All done."
        await client.pipe.close()
        assert await server.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, None], ids=["by a signal", "by closing its input"])
async def test_a_server_whose_client_does_not_read_can_be_ended(
    serving: Serving, number: signal.Signals | None
) -> None:
    async with serving.started() as server:
        client = DeafClient(server)
        await client.pipe.initialize()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.ask_much)
            await client.until_stuck()
            tasks.cancel_scope.cancel()
        if number is None:
            client.close_at_once()
        else:
            server.process.send_signal(number)
        with anyio.fail_after(SECONDS):
            await server.process.wait()
    assert server.process.returncode == (0 if number is None else 143)
