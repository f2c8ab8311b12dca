"""Measure the time from the spawn of `helmsman serve` to its first reply, compared with an empty server on the same
SDK.

With a running hub, without one, and with the service inside the process. Also measure one more client, an idle server
and an idle hub.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from bench.figures import Row, by_turns, compared
from bench.place import open_place
from bench.processes import cpu_seconds, cpu_seconds_with_ended, memory_mb
from bench.wire import McpWire
from helmsman.testing.hubs import end_hub, hub_pid

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS = 12
AT_MOST = 1.15
HUB_AT_MOST = 0.05
NO_HUB_AT_MOST = 1.2
_CLIENTS = 10
_CLIENT_MB = 12
_IDLE_SECONDS = 60
_IDLE_AT_MOST = 0.1
_SCHEDULES = 10

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

        hubs = {**env, "HELMSMAN_DETACH": "1"}
        warm, cold, scheduled = (
            {**hubs, "HELMSMAN_STATE_DIR": str(place.folder / name)} for name in ("warm", "cold", "scheduled")
        )

        async def through_hub(env: Mapping[str, str], *, is_new: bool) -> float:
            if is_new:
                end_hub(Path(env["HELMSMAN_STATE_DIR"]))
            return (await anyio.to_thread.run_sync(_first_reply, HELMSMAN, env, place.repository))[0]

        try:
            times = await by_turns(
                {
                    "inside": lambda: spawn(HELMSMAN),
                    "empty": lambda: spawn(empty),
                    "hub there": lambda: through_hub(warm, is_new=False),
                    "no hub": lambda: through_hub(cold, is_new=True),
                },
                rounds,
            )
            beside = times["empty"], "an empty server"
            return [
                compared("spawn to first reply, hub running", times["hub there"], *beside, HUB_AT_MOST),
                compared("spawn to first reply, no hub there", times["no hub"], *beside, NO_HUB_AT_MOST),
                compared("spawn to first reply, service inside", times["inside"], *beside, AT_MOST),
                await _one_more_client(warm, place.repository),
                await _idle(env, place.repository),
                await _idle_hub(scheduled, place.repository),
            ]
        finally:
            for state in (warm, cold, scheduled):
                end_hub(Path(state["HELMSMAN_STATE_DIR"]))


async def _one_more_client(env: Mapping[str, str], directory: Path) -> Row:
    """Measure the memory of a client's pipe, and the growth of the hub for it."""
    async with AsyncExitStack() as clients:

        async def connect() -> float:
            client = await clients.enter_async_context(McpWire.open(HELMSMAN, env, directory))
            await client.call("codex_list", {})
            return memory_mb(client.pid)

        hub = hub_pid(Path(env["HELMSMAN_STATE_DIR"])) or 0
        await connect()
        before = memory_mb(hub)
        pipes = [await connect() for _ in range(_CLIENTS)]
        more = (sum(pipes) + memory_mb(hub) - before) / _CLIENTS
    return Row(
        what="memory of one more client, pipe and hub together",
        goal=f"at most {_CLIENT_MB} MB",
        helmsman=f"{more:.1f} MB",
        beside=f"over {_CLIENTS} clients",
        met=more <= _CLIENT_MB,
    )


async def quick_ratio(rounds: int = 5) -> float:
    """Return the processor time until the first reply relative to an empty server, which is robust on a busy machine."""
    empty = (sys.executable, "-c", EMPTY_SERVER)
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-") as folder:
        env = {**os.environ, "HELMSMAN_DETACH": "0", "HELMSMAN_STATE_DIR": folder}

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
    """Measure an idle server with an open engine."""
    async with McpWire.open(HELMSMAN, env, directory) as client:
        await client.call("codex_list", {})
        return await _idle_row("processor time of an idle server", client.pid)


async def _idle_hub(env: Mapping[str, str], directory: Path) -> Row:
    """Measure a hub without clients that must check the clock."""
    async with McpWire.open((*HELMSMAN, "--tools", "extras"), env, directory) as client:
        for hour in range(_SCHEDULES):
            arguments = {"action": "add", "prompt": "Look at it", "cron": f"30 {hour} 29 2 *"}
            await client.call("codex_schedule", arguments)
    hub = hub_pid(Path(env["HELMSMAN_STATE_DIR"])) or 0
    return await _idle_row(f"processor time of an idle hub with {_SCHEDULES} schedules", hub)


async def _idle_row(what: str, pid: int) -> Row:
    await anyio.sleep(2)
    before = cpu_seconds_with_ended(pid)
    await anyio.sleep(_IDLE_SECONDS)
    percent = (cpu_seconds_with_ended(pid) - before) / _IDLE_SECONDS * 100
    return Row(
        what=what,
        goal=f"under {_IDLE_AT_MOST:g} %",
        helmsman=f"{percent:.3f} %",
        beside=f"over {_IDLE_SECONDS} s",
        met=percent < _IDLE_AT_MOST,
    )
