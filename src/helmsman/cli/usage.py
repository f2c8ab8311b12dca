"""`helmsman usage`: show what agents have spent on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import click

from helmsman.base.json_values import iso_time, present
from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_command, option
from helmsman.cli.on_session import short_id, titles, with_helmsman
from helmsman.cli.output import Column, print_list
from helmsman.shapes.rendering import budget_as_dict, spent_as_dict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

    from helmsman.capabilities.budgets import BudgetState
    from helmsman.capabilities.usage_report import GroupBy, UsageGroup, UsageReport
    from helmsman.client import Helmsman

_GROUPS: Final = ("day", "model", "directory", "session", "agent")
_UNKNOWN: Final = "unknown"
_NUMBERS: Final = tuple(Column(name, justify="right") for name in ("TURNS", "INPUT", "CACHED", "OUTPUT", "COST"))


@cli_command(
    "usage",
    "Show what agents have spent.",
    "helmsman usage --since 7d",
    "helmsman usage --since 2026-11-01 --by model",
    "helmsman usage --agent claude --by day",
    "helmsman usage --by session --limit 10 --json",
)
@option("--since TIME", "Only since then: 24h, 7d, 2w ago, or a date.  [default: everything]")
@option("--by", "What to sum up by.", to="group_by", choices=_GROUPS, default="day")
@option("--agent NAME", "Only what this agent has spent, e.g. claude.")
@option("--limit N", "Show at most this many rows; the rest is summed up.", type=click.IntRange(min=1))
def command(since: str | None, group_by: str, agent: str | None, limit: int | None, as_json: bool) -> None:
    """Show the tokens that agents have spent on this machine, with their cost if they report it or a price is known.

    All sessions count, including those made in the terminal. A cost that an agent does not report is computed from the API's
    list prices, whatever your subscription covers. Set a price for another model in helmsman.toml ([prices."name"]). Below
    the table is how much of your budgets is used today ([budget]). Not on a terminal, the columns are separated by tabs:
    key, sessions, turns, input, cached input, output, reasoning output, cost, and with `--by session` what it is about.
    """
    from helmsman.capabilities.usage_report import merged

    by = cast("GroupBy", group_by)

    async def look(helm: Helmsman) -> tuple[UsageReport, tuple[BudgetState, ...]]:
        return await helm.extras.usage.report(since=since, group_by=by, agent=agent), await helm.extras.budgets.states()

    told, budgets = with_helmsman(look)
    groups, rest = told.first(limit)
    others = merged(rest) if rest else None
    # Ids of sessions mean nothing to a person.
    about = titles(group.key for group in groups) if by == "session" else None
    unpriced = ", ".join(map(one_line, told.unpriced_models))
    notes = [f"Without a known price, and so not in the cost (+): {unpriced}."] if unpriced else []
    notes += [f"{state.key}: {_budget(state)}" for state in budgets]
    nothing = 'Nothing was spent yet. Start something: helmsman run "…".'
    if since or agent:
        nothing = "Nothing of that was spent. Leave out --since and --agent to see all."
    print_list(
        _as_dict(told, groups, others, about)
        | ({"budgets": [budget_as_dict(state) for state in budgets]} if budgets else {}),
        [_row(group) + (() if about is None else (about.get(group.key or "", ""),)) for group in groups],
        (
            # Directories differ at their end, ids at both.
            Column(group_by.upper(), "cyan", gives_way="no" if by == "session" else "at its beginning"),
            _of(by),
            *_NUMBERS,
        ),
        lambda _: [
            *(_cells(_name(group, by), _whose(group, about), group) for group in groups),
            *([_cells(f"{len(rest)} others", _whose(others), others, "dim")] if others is not None else ()),
            _cells("total", _whose(told.total), told.total, "bold"),
        ],
        nothing=nothing,
        as_json=as_json,
        note="\n".join(notes) or None,
    )


def _budget(state: BudgetState) -> str:
    words = state.in_words() + (", and is used up" if state.is_used_up else "")
    return words.replace("this project", one_line(state.project or ""))


def _row(group: UsageGroup) -> tuple[str, ...]:
    usage = group.usage
    tokens = (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens, usage.reasoning_output_tokens)
    cost = "" if group.cost_usd is None else f"{group.cost_usd:.6f}"
    return group.key or _UNKNOWN, *map(str, (group.sessions, group.turns, *tokens)), cost


def _as_dict(
    told: UsageReport, groups: Sequence[UsageGroup], others: UsageGroup | None, about: Mapping[str, str] | None
) -> dict[str, Any]:
    shown = {
        "groupBy": told.group_by,
        "since": iso_time(told.since),
        "agent": told.agent,
        "groups": [
            present({"key": group.key or _UNKNOWN, "title": (about or {}).get(group.key or "")}) | spent_as_dict(group)
            for group in groups
        ],
        "others": None if others is None else spent_as_dict(others),
        "total": spent_as_dict(told.total),
        "unpricedModels": list(told.unpriced_models) or None,
    }
    return present(shown)


def _name(group: UsageGroup, group_by: GroupBy) -> str:
    key = one_line(group.key or _UNKNOWN)
    return short_id(key) if group_by == "session" and group.key else key


def _of(by: GroupBy) -> Column:
    """Return the column for the number of sessions, or for the title of a single one."""
    return Column("WHAT", gives_way="at its end") if by == "session" else Column("SESSIONS", justify="right")


def _whose(group: UsageGroup, about: Mapping[str, str] | None = None) -> str:
    return str(group.sessions) if about is None else one_line(about.get(group.key or "", ""))[:500]


def _cells(name: str, whose: str, group: UsageGroup, style: str = "") -> list[Text]:
    from rich.text import Text

    usage = group.usage
    cost = "?" if group.cost_usd is None else f"{_dollars(group.cost_usd)}{'+' if group.unpriced_tokens else ''}"
    numbers = map(_short, (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens))
    return [Text(cell, style) for cell in (name, whose, str(group.turns), *numbers, cost)]


def _dollars(cost: float) -> str:
    """Format a cost to the cent; smaller costs are not shown as zero."""
    return "< $0.01" if 0 < cost < 0.005 else f"${cost:,.2f}"


def _short(count: int) -> str:
    """Format a number briefly: 950, 12.3k, 4.56M."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:,.2f}M"
