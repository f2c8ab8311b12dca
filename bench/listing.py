"""`codex_list` with ten thousand sessions on disk, beside Codex's own `thread/list`.

The files are made up, of the size and shape that Codex writes, and have been written just before: it is not the disk that is
measured. Cold is the first list of a process that has never seen them.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from bench.figures import Row, Sample
from bench.place import Place, open_place
from bench.usage import write_sessions
from bench.wire import AppServerWire, McpWire

if TYPE_CHECKING:
    from helmsman.testing import CodexHome

SESSIONS = 10_000
PAGE = 50
WARM_CALLS = 30
WARM_SECONDS = 0.05
COLD_AT_MOST = 1.5


async def measure() -> list[Row]:
    async with open_place() as place:
        theirs, ours = place.home("bare"), place.home("helmsman")
        for home in (theirs, ours):
            write_sessions(home.path, SESSIONS)
        cold_bare, warm_bare = await _codex(place, theirs)
        cold, warm = await _helmsman(place, ours)
    return [
        Row(
            what=f"`codex_list`, {SESSIONS} sessions, warm",
            goal=f"under {WARM_SECONDS * 1000:g} ms",
            helmsman=warm.in_ms(),
            beside=f"thread/list {warm_bare.in_ms()}",
            ratio=warm.median / warm_bare.median,
            met=warm.median < WARM_SECONDS,
        ),
        Row(
            what=f"`codex_list`, {SESSIONS} sessions, cold",
            goal=f"at most {COLD_AT_MOST:g} × thread/list",
            helmsman=f"{cold * 1000:.0f} ms",
            beside=f"thread/list {cold_bare * 1000:.0f} ms",
            ratio=cold / cold_bare,
            met=cold <= COLD_AT_MOST * cold_bare,
        ),
    ]


async def _codex(place: Place, home: CodexHome) -> tuple[float, Sample]:
    async with AppServerWire.open((place.binary, "app-server"), home.env, place.repository) as client:
        began = time.perf_counter()
        request = {"limit": PAGE, "modelProviders": [], "sourceKinds": ["vscode", "exec", "cli", "appServer"]}
        listed = await client.request("thread/list", request)
        cold = time.perf_counter() - began
        assert len(listed["data"]) == PAGE, listed
        taken: list[float] = []
        for _ in range(WARM_CALLS):
            began = time.perf_counter()
            await client.request("thread/list", request)
            taken.append(time.perf_counter() - began)
    return cold, Sample(tuple(taken))


async def _helmsman(place: Place, home: CodexHome) -> tuple[float, Sample]:
    env = {**home.env, "CODEX_CLI_PATH": str(place.binary)}
    async with McpWire.open((sys.executable, "-m", "helmsman", "serve"), env, place.repository) as client:
        began = time.perf_counter()
        taken: list[float] = []
        for _ in range(WARM_CALLS + 1):
            listed = await client.call("codex_list", {"limit": PAGE})
            taken.append(time.perf_counter() - began)
            assert len(listed["structuredContent"]["sessions"]) == PAGE
            began = time.perf_counter()
    return taken[0], Sample(tuple(taken[1:]))
