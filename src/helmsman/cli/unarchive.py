"""`helmsman unarchive`: bring back a session that was put away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import on_session, session_argument, tell

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@click.command(
    "unarchive",
    short_help="Bring back an archived session.",
    epilog="""\b
Examples:
  helmsman list --all
  helmsman unarchive 3b2d5c8e
""",
)
@session_argument
@json_option
@reports_errors
def command(session: str, as_json: bool) -> None:
    """Bring back a session that was archived.

    SESSION is a session's id or a part of it (`helmsman list --all` shows archived ones too).
    """

    async def unarchive(helm: Helmsman, session_id: str) -> str:
        return (await helm.extras.upkeep.unarchive(session_id)).id

    session_id = on_session(session, unarchive)
    tell(f"Session {session_id} is back.", {"sessionId": session_id, "archived": False}, as_json=as_json)
