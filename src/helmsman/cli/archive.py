"""`helmsman archive`: put a session away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import on_session, session_argument, tell

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@click.command(
    "archive",
    short_help="Put a session away.",
    epilog="""\b
Example:
  helmsman archive 3b2d5c8e
""",
)
@session_argument
@json_option
@reports_errors
def command(session: str, as_json: bool) -> None:
    """Put a session away: lists show it only with --all, and `helmsman unarchive` brings it back. Nothing is deleted.

    SESSION is a session's id or a part of it (`helmsman list` shows them).
    """

    async def archive(helm: Helmsman, session_id: str) -> str:
        await helm.extras.upkeep.archive(session_id)
        return session_id

    session_id = on_session(session, archive)
    tell(f"Session {session_id} is archived.", {"sessionId": session_id, "archived": True}, as_json=as_json)
