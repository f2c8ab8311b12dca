"""Add Helmsman to the configuration of an MCP client, or remove it: install, uninstall."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from helmsman.base.redaction import redact, redact_value
from helmsman.base.sanitize import visible
from helmsman.base.truncate import counted
from helmsman.cli.command import cli_command, option, yes_option
from helmsman.cli.consoles import result_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import can_ask, confirmed, print_json, print_message
from helmsman.clients.codex_plugin_cc import notes_on_earlier_work
from helmsman.clients.entries import OldServer, OwnEntry
from helmsman.clients.locations import CLIENTS, Client, ClientPlatform, Location, Scope, claude_project
from helmsman.clients.plugin import PluginOf
from helmsman.errors import ConfigurationUnusable, HelmsmanError, InvalidInput
from helmsman.settings import TOOLSETS, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from helmsman.clients.changes import Change, Record, Wish
    from helmsman.clients.configuration import ConfigurationFile, Entry
    from helmsman.clients.launch import Answer
    from helmsman.settings import Settings


CONSENT_HELP: Final = """The change is shown first. --yes makes it; without it you are asked, and if there is no
terminal to ask on, nothing is changed and the exit code is 2 (1 if you say no)."""


class _ClientName(click.Choice[str]):
    """Name of a client, also as it calls itself."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Names that people use for them.
        return super().convert({"claude-code": "claude", "vs-code": "vscode"}.get(value, value), param, ctx)


client_argument: Final = click.argument("client", type=_ClientName(list(CLIENTS)))


scope_option: Final = option(
    "--scope",
    "user: for you, everywhere. local: for you, in this project (claude). project: a file in the project.",
    choices=get_args(Scope),
)


def client_platform(settings: Settings) -> ClientPlatform:
    """Return the values that the paths of clients depend on."""
    from helmsman.git.command import repository_root

    cwd = Path.cwd()
    return ClientPlatform(
        platform=sys.platform,
        # Clients look for Codex's configuration where this Helmsman does.
        env={**os.environ, "CODEX_HOME": str(settings.codex_home)},
        home=Path.home(),
        # Without a repository the directory is the project.
        project=repository_root(cwd) or cwd,
        claude_project=claude_project(cwd),
    )


def locations_of(client: Client, scope: Scope | None, around: ClientPlatform) -> list[Location]:
    """Return the locations of the given scope, or all that belong to this user only."""
    if scope is not None:
        return [client.location(scope, around)]
    # A project's file is shared with others, so it is changed only when it is named.
    return [client.location(each, around) for each in client.places if each != "project"]


def read_files(locations: Sequence[Location]) -> list[ConfigurationFile]:
    """Read each file once, with all its locations."""
    from helmsman.clients.configuration import read_configuration

    by_path: dict[Any, list[Location]] = {}
    for location in locations:
        # Clients keep several scopes in one file, which must be written once.
        by_path.setdefault(location.path, []).append(location)
    return [read_configuration(places) for places in by_path.values()]


def show(console: Console, client: Client, changes: Sequence[Change]) -> None:
    """Print the changes with secrets redacted: neighbouring lines may contain keys."""
    from rich.text import Text

    from helmsman.terminal.diffs import HEADING, diff_lines

    for change in changes:
        done = ", ".join(f"{entry.name} ({entry.location.scope} scope) is {entry.action}" for entry in change.entries)
        where = visible(str(change.path))
        # A link is shown with its target, because that is the file that changes.
        if change.target != change.path.absolute():
            where = f"{where}, which is {visible(str(change.target))}"
        console.print(Text(f"{client.title}, {where}: {visible(done)}", HEADING), soft_wrap=True)
        # The header of the diff has the names once more.
        _names, _newer, *body = redact(change.diff).split("\n", 2)
        console.print(Text("\n").join(diff_lines("".join(body))), soft_wrap=True)


def make_changes(
    console: Console, client: Client, changes: Sequence[Change], record: Record, *, agreed: bool, as_json: bool
) -> ExitCode:
    """Show the changes, and make them if the user agrees. Return the exit code."""
    if changes and not as_json:
        show(console, client, changes)
    # Without a question the user sees no target before it is written.
    if agreed or not can_ask(as_json=as_json):
        _refuse_links_out_of_the_project(changes)
    if changes and (refusal := _refusal("Make this change?", agreed=agreed, as_json=as_json)) is not None:
        return refusal
    if changes:
        ensure_state_dir(record.path.parent)
    for change in changes:
        change.apply(record)
    return ExitCode.OK


