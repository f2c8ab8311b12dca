"""`python -m bench.outcomes`: how often a verified outcome is right, by kind of agent, into docs/appendix/outcomes.md."""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import anyio

from bench.outcomes.play import Played, cast, open_stage
from bench.outcomes.report import as_page, goals_missed
from bench.outcomes.tasks import SOURCES, all_tasks
from bench.place import NothingToMeasure
from helmsman.testing import HomeTemplates, ScriptedModel, codex_version, installed_codex

PAGE = Path(__file__).resolve().parents[2] / "docs" / "appendix" / "outcomes.md"


async def played(count: int | None, others: int, side_by_side: int, minutes: float) -> tuple[list[Played], int]:
    """Return the outcomes, and how many jobs there are in all."""
    binary = installed_codex()
    if binary is None:
        raise NothingToMeasure("There is no Codex here. Install openai-codex-cli-bin.")
    for source in SOURCES.values():
        source.fetch()
    outcomes: list[Played] = []
    pairs = cast(all_tasks()[:count], others)
    # A link in this path would look like a directory that was replaced.
    cache = (PAGE.parents[2] / ".cache").resolve()
    with tempfile.TemporaryDirectory(prefix="helmsman-outcomes-", dir=cache) as name:
        folder = Path(name)
        home = HomeTemplates(folder / "template").new_home(binary, folder / "home")
        limiter = anyio.CapacityLimiter(side_by_side)
        until = anyio.current_time() + 60 * minutes
        async with ScriptedModel() as model:
            home.use_model(model.base_url, codex_version(binary))
            async with open_stage(home, binary, model, folder) as stage, anyio.create_task_group() as group:

                async def one(number: int) -> None:
                    async with limiter:
                        if anyio.current_time() > until:
                            return
                        outcome = await stage.play(*pairs[number])
                    outcomes.append(outcome)
                    words = "verified" if outcome.verified else "refused"
                    said = f"{words}, {'right' if outcome.right else 'wrong'}"
                    print(
                        f"{len(outcomes)}/{len(pairs)} {outcome.task}, {outcome.player}: {said}: {outcome.says[:160]}"
                    )
                    sys.stdout.flush()

                for number in range(len(pairs)):
                    group.start_soon(one, number)
    return outcomes, len(pairs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.outcomes")
    parser.add_argument("--tasks", type=int, help="Only the first so many tasks; the page stays as it is.")
    parser.add_argument("--others", type=int, default=2, help="Players of each task besides the honest one.")
    parser.add_argument("--side-by-side", type=int, default=max(2, os.cpu_count() or 2))
    parser.add_argument("--minutes", type=float, default=math.inf, help="Begin no job after so many minutes.")
    given = parser.parse_args()
    try:
        outcomes, planned = anyio.run(played, given.tasks, given.others, given.side_by_side, given.minutes)
    except NothingToMeasure as problem:
        print(problem, file=sys.stderr)
        return 1
    machine = f"Python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f}"
    if len(outcomes) < planned:
        machine += f"; {len(outcomes)} of {planned} jobs, as none was begun after {given.minutes:g} minutes"
    page = as_page(outcomes, f"{datetime.now(UTC):%Y-%m-%d}, {machine}")
    if given.tasks is None:
        PAGE.write_text(page, encoding="utf-8")
    print(page)
    missed = goals_missed(outcomes)
    print("\n".join(missed), file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
