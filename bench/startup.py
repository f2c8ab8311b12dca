"""From the spawn of `helmsman serve` to its first reply, beside an empty server on the same SDK.

And what a server that nobody talks to costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from bench.figures import Row, by_turns, compared
from bench.place import open_place
from bench.processes import cpu_seconds
from bench.wire import McpWire

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS = 12
AT_MOST = 1.15
_IDLE_SECONDS = 20
_IDLE_AT_MOST = 0.1

EMPTY_SERVER = """
import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
async def main():
    server = Server("empty")
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())
anyio.run(main)
"""
HELMSMAN = (sys.executable, "-m", "helmsman", "serve")


async def measure(rounds: int = ROUNDS) -> list[Row]:
    async with open_place() as place:
        home = place.home("home")
        env = {**home.env, "CODEX_CLI_PATH": str(place.binary)}
        empty = (sys.executable, "-c", EMPTY_SERVER)

        async def spawn(command: tuple[str, ...]) -> float:
            return (await anyio.to_thread.run_sync(_first_reply, command, env, place.repository))[0]

        times = await by_turns({"helmsman": lambda: spawn(HELMSMAN), "empty": lambda: spawn(empty)}, rounds)
        return [
            compared("spawn to first reply", times["helmsman"], times["empty"], "an empty server", AT_MOST),
            await _idle(env, place.repository),
        ]


async def quick_ratio(rounds: int = 5) -> float:
    """Processor time until the first reply, beside an empty server: what is left of it on a busy machine."""
    env = dict(os.environ)
    empty = (sys.executable, "-c", EMPTY_SERVER)
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-") as folder:

        async def spawn(command: tuple[str, ...]) -> float:
            return (await anyio.to_thread.run_sync(_first_reply, command, env, Path(folder)))[1]

        times = await by_turns({"helmsman": lambda: spawn(HELMSMAN), "empty": lambda: spawn(empty)}, rounds, warm_up=1)
    return times["helmsman"].median / times["empty"].median


def _first_reply(command: tuple[str, ...], env: Mapping[str, str], directory: Path) -> tuple[float, float]:
    """Seconds by the clock and by the processor; one process, one line each way, and nothing else in between."""
    hello = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        b'"clientInfo":{"name":"bench","version":"1"}}}\n'
    )
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=env, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(hello)
        process.stdin.flush()
        answer = process.stdout.readline()
        taken = time.perf_counter() - began, cpu_seconds(process.pid)
        assert b'"result"' in answer, answer
        process.stdin.close()
        process.wait(60)
    return taken


async def _idle(env: Mapping[str, str], directory: Path) -> Row:
    """A server with its engine open, and nothing to do."""
    async with McpWire.open(HELMSMAN, env, directory) as client:
        await client.call("codex_list", {})
        await anyio.sleep(2)
        before = cpu_seconds(client.pid)
        await anyio.sleep(_IDLE_SECONDS)
        percent = (cpu_seconds(client.pid) - before) / _IDLE_SECONDS * 100
    return Row(
        what="processor time of an idle server",
        goal=f"under {_IDLE_AT_MOST:g} %",
        helmsman=f"{percent:.3f} %",
        beside=f"over {_IDLE_SECONDS} s",
        met=percent < _IDLE_AT_MOST,
    )
