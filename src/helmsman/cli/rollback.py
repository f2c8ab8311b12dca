"""`helmsman rollback`: remove the last turns of a session."""

from __future__ import annotations

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.host import host
from helmsman.cli.on_session import session_argument, with_helmsman
from helmsman.cli.output import print_result
from helmsman.cli.session_ids import full_session_id


@cli_command(
    "rollback",
    "Forget the last turns of a session.",
    "helmsman rollback 3b2d5c8e",
    "helmsman rollback 3b2d5c8e --turns 3 --yes",
)
@session_argument
@click.option(
    "--turns", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="How many turns to forget."
)
@yes_option
def command(session: str, turns: int, agreed: bool, as_json: bool) -> None:
    """Forget the last turns of a session: the agent no longer knows about them. Files stay as those turns left them.

    SESSION is a session's id or a part of it (`helmsman list` shows them). This cannot be undone, so you are asked first;
    without a terminal to ask on, it needs --yes.
    """
    host().begin_change("once")
    session_id = with_helmsman(lambda helm: full_session_id(helm, session))
    forgotten = "its last turn" if turns == 1 else f"its last {turns} turns"
    agree(
        f"Session {session_id} forgets {forgotten}, for good. Go on?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"Session {session_id} would forget {forgotten}, for good.",
    )
    with_helmsman(lambda helm: helm.extras.upkeep.roll_back(session_id, turns))
    shown = {"sessionId": session_id, "turns": turns}
    print_result(f"Session {session_id} has forgotten {forgotten}.", shown, as_json=as_json)
