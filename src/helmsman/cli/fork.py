"""`helmsman fork`: a new session that shares the history of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import session_argument

if TYPE_CHECKING:
    from helmsman.settings import Settings


@click.command(
    "fork",
    short_help="Go on from a session in a new one.",
    epilog="""\b
Examples:
  helmsman fork 3b2d5c8e
  helmsman fork 3b2d5c8e "Try it without the cache" --from-turn 2
""",
)
@session_argument
@click.argument("message", required=False)
@click.option(
    "--from-turn",
    metavar="N",
    help="The last turn it shares: its number, counted from 1, or its id.  [default: the last]",
)
@json_option
@reports_errors
def command(session: str, message: str | None, from_turn: str | None, as_json: bool) -> int:
    """Make a new session that shares the history of another, and run MESSAGE in it where one is given.

    SESSION is a session's id or a part of it (`helmsman list` shows them). Without a message the new id goes to stdout; with
    one the turn is shown as by `helmsman run`, and its final message goes to stdout.
    """
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    return anyio.run(_fork, settings, session, message, from_turn, as_json)


async def _fork(settings: Settings, reference: str, message: str | None, from_turn: str | None, as_json: bool) -> int:
    from functools import partial

    from helmsman.cli.consoles import logs_wanted
    from helmsman.cli.displays import HumanDisplay, JsonDisplay
    from helmsman.cli.exit_codes import ExitCode
    from helmsman.cli.follow import follow
    from helmsman.cli.session_ids import full_session_id
    from helmsman.service import Helmsman
    from helmsman.shapes.rendering import json_line
    from helmsman.step import run_step

    async with Helmsman(settings) as helm:
        source = await full_session_id(helm, reference)
        fork = await helm.fork(source, from_turn=from_turn)
        if message is None:
            click.echo(json_line({"sessionId": fork.id, "forkedFrom": source}) if as_json else fork.id)
            return ExitCode.OK
        step = partial(run_step, message, session_id=fork.id, helm=helm)
        outcome = await follow(step, JsonDisplay() if as_json else HumanDisplay(live=not logs_wanted(settings)))
    return outcome.exit_code
