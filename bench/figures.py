"""Figures with their spread, measured in alternation so that noise affects all alike, and table rows of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeated measurements, usually seconds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def percentile(self, percent: int) -> float:
        if len(self.values) == 1:
            return self.values[0]
        return statistics.quantiles(self.values, n=100, method="inclusive")[percent - 1]

    def in_ms(self) -> str:
        median, low, high = (_ms(seconds) for seconds in (self.median, self.percentile(25), self.percentile(75)))
        return f"{median} ms ({low}–{high})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g}" if seconds < 1 else f"{seconds * 1000:,.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Row of the table. `ratio` is compared with a goal that is a ratio; a row without a goal is only shown."""

    what: str
    goal: str
    helmsman: str
    beside: str
    ratio: float | None = None
    met: bool | None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f", ratio {self.ratio:.2f}"
        goal = "" if self.met is None else f" (goal: {self.goal}: {verdict(self)})"
        return f"{self.what}: {self.helmsman}; {self.beside}{ratio}{goal}"


def verdict(row: Row) -> str:
    return "" if row.met is None else "met" if row.met else "NOT met"


def compared(what: str, ours: Sample, theirs: Sample, their_name: str, at_most: float | None) -> Row:
    """Return a row whose goal is a ratio of medians, or without a goal, only the ratio."""
    ratio = ours.median / theirs.median
    return Row(
        what=what,
        goal="none" if at_most is None else f"at most {at_most:g} × {their_name}",
        helmsman=ours.in_ms(),
        beside=f"{their_name} {theirs.in_ms()}",
        ratio=ratio,
        met=None if at_most is None else ratio <= at_most,
    )


async def by_turns(
    contenders: Mapping[str, Callable[[], Awaitable[float]]], rounds: int, warm_up: int = 2, pause: float = 0.0
) -> dict[str, Sample]:
    """Run each contender once per round, in an order that rotates.

    Work that a contender does after its answer falls into the `pause`, not into the time of the next one.
    """
    names = list(contenders)
    for name in names:
        for _ in range(warm_up):
            await contenders[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(await contenders[name]())
            await anyio.sleep(pause)
    return {name: Sample(tuple(values)) for name, values in taken.items()}


def as_table(rows: Sequence[Row]) -> str:
    """Return the rows in Markdown."""
    lines = ["| what | goal | Helmsman | beside | ratio | |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.what} | {row.goal} | {row.helmsman} | {row.beside} | {ratio} | {verdict(row)} |")
    return "\n".join(lines)