def _refusal(question: str, *, agreed: bool, as_json: bool) -> ExitCode | None:
    """Ask the user, and return the exit code if nothing is to be changed."""
    asked = agreed or can_ask(as_json=as_json)
    if agreed or (asked and confirmed(question)):
        return None
    click.echo("Nothing was changed." + ("" if asked else " Add --yes to make this change."), err=True)
    # Refused by a person is a failure, missing consent a usage error.
    return ExitCode.FAILED if asked else ExitCode.USAGE


def _refuse_links_out_of_the_project(changes: Sequence[Change]) -> None:
    """Refuse to write through symbolic links of a repository, unless the user approves the displayed target."""
    for change in changes:
        # A repository could point its file at one of the user's own.
        if any(entry.location.shared for entry in change.entries) and _leads_out(change):
            raise ConfigurationUnusable(
                f"{change.path} is a link of the project to {change.target}, which is outside of the project; nothing was "
                "changed. Run this on a terminal without --yes to agree to that file, or remove the link."
            )


def _leads_out(change: Change) -> bool:
    from helmsman.git.command import repository_root

    cwd = Path.cwd()
    # Compared after resolving links of the directory itself.
    return not change.target.is_relative_to((repository_root(cwd) or cwd).resolve())


def changes_as_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
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


@cli_command(
    "install",
    "Add Helmsman to an MCP client, or remove it.",
    "helmsman install claude",
    "helmsman install codex --tools sessions,extras --yes",
    "helmsman install vscode --scope project",
    "helmsman install claude --plugin",
    "helmsman install claude --remove",
    help=f"""Add Helmsman to the configuration of an MCP client, or point an entry of the old `codex mcp-server` to it.

An old entry keeps its name, environment and time limit and runs the same two tools (toolset compat), unless --tools
says otherwise. Nothing else in the file changes. Afterwards the entry is tested.

With --plugin (Claude Code, Codex), the client installs Helmsman's plugin instead: the MCP server with the toolset agents,
skills, and in Claude Code slash commands. The client's own program makes this change.

With --remove, entries that run Helmsman are removed; one that was made out of another is put back as it was.

{CONSENT_HELP}
""",
)
@client_argument
@option("--tools SETS", f"Toolsets to offer, separated by commas: {', '.join(TOOLSETS)}.")
@scope_option
@option("--name TEXT", "The entry's name; no other entry is then touched. Default: helmsman, or the old entry's.")
@option("--env NAME=VALUE...", "A variable for the entry's environment; may be repeated.")
@option("--plugin", "Install the plugin, with skills and slash commands (claude, codex).", to="as_plugin")
@option("--remove", "Remove Helmsman from the client.")
@yes_option
def install_command(
    client: str,
    tools: str | None,
    scope: Scope | None,
    name: str | None,
    env: tuple[str, ...],
    as_plugin: bool,
    remove: bool,
    agreed: bool,
    as_json: bool,
) -> int:
    from helmsman.clients.changes import Record, Wish, plan_install
    from helmsman.clients.launch import Running, launch_words

    # Checked like the setting, so that a misspelt toolset is refused here.
    settings = settings_of_command({"tools": tools})
    if remove:
        if tools is not None or env:
            raise click.UsageError("--remove takes no --tools and no --env.")
        if as_plugin:
            return _plugin(client, settings, None, remove=True, agreed=agreed, as_json=as_json)
        return _remove(client, scope, name, settings, agreed=agreed, as_json=as_json)
    if as_plugin:
        if scope is not None or name is not None or env:
            raise click.UsageError("--plugin takes no --scope, no --name and no --env.")
        return _plugin(client, settings, tools, remove=False, agreed=agreed, as_json=as_json)
    if tools is not None:
        # In the spelling and order of the settings.
        tools = ",".join(settings.tools)
    if name is not None and not name.strip():
        raise InvalidInput("--name is empty. Give the entry a name, or leave the option out.")
    program, around = CLIENTS[client], client_platform(settings)
    places = locations_of(program, scope, around)
    record = Record(settings.state_dir)
    running = Running.now()
    wish = Wish(
        launch=launch_words(running, shared=False),
        # A project's entry is shared: a path of this machine would not work elsewhere.
        shared_launch=launch_words(running, shared=True),
        tools=tools,
        name=name,
        env=dict(_variable(given) for given in env),
    )
    changes = plan_install(read_files(places), places[0], wish, record)
    console = result_console()
    notes = [*_kept_variables(changes), *_notes(program, scope, around)]
    shown: dict[str, Any] = {
        "client": client,
        "changes": changes_as_json(changes),
        "applied": False,
        "notes": notes,
    }
    verdict = make_changes(console, program, changes, record, agreed=agreed, as_json=as_json)
    if verdict is not ExitCode.OK:
        if as_json:
            print_json(shown)
        return verdict
    # Tried after writing, as the client will start it.
    checks = [
        (entry, _check(_startable(entry, wish), Path(around.home)))
        for entry in _installed(read_files(places), changes, name)
    ]
    if as_json:
        tried = [_check_as_json(entry, answer) for entry, answer in checks]
        print_json(shown | {"applied": bool(changes), "checks": tried})
    else:
        _report(console, program, checks, changed=bool(changes), notes=notes)
    return ExitCode.FAILED if any(isinstance(answer, HelmsmanError) for _, answer in checks) else ExitCode.OK


