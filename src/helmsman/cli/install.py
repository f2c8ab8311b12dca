"""`helmsman install`: Helmsman as a server of an MCP client, in the client's own configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.client_files import CONSENT_HELP, client_argument, scope_option, yes_option
from helmsman.cli.exit_codes import ExitCode
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from helmsman.clients.changes import Change
    from helmsman.clients.configuration import Entry
    from helmsman.clients.handshake import Answer
    from helmsman.clients.locations import Client, Scope, Surroundings


@click.command(
    "install",
    short_help="Add Helmsman to an MCP client.",
    help=f"""Add Helmsman to the configuration of an MCP client, or point an entry of the old `codex mcp-server` to it.

An old entry keeps its name, environment and time limit and runs the same two tools (toolset compat), unless --tools
says otherwise. All else in the file stays as it is. Afterwards the entry is tried out.

{CONSENT_HELP}
""",
    epilog="""\b
Examples:
  helmsman install claude
  helmsman install codex --tools sessions,extras --yes
  helmsman install vscode --scope project
""",
)
@client_argument
@click.option("--tools", metavar="SETS", help="Toolsets to offer, separated by commas.")
@scope_option
@click.option("--name", help="The entry's name; no other entry is then touched. Default: helmsman, or the old entry's.")
@click.option(
    "--env", metavar="NAME=VALUE", multiple=True, help="A variable for the entry's environment; may be repeated."
)
@yes_option
@json_option
@reports_errors
def command(
    client: str,
    tools: str | None,
    scope: Scope | None,
    name: str | None,
    env: tuple[str, ...],
    agreed: bool,
    as_json: bool,
) -> int:
    from helmsman.cli.client_files import agree, changes_as_json, locations_of, read_files, show, surroundings
    from helmsman.cli.consoles import configure_logs, result_console
    from helmsman.clients.changes import Wish, plan_install
    from helmsman.clients.launch import Running, launch_words
    from helmsman.clients.locations import CLIENTS
    from helmsman.clients.record import Record
    from helmsman.settings import ensure_state_dir, load_settings
    from helmsman.shapes.rendering import json_line

    settings = load_settings({"tools": tools})
    configure_logs(settings)
    if tools is not None:
        tools = ",".join(settings.tools)
    if name is not None and not name.strip():
        raise InvalidInput("--name is empty. Give the entry a name, or leave the option out.")
    program, around = CLIENTS[client], surroundings(settings)
    places = locations_of(program, scope, around)
    files = read_files(places)
    record = Record(settings.state_dir)
    running = Running.now()
    wish = Wish(
        launch=launch_words(running, shared=False),
        shared_launch=launch_words(running, shared=True),
        tools=tools,
        name=name,
        env=dict(_variable(given) for given in env),
    )
    changes = plan_install(files, places[0], wish, record)
    console = result_console()
    notes = _notes(program, scope, around)
    shown: dict[str, Any] = {"client": client, "changes": changes_as_json(changes), "applied": False, "notes": notes}
    if changes:
        if not as_json:
            show(console, program, changes)
        verdict = agree(agreed=agreed, as_json=as_json)
        if verdict is not ExitCode.OK:
            if as_json:
                click.echo(json_line(shown))
            return verdict
        ensure_state_dir(settings.state_dir)
        for change in changes:
            change.apply(record)
        shown["applied"] = True
    entries = _installed(read_files(places), changes, name)
    checks = [_check(entry, Path(around.project)) for entry in entries]
    works = not any(isinstance(answer, HelmsmanError) for answer in checks)
    if as_json:
        shown["checks"] = [_check_as_json(entry, answer) for entry, answer in zip(entries, checks, strict=True)]
        click.echo(json_line(shown))
    else:
        _report(console, program, entries, checks, changed=bool(changes), notes=notes)
    return ExitCode.OK if works else ExitCode.FAILED


def _variable(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise InvalidInput(f"--env {given!r} is not a variable. Write it as NAME=VALUE.")
    return name, value


def _installed(files: Sequence[Any], changes: Sequence[Change], name: str | None) -> list[Entry]:
    """The entries to try out: those that were changed; all of ours where nothing was."""
    from helmsman.clients.entries import OwnEntry

    changed = {(entry.location.scope, entry.name) for change in changes for entry in change.entries}
    ours: list[Entry] = [entry for file in files for entry in file.entries if isinstance(entry.kind, OwnEntry)]
    if changed:
        return [entry for entry in ours if (entry.location.scope, entry.name) in changed]
    return [entry for entry in ours if name in (None, entry.name)]


def _check(entry: Entry, directory: Path) -> Answer | HelmsmanError:
    import anyio

    from helmsman.clients.handshake import shake_hands

    try:
        return anyio.run(shake_hands, entry.content, directory)
    except HelmsmanError as error:
        return error


def _check_as_json(entry: Entry, answer: Answer | HelmsmanError) -> dict[str, Any]:
    about: dict[str, Any] = {"name": entry.name, "scope": entry.location.scope}
    if isinstance(answer, HelmsmanError):
        return {**about, "ok": False, "error": answer.as_dict()}
    return {**about, "ok": True, "server": answer.server, "version": answer.version, "tools": list(answer.tools)}


def _notes(program: Client, scope: Scope | None, around: Surroundings) -> list[str]:
    """What to know of this client, and of what was left alone."""
    from helmsman.cli.client_files import read_files
    from helmsman.clients.entries import OldServer

    notes = [program.limits, *filter(None, [program.notes.get(scope or "user")]), program.after]
    own = {program.location(each, around).path for each in program.places if each != "project"}
    place = program.location("project", around) if scope is None and "project" in program.places else None
    if place is not None and place.path not in own:
        try:
            old = [
                entry.name
                for file in read_files([place])
                for entry in file.entries
                if isinstance(entry.kind, OldServer)
            ]
        except HelmsmanError:
            old = []  # it is not what was asked for
        if old:
            notes.insert(
                0,
                f"{place.path} still runs the old codex mcp-server ({', '.join(old)}): "
                f"`helmsman install {program.key} --scope project` changes it for everybody in the project.",
            )
    return notes


def _report(
    console: Console,
    program: Client,
    entries: Sequence[Entry],
    checks: Sequence[Answer | HelmsmanError],
    *,
    changed: bool,
    notes: Sequence[str],
) -> None:
    from rich.text import Text

    from helmsman.base.shown_text import visible
    from helmsman.terminal.layout import fold

    if not changed:
        console.print(f"{program.title} runs Helmsman already; nothing to change.")
    for entry, answer in zip(entries, checks, strict=True):
        where = f"{visible(entry.name)} ({entry.location.scope} scope)"
        if isinstance(answer, HelmsmanError):
            lead, text = Text("✗ ", "red"), Text(f"{where}: {visible(answer.message)}", "red")
        else:
            tools = f"{len(answer.tools)} tool{'' if len(answer.tools) == 1 else 's'}"
            lead, text = Text("✓ ", "green"), Text(f"{where} answers with {tools}")
        for line in fold(console, text, lead=lead):
            console.print(line)
    for note in notes:
        for line in fold(console, Text(visible(note), "dim"), lead=Text("  ")):
            console.print(line)
