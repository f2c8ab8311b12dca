"""`helmsman fork`: start a session that shares the history of another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import session_argument, with_helmsman
from helmsman.cli.output import print_json
from helmsman.cli.session_ids import full_session_id

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@cli_command(
    "fork",
    "Branch off a new session from another.",
    "helmsman fork 3b2d5c8e",
    'helmsman fork 3b2d5c8e "Try it without the cache" --from-turn 2',
)
@session_argument
@click.argument("message", required=False)
@click.option(
    "--from-turn",
    metavar="N",
    help="The last turn it shares: its number, counted from 1, or its id.  [default: the last]",
)
def command(session: str, message: str | None, from_turn: str | None, as_json: bool) -> int:
    """Make a new session that shares the history of another, and run MESSAGE in it, if given.

    SESSION is a session's id or a part of it (`helmsman list` shows them). Without a message the new id goes to stdout; with
    one the turn is shown as in `helmsman run`, and its final message goes to stdout.
    """
    settings = settings_of_command()
    if message is not None:
        host().require_own_process()
    host().begin_change("once")

    async def fork(helm: Helmsman) -> int:
        from helmsman.cli.displays import new_display
        from helmsman.cli.follow import Talk, follow
        from helmsman.step import run_step

        source = await full_session_id(helm, session)
        made = await helm.fork(source, from_turn=from_turn)
        if message is not None:
            step = partial(run_step, message, session_id=made.id, helm=helm)
            return (await follow(step, new_display(settings, as_json=as_json), talk=Talk(helm=helm))).exit_code
        if as_json:
            print_json({"sessionId": made.id, "forkedFrom": source})
        else:
            click.echo(made.id)
        return ExitCode.OK

    return with_helmsman(fork, settings=settings)
