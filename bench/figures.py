"""Figures with their spread, taken by turns so that noise hits all alike, and the rows they make."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds (or whatever else), many times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def percentile(self, percent: int) -> float:
        if len(self.values) == 1:
            return self.values[0]
        return statistics.quantiles(self.values, n=100, method="inclusive")[percent - 1]

    def in_ms(self) -> str:
        low, high = self.percentile(25) * 1000, self.percentile(75) * 1000
        return f"{self.median * 1000:.3g} ms ({low:.3g}–{high:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `ratio` is what a goal that is a ratio is compared with."""

    what: str
    goal: str
    helmsman: str
    beside: str
    ratio: float | None = None
    met: bool

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f", ratio {self.ratio:.2f}"
        return f"{self.what}: {self.helmsman}; {self.beside}{ratio} (goal: {self.goal}: {verdict(self)})"


def verdict(row: Row) -> str:
    return "met" if row.met else "NOT met"


def compared(what: str, ours: Sample, theirs: Sample, their_name: str, at_most: float) -> Row:
    """A row whose goal is a ratio of medians."""
    ratio = ours.median / theirs.median
    return Row(
        what=what,
        goal=f"at most {at_most:g} × {their_name}",
        helmsman=ours.in_ms(),
        beside=f"{their_name} {theirs.in_ms()}",
        ratio=ratio,
        met=ratio <= at_most,
    )


async def by_turns(
    contenders: Mapping[str, Callable[[], Awaitable[float]]], rounds: int, warm_up: int = 2, pause: float = 0.0
) -> dict[str, Sample]:
    """Each contender once a round, in an order that moves on with every round.

    What one of them goes on doing after it has answered falls into the `pause`, and not into the time of the next.
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
    """The rows in Markdown."""
    lines = ["| what | goal | Helmsman | beside | ratio | |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.what} | {row.goal} | {row.helmsman} | {row.beside} | {ratio} | {verdict(row)} |")
    return "\n".join(lines)
