"""`helmsman uninstall`: remove Helmsman from a client's configuration and restore the entry it replaced."""

from __future__ import annotations

import click

from helmsman.cli import client_files
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import result_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import print_json
from helmsman.clients.locations import CLIENTS, Scope


@cli_command(
    "uninstall",
    "Remove Helmsman from an MCP client.",
    "helmsman uninstall claude",
    help=f"""Remove Helmsman from the configuration of an MCP client.

Entries that run Helmsman are removed; one that `install` made out of another is put back as it was. Nothing else in the
file changes.

{client_files.CONSENT_HELP}
""",
)
@client_files.client_argument
@client_files.scope_option
@click.option("--name", help="Only the entry of this name.")
@client_files.yes_option
def command(client: str, scope: Scope | None, name: str | None, agreed: bool, as_json: bool) -> int:
    from helmsman.clients.changes import plan_uninstall
    from helmsman.clients.record import Record

    settings = settings_of_command()
    program, console = CLIENTS[client], result_console()
    places = client_files.locations_of(program, scope, client_files.surroundings(settings))
    record = Record(settings.state_dir)
    changes = plan_uninstall(client_files.read_files(places), name, record)
    verdict = client_files.make_changes(console, program, changes, record, agreed=agreed, as_json=as_json)
    applied = bool(changes) and verdict is ExitCode.OK
    if as_json:
        print_json({"client": client, "changes": client_files.changes_as_json(changes), "applied": applied})
    elif applied:
        console.print("Done.")
    elif not changes:
        looked_at = ", ".join(dict.fromkeys(str(place.path) for place in places))
        console.print(f"Nothing in {looked_at} runs Helmsman; nothing to change.", soft_wrap=True)
    return verdict
