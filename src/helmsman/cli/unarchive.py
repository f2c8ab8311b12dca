"""`helmsman unarchive`: restore an archived session."""

from __future__ import annotations

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result


@cli_command("unarchive", "Bring back an archived session.", "helmsman list --all", "helmsman unarchive 3b2d5c8e")
@session_argument
def command(session: str, as_json: bool) -> None:
    """Bring back a session that was archived.

    SESSION is a session's id or a part of it (`helmsman list --all` shows archived ones too).
    """
    host().begin_change("once")
    session_id, _ = on_session(session, lambda helm, session_id: helm.extras.upkeep.unarchive(session_id))
    print_result(f"Session {session_id} is back.", {"sessionId": session_id, "archived": False}, as_json=as_json)
