"""`helmsman account`: show the Codex login and its rate limits."""

from __future__ import annotations

import click

from helmsman.base.shown_text import one_line
from helmsman.cli.command import cli_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_json


@cli_command("account", "Show Codex's login and its rate limits.", "helmsman account", "helmsman account --json")
def command(as_json: bool) -> None:
    """Show how Codex is logged in, what is left of its rate limits, and whether a large task is likely to fit."""
    report = with_helmsman(lambda helm: helm.extras.account.read(), detach=False)
    if as_json:
        from helmsman.shapes.rendering import fields_as_dict

        print_json(fields_as_dict(report))
        return
    who = ", ".join(part for part in (report.email, f"plan {report.plan}" if report.plan else None) if part)
    click.echo(one_line(report.login + (f" ({who})" if who else "")))
    for limit in report.limits:
        click.echo(f"  {one_line(str(limit))}")
    click.echo(one_line(report.advice))
