"""Measure many concurrent sessions: a hundred started together, and the status of one while fifty stream."""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from bench.figures import Row, Sample, by_turns, compared
from bench.model import ASK_SENTENCE, ASK_STREAM
from bench.place import Place, open_place
from bench.processes import memory_mb
from bench.wire import AppServerWire, McpWire
from helmsman.agents.supervisor.records import read_records
from helmsman.testing.hubs import end_hub

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSIONS = 100
ROUNDS = 3
AT_MOST = 1.1
MEMORY_MB = 150.0
MEMORY_MB_EACH = 0.3
STREAMING = 50
STATUS_CALLS = 500
STATUS_SECONDS = 0.005
CLIENTS = 20
HUB_STATUS_SECONDS = 0.010
HELMSMAN = (sys.executable, "-m", "helmsman", "serve")
_WAIT = {"timeoutSec": 120}


async def measure(rounds: int = ROUNDS) -> list[Row]:
    async with open_place() as place:
        rows = await _hundred(place, rounds)
        return [*rows, await _status_under_load(place), await _status_through_hub(place)]


def _environment(place: Place, name: str) -> Mapping[str, str]:
    return {**place.home(name).env, "CODEX_CLI_PATH": str(place.binary), "MAX_SESSIONS": "1000"}


async def _hundred(place: Place, rounds: int) -> list[Row]:
    bare = AppServerWire.open((place.binary, "app-server"), place.home("bare").env, place.repository)
    ours = McpWire.open(HELMSMAN, _environment(place, "crowd"), place.repository)
    async with bare as limit, ours as helmsman:
        await _session(helmsman, place)
        before = memory_mb(helmsman.pid)

        async def all_bare() -> float:
            async def one() -> None:
                await limit.ended(await limit.start(ASK_SENTENCE, place.repository))

            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for _ in range(SESSIONS):
                    tasks.start_soon(one)
            return time.perf_counter() - began

        async def all_ours() -> float:
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for _ in range(SESSIONS):
                    tasks.start_soon(_session, helmsman, place)
            return time.perf_counter() - began

        times = await by_turns({"bare": all_bare, "helmsman": all_ours}, rounds, warm_up=0)
        after = memory_mb(helmsman.pid)
        each = (after - before) / (rounds * SESSIONS)
    return [
        compared(f"{SESSIONS} sessions at once, all finished", times["helmsman"], times["bare"], "bare", AT_MOST),
        Row(
            what=f"memory of the server after {rounds * SESSIONS} sessions",
            goal=f"at most {MEMORY_MB:g} MB, {MEMORY_MB_EACH:g} MB a session",
            helmsman=f"{after:.0f} MB, {each:.3f} MB a session",
            beside=f"{before:.0f} MB after one",
            met=after <= MEMORY_MB and each <= MEMORY_MB_EACH,
        ),
    ]


async def _session(client: McpWire, place: Place) -> None:
    started = await client.call("codex_start", {"prompt": ASK_SENTENCE, "workingDirectory": str(place.repository)})
    session_id = started["structuredContent"]["sessionId"]
    ended = (await client.call("codex_wait", {"sessionId": session_id, **_WAIT}))["structuredContent"]
    assert ended["status"] == "done", ended


async def _status_under_load(place: Place) -> Row:
    async with McpWire.open(HELMSMAN, _environment(place, "load"), place.repository) as helmsman:
        times = await _status_times(place, [helmsman])
    return _status_row(f"`codex_status` while {STREAMING} sessions stream, 99th percentile", times, STATUS_SECONDS)


async def _status_through_hub(place: Place) -> Row:
    """Measure the same through the hub, which serves all clients from one process."""
    env = {**_environment(place, "hub"), "HELMSMAN_DETACH": "1"}
    try:
        async with AsyncExitStack() as visits:
            clients = [
                await visits.enter_async_context(McpWire.open(HELMSMAN, env, place.repository)) for _ in range(CLIENTS)
            ]
            times = await _status_times(place, clients)
    finally:
        state_dir = Path(env["HELMSMAN_STATE_DIR"])
        end_hub(state_dir)
        for record in read_records(state_dir):
            record.stop()
    return _status_row(
        f"`codex_status` with {CLIENTS} clients on the hub and {STREAMING} sessions that stream, 99th percentile",
        times,
        HUB_STATUS_SECONDS,
    )


async def _status_times(place: Place, clients: list[McpWire]) -> Sample:
    ids: list[str] = []
    for number in range(STREAMING):
        started = await clients[number % len(clients)].call(
            "codex_start", {"prompt": ASK_STREAM, "workingDirectory": str(place.repository)}
        )
        ids.append(started["structuredContent"]["sessionId"])
    taken: list[float] = []
    for number in range(STATUS_CALLS):
        session_id = ids[-1 - number % (STREAMING // 2)]  # the youngest: these stream until the end
        began = time.perf_counter()
        status = await clients[number % len(clients)].call("codex_status", {"sessionId": session_id})
        taken.append(time.perf_counter() - began)
        assert status["structuredContent"]["sessionId"] == session_id
        await anyio.sleep(0.01)
    for session_id in ids:
        await clients[0].call("codex_interrupt", {"sessionId": session_id})
    return Sample(tuple(taken))


def _status_row(what: str, times: Sample, at_most: float) -> Row:
    slowest = times.percentile(99)
    return Row(
        what=what,
        goal=f"under {at_most * 1000:g} ms",
        helmsman=f"{slowest * 1000:.2f} ms",
        beside=f"median {times.median * 1000:.2f} ms of {STATUS_CALLS}",
        met=slowest < at_most,
    )
