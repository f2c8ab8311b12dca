"""`helmsman hand`: let the model of an MCP client answer for a session that a person opened."""

from __future__ import annotations

import click

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result
from helmsman.errors import InvalidInput


@cli_command(
    "hand",
    "Hand a session to an MCP client, or take it back.",
    "helmsman hand 3b2d5c8e --to claude-code",
    "helmsman hand 3b2d5c8e --back",
)
@session_argument
@click.option("--to", "client", metavar="CLIENT", help="The name that the client gives itself, e.g. claude-code.")
@click.option("--back", is_flag=True, help="Take it back: people answer its questions again.")
def command(session: str, client: str | None, back: bool, as_json: bool) -> None:
    """Let the model of an MCP client act on a session: answer its questions, apply its changes, rewind it.

    A model acts on the sessions that its own client opened. Questions of all others are answered by people. SESSION is a
    session's id or a part of it (`helmsman list` shows them).
    """
    if (client is None) is not back:
        raise InvalidInput("Say either whom to hand it to, with --to, or --back.")
    host().begin_change("repeatable")
    session_id, _ = on_session(session, lambda helm, session_id: helm.hand(session_id, client))
    told = f"Handed session {session_id} to {client}." if client else f"Session {session_id} is yours again."
    print_result(told, {"sessionId": session_id, "handedTo": client}, as_json=as_json)
