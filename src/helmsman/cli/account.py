"""`helmsman account`: how Codex is logged in, and what is left of its rate limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.base.shown_text import one_line
from helmsman.cli.command import cli_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_json

if TYPE_CHECKING:
    from helmsman.capabilities.account import AccountReport


@cli_command("account", "Show Codex's login and its rate limits.", "helmsman account", "helmsman account --json")
def command(as_json: bool) -> None:
    """Show how Codex is logged in, what is left of its rate limits, and whether a large task is likely to fit."""
    report = with_helmsman(lambda helm: helm.extras.account.read(), detach=False)
    if as_json:
        print_json(_as_dict(report))
        return
    who = ", ".join(part for part in (report.email, f"plan {report.plan}" if report.plan else None) if part)
    click.echo(one_line(report.login + (f" ({who})" if who else "")))
    for limit in report.limits:
        click.echo(f"  {one_line(str(limit))}")
    click.echo(one_line(report.advice))


def _as_dict(report: AccountReport) -> dict[str, object]:
    limits = [
        {
            "name": limit.name,
            "remainingPercent": limit.remaining_percent,
            "windowMinutes": limit.window_minutes,
            "resetsAt": None if limit.resets_at is None else limit.resets_at.isoformat(),
        }
        for limit in report.limits
    ]
    shown: dict[str, object] = {"kind": report.kind, "email": report.email, "plan": report.plan, "login": report.login}
    shown |= {"limits": limits, "largeTaskFits": report.large_task_fits, "advice": report.advice}
    return {key: value for key, value in shown.items() if value is not None}
