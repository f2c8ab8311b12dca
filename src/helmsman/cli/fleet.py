"""`helmsman fleet`: several machines as one, on a Postgres."""

from __future__ import annotations

import os
from typing import Final

import click

from helmsman.base.shown_text import one_line
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import print_json
from helmsman.errors import FleetNotReady, InvalidSetting

FLEET_URL: Final = "HELMSMAN_FLEET_URL"
_MARKS: Final = {"ok": "ok", "warning": "!", "wrong": "✗"}


def with_fleet() -> None:
    """Make sure that what a fleet needs is installed.

    Raises:
        FleetNotReady: It is not.
    """
    try:
        import dbos  # noqa: F401
        import psycopg  # noqa: F401
    except ImportError as error:
        raise FleetNotReady(f'{error.name} is missing. Install it: pip install "codex-helmsman[fleet]"') from error


def fleet_url() -> str:
    """The address of the fleet's database.

    Raises:
        InvalidSetting: It is not set.
    """
    url = os.environ.get(FLEET_URL)
    if not url:
        raise InvalidSetting(f"{FLEET_URL} is not set. It is the address of the fleet: postgresql://USER@HOST/DATABASE")
    return url


@cli_group("fleet", "Several machines as one, on a Postgres.", "helmsman fleet init postgresql://me@db.example/fleet")
def command(as_json: bool) -> None:
    """Several machines as one: `fleet init` once, `helmsman worker` on each machine, HELMSMAN_FLEET_URL for everybody."""
    click.echo(click.get_current_context().get_help())


@cli_command(
    "init",
    "Make a database ready for a fleet.",
    "helmsman fleet init postgresql://me@db.example/fleet",
    group=command,
)
@click.argument("url", required=False)
def _init(url: str | None, as_json: bool) -> int:
    """Make a Postgres database ready for a fleet, or bring it up to date; workers may go on meanwhile.

    Without URL it is that of HELMSMAN_FLEET_URL.
    """
    with_fleet()
    import anyio

    from helmsman.fleet.setup import init_fleet

    checks = anyio.run(init_fleet, url or fleet_url())
    if as_json:
        print_json({"checks": [{"name": one.name, "verdict": one.verdict, "text": one.text} for one in checks]})
        return ExitCode.OK
    for check in checks:
        click.echo(f"  {_MARKS[check.verdict]:<3} {check.name}: {one_line(check.text)}")
    click.echo(
        "The fleet is ready. Start `helmsman worker` on its machines, and set HELMSMAN_FLEET_URL there and here."
    )
    return ExitCode.OK
