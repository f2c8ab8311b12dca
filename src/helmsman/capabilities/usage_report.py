"""Spendings summed up by day, model, directory, session or agent. The sums add up: nothing is in two groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from helmsman.base.structs import replace
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from helmsman.capabilities.spending import Spending
    from helmsman.tasks.prices import Prices

GroupBy = Literal["day", "model", "directory", "session", "agent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGroup:
    """Spending of one day, model, directory, session or agent; `key` is None if that is unknown.

    `cost_usd` is the cost of the part with a price or a reported cost, or None. `unpriced_tokens` are the
    rest.
    """

    key: str | None
    sessions: int
    turns: int
    usage: Usage
    cost_usd: float | None
    unpriced_tokens: int

    @property
    def tokens(self) -> int:
        return tokens(self.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """Spending in groups. Days are in order, oldest first; everything else by spending, most first."""

    group_by: GroupBy
    since: datetime | None
    agent: str | None = None
    groups: tuple[UsageGroup, ...]
    total: UsageGroup
    unpriced_models: tuple[str, ...]
    """Models without a known price."""

    def first(self, count: int | None) -> tuple[Sequence[UsageGroup], Sequence[UsageGroup]]:
        """Return the most important groups, or all, and the rest: the newest days, or the groups with the highest
        spending.
        """
        if count is None or count >= len(self.groups):
            return self.groups, ()
        if self.group_by == "day":
            return self.groups[-count:], self.groups[:-count]
        return self.groups[:count], self.groups[count:]


def tokens(usage: Usage) -> int:
    """Return the number of tokens. Cached ones are part of the input, reasoning ones part of the output."""
    return usage.input_tokens + usage.output_tokens


def report(
    spendings: Iterable[Spending],
    group_by: GroupBy,
    prices: Prices,
    *,
    since: datetime | None = None,
    agent: str | None = None,
) -> UsageReport:
    """Sum up the spending since then, for all agents or one. Days are local days."""
    begin = None if since is None else since.timestamp()
    key_of = _KEYS[group_by]
    sums: dict[str | None, _Sums] = {}
    sessions: set[str | None] = set()
    for spending in spendings:
        if (begin is None or spending.at >= begin) and (agent is None or spending.agent == agent):
            kind = spending.model, spending.cost_usd is not None
            sums.setdefault(key_of(spending), {}).setdefault(kind, _Sum()).add(spending)
            sessions.add(spending.session_id)
    groups = [_group(key, by_model, prices) for key, by_model in sums.items()]
    unpriced = {
        model or "unknown"
        for by_model in sums.values()
        for (model, _), one in by_model.items()
        if one.cost(model, prices) is None
    }
    if group_by == "day":
        groups.sort(key=lambda group: group.key or "")
    else:
        groups.sort(key=lambda group: (-group.tokens, group.key or ""))
    return UsageReport(
        group_by=group_by,
        since=since,
        agent=agent,
        groups=tuple(groups),
        total=replace(merged(groups), sessions=len(sessions)),
        unpriced_models=tuple(sorted(unpriced)),
    )


def merged(groups: Sequence[UsageGroup]) -> UsageGroup:
    """Several groups as one without a name, for a table that has no room for all. Sessions may be counted twice."""
    costs = [group.cost_usd for group in groups if group.cost_usd is not None]
    return UsageGroup(
        key=None,
        sessions=sum(group.sessions for group in groups),
        turns=sum(group.turns for group in groups),
        usage=sum((group.usage for group in groups), Usage()),
        cost_usd=sum(costs) if costs else None,
        unpriced_tokens=sum(group.unpriced_tokens for group in groups),
    )


@dataclass(slots=True)
class _Sum:
    """Spending on one model, either all with a reported cost or all without one."""

    turns: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    billed_as_cached: int = 0
    """Turn is billed for at most its own cached tokens: limited turn by turn, so that costs add up in every grouping.
    """
    told: float | None = None
    sessions: set[str | None] = field(default_factory=set[str | None])

    def add(self, spending: Spending) -> None:
        _, session_id, _, _, _, turns, entered, cached, given, reasoning, told, _, _ = spending
        self.turns += turns
        self.input += entered
        self.cached += cached
        self.output += given
        self.reasoning += reasoning
        self.billed_as_cached += min(entered, cached)
        self.sessions.add(session_id)
        if told is not None:
            self.told = (self.told or 0.0) + told

    @property
    def usage(self) -> Usage:
        return Usage(self.input, self.cached, self.output, self.reasoning)

    def cost(self, model: str | None, prices: Prices) -> float | None:
        usage = replace(self.usage, cached_input_tokens=self.billed_as_cached, cost_usd=self.told)
        return prices.cost(model, usage)


_Sums: TypeAlias = "dict[tuple[str | None, bool], _Sum]"
"""Sums by model, and whether the agents reported the cost."""


def _group(key: str | None, by_model: _Sums, prices: Prices) -> UsageGroup:
    costs = {kind: one.cost(kind[0], prices) for kind, one in by_model.items()}
    known = [cost for cost in costs.values() if cost is not None]
    return UsageGroup(
        key=key,
        sessions=len(set[str | None]().union(*(one.sessions for one in by_model.values()))),
        turns=sum(one.turns for one in by_model.values()),
        usage=sum((one.usage for one in by_model.values()), Usage()),
        cost_usd=sum(known) if known else None,
        unpriced_tokens=sum(tokens(one.usage) for kind, one in by_model.items() if costs[kind] is None),
    )


def _day(spending: Spending) -> str | None:
    return _day_of_quarter(int(spending.at // _QUARTER))


@lru_cache(maxsize=100_000)
def _day_of_quarter(quarter: int) -> str | None:
    """Return the local day. Time zones change at multiples of a quarter of an hour."""
    try:
        return datetime.fromtimestamp(quarter * _QUARTER).strftime("%Y-%m-%d")  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):
        return None


_QUARTER: Final = 15 * 60
_KEYS: Final[Mapping[GroupBy, Callable[[Spending], str | None]]] = {
    "day": _day,
    "model": lambda spending: spending.model,
    "directory": lambda spending: spending.directory,
    "session": lambda spending: spending.session_id,
    "agent": lambda spending: spending.agent,
}
