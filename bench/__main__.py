"""`python -m bench`: every measurement, one after the other, and the table of them in `docs/appendix/performance.md`.

`python -m bench NAME …` runs only those, and writes nothing. `python -m bench --check` is the quick comparison for CI: the
few ratios that matter most, beside the bounds in `bench/bounds.toml`; with names, only those of startup, turns and intake.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from bench import (
    agents,
    answering,
    commands,
    crowd,
    idle,
    intake,
    listing,
    routing,
    run_request,
    schemas,
    scrolling,
    search,
    startup,
    store,
    turns,
    usage,
)
from bench.figures import Row, as_table
from bench.peers import NPM_SERVER, PYTHON_SDK
from bench.place import LAST_WITH_SERVER, NothingToMeasure
from helmsman._version import __version__
from helmsman.testing.binaries import codex_version, installed_codex

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

MEASUREMENTS = (
    startup,
    commands,
    turns,
    agents,
    crowd,
    idle,
    intake,
    answering,
    listing,
    routing,
    run_request,
    usage,
    search,
    store,
    schemas,
    scrolling,
)
"""Measurements. Each returns rows of the table."""

PAGE = Path(__file__).resolve().parent.parent / "docs" / "appendix" / "performance.md"
BOUNDS = Path(__file__).resolve().parent / "bounds.toml"
BEGIN, END = "<!-- measured -->\n", "<!-- end of what is measured -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = {_name(module): module for module in MEASUREMENTS}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(known)}")
    parser.add_argument("--check", action="store_true", help="only compare a few ratios with bench/bounds.toml")
    given = parser.parse_args()
    if given.check:
        known = {name: module for name, module in known.items() if name in QUICK}
    if unknown := set(given.names) - known.keys():
        parser.error(f"there is no measurement {', '.join(unknown)}")
    if given.check:
        return int(not check(given.names or known))
    wanted = [module for name, module in known.items() if not given.names or name in given.names]
    before = os.getloadavg() if hasattr(os, "getloadavg") else (0.0,)
    began, rows, met = time.monotonic(), list[Row](), True
    for module in wanted:
        print(f"== {_name(module)}: {(module.__doc__ or '').partition('.')[0]}.", flush=True)
        try:
            found = anyio.run(module.measure)
        except NothingToMeasure as problem:
            print(problem)
            met = False
            continue
        rows += found
        for row in found:
            print(row, flush=True)
    if not given.names:
        _write(rows, time.monotonic() - began, before[0])
    return int(not met or any(row.met is False for row in rows))


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _write(rows: list[Row], seconds: float, load: float) -> None:
    """Put the table into the page, between the marks."""
    binary = installed_codex()
    installed = ".".join(map(str, codex_version(binary))) if binary is not None else "none"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, load {load:.1f} before it began"
    told = f"""
{as_table(rows)}

Measured on {datetime.now(UTC):%Y-%m-%d} in {seconds / 60:.0f} minutes, with Helmsman {__version__} and Python
{platform.python_version()} on {machine}.
Turns on Codex {LAST_WITH_SERVER}, all else on Codex {installed}; peers {NPM_SERVER} and {PYTHON_SDK}.
Medians, quartiles in parentheses.

"""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}{told}{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"The table is in {PAGE}.")


def check(names: Iterable[str]) -> bool:
    """Compare the ratios that matter most with their bounds; whether none is clearly worse.

    What seems to be is measured once more: a loss is there again, a disturbance is not.
    """
    bounds = tomllib.loads(BOUNDS.read_text(encoding="utf-8"))
    ratios: dict[str, float] = {}
    for measure in map(QUICK.__getitem__, names):
        found = anyio.run(measure)
        if any(ratio > bounds[name]["at_most"] for name, ratio in found.items()):
            print("Measured again, because of", ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
            again = anyio.run(measure)
            found = {name: min(ratio, again[name]) for name, ratio in found.items()}
        ratios |= found
    fine = True
    for name, ratio in ratios.items():
        at_most = bounds[name]["at_most"]
        worse = ratio > at_most
        fine = fine and not worse
        print(f"{name:24} {ratio:5.2f}  (at most {at_most:g}){'  WORSE' if worse else ''}")
    return fine


async def _startup() -> dict[str, float]:
    return {"startup": await startup.quick_ratio()}


async def _intake() -> dict[str, float]:
    return {"event_beside_json": await intake.quick_ratio()}


async def _tokens() -> dict[str, float]:
    return {"tokens_of_the_listing": await schemas.quick_ratio()}


QUICK = {"startup": _startup, "turns": turns.quick_ratios, "intake": _intake, "schemas": _tokens}
"""Most important ratios."""


if __name__ == "__main__":
    sys.exit(main())
