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
from pathlib import Path
from typing import TYPE_CHECKING

from bench import replayed_codex
from bench.figures import Row, Sample
from bench.peers import sdk_python
from bench.place import MEMORY
from bench.processes import memory_mb
from bench.sdk_client import SdkClient
from helmsman import Helmsman
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

EVENTS = 24_000
ROUNDS = 5
TIMES_SDK = 3.0
HELD = (1, 10, 100, 1000)
_FACTOR = 1.5
"""Time for a session may grow by so much before it counts as growing: the figures are small, and machines are busy."""


async def measure(rounds: int = ROUNDS) -> list[Row]:
    with _stand_in() as (binary, folder, env):
        return [await _events(binary, folder, env, rounds), *await _held(binary, folder, env)]


async def quick_ratio(rounds: int = 3) -> float:
    """Processor time for an event, beside that of `json.loads` of its line: needs no peer."""
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        replayed_codex.play("thread", "turn", f"stream {EVENTS}")
    with _stand_in() as (binary, folder, env):
        async with _helmsman(binary, folder, env) as helm:
            ours = Sample(tuple([await _take_in(helm, folder) for _ in range(rounds + 1)][1:]))
    parsing: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        for line in lines.getvalue().splitlines():
            json.loads(line)
        parsing.append(time.process_time() - began)
    return ours.median / Sample(tuple(parsing)).median


@contextlib.contextmanager
def _stand_in() -> Iterator[tuple[Path, Path, dict[str, str]]]:
    """The stand-in as a program, a folder for it, and an environment."""
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-", dir=MEMORY) as name:
        folder = Path(name)
        binary = folder / "codex"
        program = Path(replayed_codex.__file__).read_text(encoding="utf-8")
        binary.write_text(f"#!{sys.executable} -S\n{program}", encoding="utf-8")
        binary.chmod(0o755)
        path = os.environ.get("PATH", os.defpath)
        yield binary, folder, {"PATH": path, "HOME": str(folder), "HELMSMAN_STATE_DIR": str(folder / "state")}


async def _take_in(helm: Helmsman, folder: Path) -> float:
    """Seconds of the processor for one long turn, read to its end."""
    began, events = time.process_time(), 0
    session = await helm.start(f"stream {EVENTS}", cwd=folder)
    async for _event in session.events():
        events += 1
    taken = time.process_time() - began
    assert session.status == "done", session
    assert events >= EVENTS / 15, events  # pieces that come together are told together
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
    """Sessions that have ended their turn and are held: what one more costs, and what looking at one costs."""
    seconds: list[float] = []
    memory: list[float] = []
    async with _helmsman(binary, folder, env) as helm:
        for _ in range(5):  # what is loaded with the first is not what a session costs
            await (await helm.start("hello", cwd=folder)).wait(until="end")
        known, before = len(helm.sessions), memory_mb(os.getpid())
        for count in HELD:
            began, added = time.process_time(), 0
            while len(helm.sessions) - known < count:
                session = await helm.start("hello", cwd=folder)
                await session.wait(until="end")
                added += 1
            seconds.append((time.process_time() - began) / added)
            memory.append((memory_mb(os.getpid()) - before) / count)
    figures = ", ".join(f"{second * 1000:.2f}" for second in seconds)
    return [
        Row(
            what="one more session when 1, 10, 100, 1000 are held, processor time",
            goal="does not grow with their number",
            helmsman=f"{figures} ms",
            beside="",
            met=seconds[3] <= seconds[1] * _FACTOR,
        ),
        Row(
            what="memory of a held session (of 100, of 1000)",
            goal="does not grow with their number",
            helmsman=f"{memory[2] * 1000:.0f} kB, {memory[3] * 1000:.0f} kB",
            beside="",
            met=memory[3] <= max(memory[2] * _FACTOR, 0.1),
        ),
    ]


@asynccontextmanager
async def _helmsman(binary: Path, folder: Path, env: dict[str, str]) -> AsyncIterator[Helmsman]:
    flags = {
        "codex_path": str(binary),
        "detach": False,
        "max_sessions": 1000,
        "shell_snapshots": "on",
        "log_level": "error",
    }
    async with Helmsman(load_settings(flags, env, folder), env=env) as helm:
        yield helm
