"""Many sessions at once: a hundred started together and finished, and the status of one while fifty are streaming."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import anyio

from bench.figures import Row, Sample, by_turns, compared
from bench.model import ASK_SENTENCE, ASK_STREAM
from bench.place import Place, open_place
from bench.processes import memory_mb
from bench.wire import AppServerWire, McpWire

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
_WAIT = {"timeoutSec": 120}


async def measure(rounds: int = ROUNDS) -> list[Row]:
    async with open_place() as place:
        return [*await _hundred(place, rounds), await _status_under_load(place)]


def _environment(place: Place, name: str) -> Mapping[str, str]:
    return {**place.home(name).env, "CODEX_CLI_PATH": str(place.binary), "MAX_SESSIONS": "1000"}


async def _hundred(place: Place, rounds: int) -> list[Row]:
    command = (sys.executable, "-m", "helmsman", "serve")
    bare = AppServerWire.open((place.binary, "app-server"), place.home("bare").env, place.repository)
    ours = McpWire.open(command, _environment(place, "crowd"), place.repository)
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
    command = (sys.executable, "-m", "helmsman", "serve")
    async with McpWire.open(command, _environment(place, "load"), place.repository) as helmsman:
        ids: list[str] = []
        for _ in range(STREAMING):
            started = await helmsman.call(
                "codex_start", {"prompt": ASK_STREAM, "workingDirectory": str(place.repository)}
            )
            ids.append(started["structuredContent"]["sessionId"])
        taken: list[float] = []
        for number in range(STATUS_CALLS):
            session_id = ids[-1 - number % (STREAMING // 2)]  # the youngest: these stream until the end
            began = time.perf_counter()
            status = await helmsman.call("codex_status", {"sessionId": session_id})
            taken.append(time.perf_counter() - began)
            assert status["structuredContent"]["sessionId"] == session_id
            await anyio.sleep(0.01)
        for session_id in ids:
            await helmsman.call("codex_interrupt", {"sessionId": session_id})
    times = Sample(tuple(taken))
    slowest = times.percentile(99)
    return Row(
        what=f"`codex_status` while {STREAMING} sessions stream, 99th percentile",
        goal=f"under {STATUS_SECONDS * 1000:g} ms",
        helmsman=f"{slowest * 1000:.2f} ms",
        beside=f"median {times.median * 1000:.2f} ms of {STATUS_CALLS}",
        met=slowest < STATUS_SECONDS,
    )
