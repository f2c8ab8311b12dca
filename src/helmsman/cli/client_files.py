"""Shared parts of `install` and `uninstall`: select files, show changes, ask for approval."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from helmsman.cli.consent import can_ask, confirmed
from helmsman.cli.exit_codes import ExitCode
from helmsman.clients.locations import CLIENTS, Client, Location, Scope, Surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from helmsman.clients.changes import Change
    from helmsman.clients.configuration import ConfigurationFile
    from helmsman.clients.record import Record
    from helmsman.settings import Settings

CONSENT_HELP: Final = """The change is shown first. --yes makes it; without it you are asked, and if there is no
terminal to ask on, nothing is changed and the exit code is 2 (1 if you say no)."""


client_argument: Final = click.argument("client", type=click.Choice(list(CLIENTS)))
scope_option: Final = click.option(
    "--scope",
    type=click.Choice(get_args(Scope)),
    help="user: for you, everywhere. local: for you, in this project (claude). project: a file in the project.",
)
yes_option: Final = click.option("--yes", "-y", "agreed", is_flag=True, help="Make the change without asking.")


def surroundings(settings: Settings) -> Surroundings:
    """Return the values that the paths of clients depend on."""
    from helmsman.base.git_view import repository_root
    from helmsman.clients.claude_project import claude_project

    cwd = Path.cwd()
    return Surroundings(
        platform=sys.platform,
        env={**os.environ, "CODEX_HOME": str(settings.codex_home)},
        home=Path.home(),
        project=repository_root(cwd) or cwd,
        claude_project=claude_project(cwd),
    )


def locations_of(client: Client, scope: Scope | None, around: Surroundings) -> list[Location]:
    """Return the locations of the given scope, or all that belong to this user only."""
    if scope is not None:
        return [client.location(scope, around)]
    return [client.location(each, around) for each in client.places if each != "project"]


def read_files(locations: Sequence[Location]) -> list[ConfigurationFile]:
    """Read each file once, with all its locations."""
    from helmsman.clients.configuration import read_configuration

    by_path: dict[Any, list[Location]] = {}
    for location in locations:
        by_path.setdefault(location.path, []).append(location)
    return [read_configuration(places) for places in by_path.values()]


def show(console: Console, client: Client, changes: Sequence[Change]) -> None:
    """Print the changes with secrets redacted: neighbouring lines may contain keys."""
    from rich.text import Text

    from helmsman.base.redaction import redact
    from helmsman.base.shown_text import visible
    from helmsman.terminal.diffs import HEADING, diff_lines

    for change in changes:
        done = ", ".join(f"{entry.name} ({entry.location.scope} scope) is {entry.action}" for entry in change.entries)
        where = visible(str(change.path))
        if change.target != change.path.absolute():
            where = f"{where}, which is {visible(str(change.target))}"
        console.print(Text(f"{client.title}, {where}: {visible(done)}", HEADING), soft_wrap=True)
        _names, _newer, *body = redact(change.diff).split("\n", 2)
        console.print(Text("\n").join(diff_lines("".join(body))), soft_wrap=True)


def make_changes(
    console: Console, client: Client, changes: Sequence[Change], record: Record, *, agreed: bool, as_json: bool
) -> ExitCode:
    """Show the changes, and make them if the user agrees. Return the exit code."""
    from helmsman.settings import ensure_state_dir

    if changes and not as_json:
        show(console, client, changes)
    if agreed or not can_ask(as_json=as_json):
        _refuse_links_out_of_the_project(changes)
    if changes and not agreed:
        asked = can_ask(as_json=as_json)
        if not asked or not confirmed("Make this change?"):
            click.echo("Nothing was changed." + ("" if asked else " Add --yes to make this change."), err=True)
            return ExitCode.FAILED if asked else ExitCode.USAGE
    if changes:
        ensure_state_dir(record.path.parent)
    for change in changes:
        change.apply(record)
    return ExitCode.OK


def _refuse_links_out_of_the_project(changes: Sequence[Change]) -> None:
    """Refuse to write through symbolic links of a repository, unless the user approves the displayed target."""
    from helmsman.errors import ConfigurationUnusable

    for change in changes:
        if any(entry.location.shared for entry in change.entries) and _leads_out(change):
            raise ConfigurationUnusable(
                f"{change.path} is a link of the project to {change.target}, which is outside of the project; nothing was "
                "changed. Run this on a terminal without --yes to agree to that file, or remove the link."
            )


def _leads_out(change: Change) -> bool:
    from helmsman.base.git_view import repository_root

    cwd = Path.cwd()
    return not change.target.is_relative_to((repository_root(cwd) or cwd).resolve())


def changes_as_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    from helmsman.base.redaction import redact, redact_value

    return [
        {
            "path": str(change.path),
            **({} if change.target == change.path.absolute() else {"target": str(change.target)}),
            "diff": redact(change.diff),
            "entries": [
                {
                    "name": entry.name,
                    "scope": entry.location.scope,
                    "action": entry.action,
                    "entry": redact_value(entry.content),
                }
                for entry in change.entries
            ],
        }
        for change in changes
    ]
