"""How many of Codex's events are taken in per second of processor time, beside the `openai-codex` SDK; and what it costs to
hold many sessions.

Both get the same turn from a stand-in for Codex (`bench.replayed_codex`) that writes as fast as it is read, so the time is
their own. Processor time is what counts: how fast the stand-in can write does not matter then.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import replayed_codex
from bench.figures import Row, Sample, by_turns
from bench.peers import sdk_python
from bench.place import MEMORY
from bench.processes import memory_mb
from bench.sdk_client import SdkClient
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

EVENTS = 24_000
ROUNDS = 5
TIMES_SDK = 3.0
HELD = (1, 10, 100, 1000)
MORE = 40
_FACTOR = 1.2
"""Factor by which the time per session may grow before it counts as growth: the figures are small, and machines are
busy.
"""


async def measure(rounds: int = ROUNDS) -> list[Row]:
    with _stand_in() as (binary, folder, env):
        return [await _events(binary, folder, env, rounds), *await _held(binary, folder, env)]


async def quick_ratio(rounds: int = 9) -> float:
    """Processor time for an event, beside that of `json.loads` of its line: needs no peer.

    The least of several rounds, taken by turns: whatever disturbs a round only adds to it.
    """
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        replayed_codex.play("thread", "turn", f"stream {EVENTS}")
    lines = told.getvalue().splitlines()
    ours: list[float] = []
    parsing: list[float] = []
    with _stand_in() as (binary, folder, env):
        async with _helmsman(binary, folder, env) as helm:
            for _ in range(rounds):
                ours.append(await _take_in(helm, folder))
                began = time.process_time()
                for line in lines:
                    json.loads(line)
                parsing.append(time.process_time() - began)
    return min(ours) / min(parsing)


@contextlib.contextmanager
def _stand_in() -> Iterator[tuple[Path, Path, dict[str, str]]]:
    """Yield the stand-in as a program, a folder for it, and an environment."""
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-", dir=MEMORY) as name:
        home = Path(name)
        binary, folder = home / "codex", home / "work"  # sessions must not be able to replace it
        folder.mkdir()
        program = Path(replayed_codex.__file__).read_text(encoding="utf-8")
        binary.write_text(f"#!{sys.executable} -S\n{program}", encoding="utf-8")
        binary.chmod(0o755)
        path = os.environ.get("PATH", os.defpath)
        yield binary, folder, {"PATH": path, "HOME": str(home), "HELMSMAN_STATE_DIR": str(home / "state")}


async def _take_in(helm: HelmsmanService, folder: Path) -> float:
    """Return the processor seconds of one long turn, read to its end."""
    began, events = time.process_time(), 0
    session = await helm.start(f"stream {EVENTS}", cwd=folder)
    async for _event in session.events():
        events += 1
    taken = time.process_time() - began
    assert session.status == "done", session
    assert events >= EVENTS / 15, events  # chunks that arrive together are reported together
    return taken


async def _events(binary: Path, folder: Path, env: dict[str, str], rounds: int) -> Row:
    prompt = f"stream {EVENTS}"
    ours: list[float] = []
    theirs: list[float] = []
    async with _helmsman(binary, folder, env) as helm, SdkClient.open(sdk_python(), binary, env, folder) as sdk:
        for _ in range(rounds + 1):
            ours.append(EVENTS / await _take_in(helm, folder))
            answer = await sdk.run(prompt)
            assert answer["events"] >= EVENTS, answer
            theirs.append(EVENTS / answer["cpu"])
    mine, sdks = Sample(tuple(ours[1:])), Sample(tuple(theirs[1:]))
    ratio = mine.median / sdks.median
    return Row(
        what="events taken in per second of processor time",
        goal=f"at least {TIMES_SDK:g} × the `openai-codex` SDK (stretch: 10 ×)",
        helmsman=f"{mine.median:,.0f}",
        beside=f"SDK {sdks.median:,.0f}",
        ratio=ratio,
        met=ratio >= TIMES_SDK,
    )


async def _held(binary: Path, folder: Path, env: dict[str, str]) -> list[Row]:
    """Measure the cost of one more session while few or many idle ones are held, in alternation."""
    memory: dict[int, float] = {}
    contenders: dict[str, Callable[[], Awaitable[float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        for count in HELD:
            own = {**env, "HELMSMAN_STATE_DIR": str(folder / f"state-{count}")}
            helm = await stack.enter_async_context(_helmsman(binary, folder, own))
            await _one_more(helm, folder)  # modules loaded for the first session do not count
            before = memory_mb(os.getpid())
            while len(helm.sessions) < count:
                await _one_more(helm, folder)
            memory[count] = (memory_mb(os.getpid()) - before) / count
            contenders[str(count)] = partial(_one_more, helm, folder)
        times = list((await by_turns(contenders, MORE)).values())
    return [
        Row(
            what="one more session when 1, 10, 100, 1000 are held, processor time",
            goal="does not grow with their number",
            helmsman=f"{', '.join(f'{sample.median * 1000:.2f}' for sample in times)} ms",
            beside="",
            met=times[-1].median <= times[0].median * _FACTOR,
        ),
        Row(
            what="memory of a held session (of 100, of 1000)",
            goal="does not grow with their number",
            helmsman=f"{memory[100] * 1000:.0f} kB, {memory[1000] * 1000:.0f} kB",
            beside="",
            met=memory[1000] <= max(memory[100] * _FACTOR, 0.1),
        ),
    ]


async def _one_more(helm: HelmsmanService, folder: Path) -> float:
    """Return the processor seconds of one short session, until it is stored completely."""
    began = time.process_time()
    session = await helm.start("hello", cwd=folder)
    await session.wait(until="end")
    await helm.task_writer.write()
    return time.process_time() - began


@asynccontextmanager
async def _helmsman(binary: Path, folder: Path, env: dict[str, str]) -> AsyncIterator[HelmsmanService]:
    flags = {
        "codex_path": str(binary),
        "detach": False,
        "max_sessions": 1000,
        "shell_snapshots": "on",
        "log_level": "error",
    }
    async with HelmsmanService(load_settings(flags, env, folder), env=env) as helm:
        yield helm
