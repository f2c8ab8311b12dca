"""`helmsman steer`: send a message into the running turn of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.command import cli_command
from helmsman.cli.host import command_here, host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result
from helmsman.cli.run import prompt_text
from helmsman.errors import SessionIdle

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@cli_command("steer", "Put a message into a running turn.", 'helmsman steer 3b2d5c8e "Leave the tests as they are"')
@session_argument
@click.argument("message")
def command(session: str, message: str, as_json: bool) -> None:
    """Send a message into the running turn of a session; the agent reads it after its current step.

    SESSION is a session's id or a part of it (`helmsman list` shows them); MESSAGE `-` reads it from stdin.
    """
    text = prompt_text(message)
    host().begin_change("once")

    async def steer(helm: Helmsman, session_id: str) -> None:
        steered = await helm.session(session_id)
        steered.require_here()
        if not steered.state.is_running:
            raise SessionIdle(
                f"No turn is running in session {session_id}. Send it the message with `{command_here('say')}`."
            )
        await steered.steer(text)

    session_id, _ = on_session(session, steer)
    print_result(f"Session {session_id} has the message.", {"sessionId": session_id, "steered": True}, as_json=as_json)
