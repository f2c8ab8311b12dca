"""`helmsman rollback`: forget the last turns of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import on_session, session_argument, tell

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@click.command(
    "rollback",
    short_help="Forget the last turns of a session.",
    epilog="""\b
Examples:
  helmsman rollback 3b2d5c8e
  helmsman rollback 3b2d5c8e --turns 3 --yes
""",
)
@session_argument
@click.option(
    "--turns", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="How many turns to forget."
)
@yes_option
@json_option
@reports_errors
def command(session: str, turns: int, agreed: bool, as_json: bool) -> int:
    """Forget the last turns of a session: Codex knows nothing of them any more. Files stay as those turns left them.

    SESSION is a session's id or a part of it (`helmsman list` shows them). Turns do not come back, so you are asked first;
    where there is no terminal to ask on, this needs --yes.
    """
    forgotten = "its last turn" if turns == 1 else f"its last {turns} turns"

    async def find(_helm: Helmsman, session_id: str) -> str:
        return session_id

    async def roll_back(helm: Helmsman, session_id: str) -> str:
        return (await helm.extras.upkeep.roll_back(session_id, turns)).id

    session_id = on_session(session, find)
    if not agree(
        f"Session {session_id} forgets {forgotten}, for good. Go on?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"Session {session_id} would forget {forgotten}, for good.",
    ):
        return ExitCode.FAILED
    on_session(session_id, roll_back)
    tell(f"Session {session_id} has forgotten {forgotten}.", {"sessionId": session_id, "turns": turns}, as_json=as_json)
    return ExitCode.OK
