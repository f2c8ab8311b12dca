"""`helmsman uninstall`: Helmsman out of an MCP client's configuration, and what it had replaced back in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.client_files import CONSENT_HELP, client_argument, scope_option, yes_option
from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from helmsman.clients.locations import Scope


@click.command(
    "uninstall",
    short_help="Take Helmsman out of an MCP client again.",
    help=f"""Take Helmsman out of the configuration of an MCP client.

Entries that run Helmsman are removed; one that `install` made out of another is put back as it was. Nothing else in the
file changes.

{CONSENT_HELP}
""",
    epilog="""\b
Example:
  helmsman uninstall claude
""",
)
@client_argument
@scope_option
@click.option("--name", help="Only the entry of this name.")
@yes_option
@json_option
@reports_errors
def command(client: str, scope: Scope | None, name: str | None, agreed: bool, as_json: bool) -> int:
    from helmsman.cli.client_files import agree, changes_as_json, locations_of, read_files, show, surroundings
    from helmsman.cli.consoles import configure_logs, result_console
    from helmsman.clients.changes import plan_uninstall
    from helmsman.clients.locations import CLIENTS
    from helmsman.clients.record import Record
    from helmsman.settings import ensure_state_dir, load_settings
    from helmsman.shapes.rendering import json_line

    settings = load_settings()
    configure_logs(settings)
    program = CLIENTS[client]
    places = locations_of(program, scope, surroundings(settings))
    record = Record(settings.state_dir)
    changes = plan_uninstall(read_files(places), name, record)
    shown: dict[str, Any] = {"client": client, "changes": changes_as_json(changes), "applied": False}
    console = result_console()
    verdict = ExitCode.OK
    if not changes and not as_json:
        looked_at = ", ".join(dict.fromkeys(str(place.path) for place in places))
        console.print(f"Nothing in {looked_at} runs Helmsman; nothing to change.", soft_wrap=True)
    if changes:
        if not as_json:
            show(console, program, changes)
        verdict = agree(agreed=agreed, as_json=as_json)
        if verdict is ExitCode.OK:
            ensure_state_dir(settings.state_dir)
            for change in changes:
                change.apply(record)
            shown["applied"] = True
            if not as_json:
                console.print("Done.")
    if as_json:
        click.echo(json_line(shown))
    return verdict