def _plugin(
    client: str, settings: Settings, tools: str | None, *, remove: bool, agreed: bool, as_json: bool
) -> ExitCode:
    """Let the client install the plugin, or remove it, once the user has seen the commands."""
    from helmsman.clients.launch import Running, launch_words

    plugin = PluginOf.of(client, settings.state_dir)
    commands = [" ".join([client, *words]) for words in (plugin.removing() if remove else plugin.installing())]
    if not as_json:
        click.echo("\n".join(["These commands are run:", *(f"  {visible(command)}" for command in commands)]), err=True)
    if (refusal := _refusal("Run them?", agreed=agreed, as_json=as_json)) is not None:
        return refusal
    if remove:
        plugin.remove()
    else:
        ensure_state_dir(settings.state_dir)
        plugin.install(launch_words(Running.now(), shared=False), tools and ",".join(settings.tools))
    notes = [] if remove else _plugin_notes(CLIENTS[client], client_platform(settings))
    if as_json:
        print_json({"client": client, "commands": commands, "applied": True, "notes": notes})
    else:
        print_message("\n".join(["Done.", *notes]))
    return ExitCode.OK


def _plugin_notes(program: Client, around: ClientPlatform) -> list[str]:
    """Return the next steps, and the entries that would offer the same tools twice."""
    files = read_files(locations_of(program, None, around))
    # The plugin and an entry would offer the same tools twice.
    twice = any(isinstance(entry.kind, OwnEntry) for file in files for entry in file.entries)
    again = (
        f"{program.title} has Helmsman's MCP server as an entry too. Remove it: helmsman install {program.key} --remove"
    )
    return [program.after, *([again] if twice else []), *_earlier_work(program, around)]


def _earlier_work(program: Client, around: ClientPlatform) -> list[str]:
    """Return what the user can continue of the plugin that Helmsman's replaces."""
    if program.key != "claude":
        return []
    claude_home = around.env.get("CLAUDE_CONFIG_DIR") or around.home / ".claude"
    return notes_on_earlier_work(Path(claude_home), Path(around.path("{codex}")))


