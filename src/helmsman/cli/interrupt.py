"""`helmsman interrupt`: stop the running turn of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@cli_command("interrupt", "Stop a running turn.", "helmsman interrupt 3b2d5c8e")
@session_argument
def command(session: str, as_json: bool) -> None:
    """Stop the running turn of a session, its sub-agents and the commands it left running, and wait until they have.

    SESSION is a session's id or a part of it (`helmsman list` shows them). An idle session is left as it is.
    """
    host().begin_change("repeatable")

    async def stop(helm: Helmsman, session_id: str) -> str:
        return (await helm.interrupt(session_id)).status

    session_id, status = on_session(session, stop)
    print_result(f"Session {session_id} is {status}.", {"sessionId": session_id, "status": status}, as_json=as_json)
