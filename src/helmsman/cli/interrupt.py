"""`helmsman interrupt`: stop the running turn of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import on_session, session_argument, tell

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@click.command(
    "interrupt",
    short_help="Stop a running turn.",
    epilog="""\b
Example:
  helmsman interrupt 3b2d5c8e
""",
)
@session_argument
@json_option
@reports_errors
def command(session: str, as_json: bool) -> None:
    """Stop the running turn of a session, its sub-agents and the commands it left running, and wait until they have.

    SESSION is a session's id or a part of it (`helmsman list` shows them). An idle session is left as it is.
    """

    async def stop(helm: Helmsman, session_id: str) -> tuple[str, str]:
        stopped = await helm.interrupt(session_id)
        return stopped.id, stopped.status

    session_id, status = on_session(session, stop)
    tell(f"Session {session_id} is {status}.", {"sessionId": session_id, "status": status}, as_json=as_json)
