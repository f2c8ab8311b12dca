"""`helmsman usage`: what Codex has spent on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.paging import pager_option, print_paged

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from helmsman.capabilities.usage_report import GroupBy, UsageGroup, UsageReport
    from helmsman.settings import Settings

_GROUPS: Final = ("day", "model", "directory", "session")
_UNKNOWN: Final = "unknown"
_OTHER_COLUMNS: Final = 60
"""How wide the table is beside its first column."""


@click.command(
    "usage",
    short_help="Show what Codex has spent.",
    epilog="""\b
Examples:
  helmsman usage --since 7d
  helmsman usage --since 2026-11-01 --by model
  helmsman usage --by session --limit 10 --json
""",
)
@click.option(
    "--since", metavar="TIME", help="Only since then: 24h, 7d, 2w ago, or a date.  [default: all there ever was]"
)
@click.option(
    "--by", "group_by", type=click.Choice(_GROUPS), default="day", show_default=True, help="What to sum up by."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many rows; the rest is summed up.")
@pager_option
@json_option
@reports_errors
def command(since: str | None, group_by: str, limit: int | None, no_pager: bool, as_json: bool) -> None:
    """Show the tokens Codex has spent on this machine, with their cost where a price is known.

    All sessions count, also those made in the terminal. Costs are at the API's list prices: what a subscription covers is
    left out of account. A price for another model can be set in helmsman.toml ([prices."name"]). Not on a terminal, the
    columns are separated by tabs: key, sessions, turns, input, cached input, output, reasoning output, cost.
    """
    import anyio

    from helmsman.base.shown_text import one_line
    from helmsman.capabilities.usage_report import merged
    from helmsman.cli.consoles import configure_logs, is_terminal, result_console
    from helmsman.settings import load_settings
    from helmsman.shapes.rendering import json_line

    settings = load_settings()
    configure_logs(settings)
    told: UsageReport = anyio.run(_report, settings, since, cast("GroupBy", group_by))
    groups, rest = _cut(told, limit)
    others = merged(rest) if rest else None
    if as_json:
        click.echo(json_line(_as_dict(told, groups, others)))
    elif not told.groups:
        click.echo(
            "Nothing was spent since then. Leave out --since to see all."
            if since
            else 'Nothing was spent yet. Start something: helmsman run "…".',
            err=True,
        )
    elif is_terminal(console := result_console()):
        print_paged(console, _table(console, told, groups, others, len(rest)), no_pager=no_pager)
        if told.unpriced_models:
            models = ", ".join(map(one_line, told.unpriced_models))
            click.echo(f"Without a known price, and so not in the cost (+): {models}.", err=True)
    else:
        for group in groups:
            click.echo("\t".join(_cells(group)))


async def _report(settings: Settings, since: str | None, group_by: GroupBy) -> UsageReport:
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        return await helm.extras.usage.report(since=since, group_by=group_by)


def _cut(told: UsageReport, limit: int | None) -> tuple[list[UsageGroup], list[UsageGroup]]:
    """The groups to show, and the rest. Of days the newest matter most, of others those that spent most."""
    groups = list(told.groups)
    if limit is None or len(groups) <= limit:
        return groups, []
    return (groups[-limit:], groups[:-limit]) if told.group_by == "day" else (groups[:limit], groups[limit:])


def _cells(group: UsageGroup) -> tuple[str, ...]:
    from helmsman.base.shown_text import one_line

    usage = group.usage
    tokens = (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens, usage.reasoning_output_tokens)
    cost = "" if group.cost_usd is None else f"{group.cost_usd:.6f}"
    return one_line(group.key or _UNKNOWN), *map(str, (group.sessions, group.turns, *tokens)), cost


def _as_dict(told: UsageReport, groups: list[UsageGroup], others: UsageGroup | None) -> dict[str, Any]:
    shown = {
        "groupBy": told.group_by,
        "since": None if told.since is None else told.since.isoformat(timespec="seconds"),
        "groups": [{"key": group.key or _UNKNOWN, **_spent(group)} for group in groups],
        "others": None if others is None else _spent(others),
        "total": _spent(told.total),
        "unpricedModels": list(told.unpriced_models) or None,
    }
    return {key: value for key, value in shown.items() if value is not None}


def _spent(group: UsageGroup) -> dict[str, Any]:
    from helmsman.shapes.rendering import fields_as_dict

    cost = {} if group.cost_usd is None else {"costUsd": round(group.cost_usd, 6)}
    unpriced = {"unpricedTokens": group.unpriced_tokens} if group.unpriced_tokens else {}
    return {"sessions": group.sessions, "turns": group.turns, **fields_as_dict(group.usage), **cost, **unpriced}


def _table(
    console: Console, told: UsageReport, groups: list[UsageGroup], others: UsageGroup | None, left_out: int
) -> Table:
    from rich.table import Table

    from helmsman.base.shown_text import one_line
    from helmsman.cli.short_paths import end_of

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(told.group_by.upper(), style="cyan", no_wrap=True)
    for name in ("SESSIONS", "TURNS", "INPUT", "CACHED", "OUTPUT", "COST"):
        table.add_column(name, no_wrap=True, justify="right")
    for group in groups:
        name = _name(one_line(group.key or _UNKNOWN), told.group_by)
        table.add_row(end_of(name, console.width - _OTHER_COLUMNS), *_counts(group))
    if others is not None:
        table.add_row(f"{left_out} others", *_counts(others), style="dim")
    table.add_row("total", *_counts(told.total), style="bold")
    return table


def _name(key: str, group_by: GroupBy) -> str:
    from helmsman.cli.session_ids import short_id

    return short_id(key) if group_by == "session" and key != _UNKNOWN else key


def _counts(group: UsageGroup) -> tuple[str, ...]:
    usage = group.usage
    cost = "?" if group.cost_usd is None else f"${group.cost_usd:,.2f}{'+' if group.unpriced_tokens else ''}"
    numbers = (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens)
    return str(group.sessions), str(group.turns), *map(_short, numbers), cost


def _short(count: int) -> str:
    """A number as one reads it at a glance: 950, 12.3k, 4.56M."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:,.2f}M"
