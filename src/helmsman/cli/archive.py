"""`helmsman archive`: archive a session."""

from __future__ import annotations

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result


@cli_command("archive", "Archive a session.", "helmsman archive 3b2d5c8e")
@session_argument
def command(session: str, as_json: bool) -> None:
    """Archive a session: lists show it only with --all, and `helmsman unarchive` brings it back. Nothing is deleted.

    SESSION is a session's id or a part of it (`helmsman list` shows them).
    """
    host().begin_change("once")
    session_id, _ = on_session(session, lambda helm, session_id: helm.extras.upkeep.archive(session_id))
    print_result(f"Session {session_id} is archived.", {"sessionId": session_id, "archived": True}, as_json=as_json)
