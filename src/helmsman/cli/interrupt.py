"""`helmsman interrupt`: stop the running turn of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import counted, print_result, standing

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@cli_command("interrupt", "Stop a running turn.", "helmsman interrupt 3b2d5c8e")
@session_argument
def command(session: str, as_json: bool) -> None:
    """Stop the running turn of a session, its sub-agents and the commands it left running, and wait until they have stopped.

    SESSION is a session's id or a part of it (`helmsman list` shows them). In an idle session only
    commands it left running are stopped. Queued messages are dropped.
    """
    host().begin_change("repeatable")

    async def stop(helm: Helmsman, session_id: str) -> tuple[str, int]:
        queued = len((await helm.session(session_id)).queue)
        return (await helm.interrupt(session_id)).status, queued

    session_id, (status, queued) = on_session(session, stop)
    dropped = f" {counted(queued, 'queued message')} dropped." if queued else ""
    sentence = f"Session {session_id} {standing(status)}.{dropped}"
    print_result(sentence, {"sessionId": session_id, "status": status}, as_json=as_json)