def _variable(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise InvalidInput(f"--env {given!r} is not a variable. Write it as NAME=VALUE.")
    return name, value


def _installed(files: Sequence[Any], changes: Sequence[Change], name: str | None) -> list[Entry]:
    """Return the entries to test: the changed ones, or all of Helmsman's if nothing changed."""
    changed = {(entry.location.scope, entry.name) for change in changes for entry in change.entries}
    ours: list[Entry] = [entry for file in files for entry in file.entries if isinstance(entry.kind, OwnEntry)]
    if changed:
        return [entry for entry in ours if (entry.location.scope, entry.name) in changed]
    return [entry for entry in ours if name in (None, entry.name)]


def _startable(entry: Entry, wish: Wish) -> dict[str, Any]:
    """Return the definition of an entry. For an entry of a project, return the running Helmsman instead.

    A project's file came with a repository, so its command and variables are not executed here.
    """
    if not entry.location.shared:
        return dict(entry.content)
    tools = entry.kind.tools if isinstance(entry.kind, OwnEntry) else None
    options = () if tools is None else (f"--tools={tools}",)
    return {"command": wish.launch[0], "args": [*wish.launch[1:], "serve", *options], "env": dict(wish.env)}


def _kept_variables(changes: Sequence[Change]) -> list[str]:
    """Return the variables that a project's file sets for the command that clients start."""
    found = []
    for change in changes:
        for entry in change.entries:
            env = entry.content.get("env") if isinstance(entry.content, dict) else None
            if entry.location.shared and isinstance(env, dict) and env:
                names = ", ".join(sorted(map(str, env)))
                found.append(
                    f"{entry.name} in {change.path} sets variables for what clients start: {names}. Check them."
                )
    return found


def _check(content: dict[str, Any], directory: Path) -> Answer | HelmsmanError:
    import anyio

    from helmsman.clients.launch import shake_hands

    try:
        return anyio.run(shake_hands, content, directory)
    except HelmsmanError as error:
        return error


def _check_as_json(entry: Entry, answer: Answer | HelmsmanError) -> dict[str, Any]:
    about: dict[str, Any] = {"name": entry.name, "scope": entry.location.scope}
    if isinstance(answer, HelmsmanError):
        return {**about, "ok": False, "error": answer.as_dict()}
    return {**about, "ok": True, "server": answer.server, "version": answer.version, "tools": list(answer.tools)}


def _notes(program: Client, scope: Scope | None, around: ClientPlatform) -> list[str]:
    """Return notes about this client and about entries that were not changed."""
    offer = f"With skills and slash commands: helmsman install {program.key} --plugin"
    notes = [
        *([offer] if program.has_plugins else []),
        program.limits,
        *filter(None, [program.notes.get(scope or "user")]),
        program.after,
        *_earlier_work(program, around),
    ]
    # Some clients have one file for both scopes.
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
            old = []  # this scope was not requested
        if old:
            notes.insert(
                0,
                f"{place.path} still runs the old codex mcp-server ({', '.join(old)}): "
                f"`helmsman install {program.key} --scope project` changes it for the whole project.",
            )
    return notes


def _report(
    console: Console,
    program: Client,
    checks: Sequence[tuple[Entry, Answer | HelmsmanError]],
    *,
    changed: bool,
    notes: Sequence[str],
) -> None:
    from rich.text import Text

    from helmsman.terminal.layout import fold

    if not changed:
        console.print(f"{program.title} runs Helmsman already; nothing to change.")
    for entry, answer in checks:
        where = f"{visible(entry.name)} ({entry.location.scope} scope)"
        if isinstance(answer, HelmsmanError):
            lead, text = Text("✗ ", "red"), Text(f"{where}: {visible(answer.message)}", "red")
        else:
            who = "this Helmsman answers" if entry.location.shared else "answers"
            colon = ": " if entry.location.shared else " "
            lead, text = Text("✓ ", "green"), Text(f"{where}{colon}{who} with {counted(len(answer.tools), 'tool')}")
        console.print(*fold(console, text, lead=lead), sep="\n")
    for note in notes:
        console.print(*fold(console, Text(visible(note), "dim"), lead=Text("  ")), sep="\n")


def _remove(
    client: str, scope: Scope | None, name: str | None, settings: Settings, *, agreed: bool, as_json: bool
) -> int:
    from helmsman.clients.changes import Record, plan_uninstall

    program, console = CLIENTS[client], result_console()
    places = locations_of(program, scope, client_platform(settings))
    record = Record(settings.state_dir)
    changes = plan_uninstall(read_files(places), name, record)
    verdict = make_changes(console, program, changes, record, agreed=agreed, as_json=as_json)
    applied = bool(changes) and verdict is ExitCode.OK
    if as_json:
        print_json({"client": client, "changes": changes_as_json(changes), "applied": applied})
    elif applied:
        console.print("Done.")
    elif not changes:
        looked_at = ", ".join(dict.fromkeys(str(place.path) for place in places))
        console.print(f"Nothing in {looked_at} runs Helmsman; nothing to change.", soft_wrap=True)
    return verdict
