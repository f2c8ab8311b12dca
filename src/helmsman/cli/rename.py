"""`helmsman rename`: give a session a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import on_session, session_argument, tell

if TYPE_CHECKING:
    from helmsman.service import Helmsman


@click.command(
    "rename",
    short_help="Give a session a name.",
    epilog="""\b
Example:
  helmsman rename 3b2d5c8e "Parser rewrite"
""",
)
@session_argument
@click.argument("name")
@json_option
@reports_errors
def command(session: str, name: str, as_json: bool) -> None:
    """Give a session a name, which `helmsman list` then shows.

    SESSION is a session's id or a part of it (`helmsman list` shows them).
    """

    async def rename(helm: Helmsman, session_id: str) -> tuple[str, str]:
        named = await helm.extras.upkeep.rename(session_id, name)
        return named.id, named.state.name or ""

    session_id, given = on_session(session, rename)
    tell(f"Session {session_id} is now called {given!r}.", {"sessionId": session_id, "name": given}, as_json=as_json)
