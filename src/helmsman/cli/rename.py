"""`helmsman rename`: give a session a name."""

from __future__ import annotations

import click

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result


@cli_command("rename", "Give a session a name.", 'helmsman rename 3b2d5c8e "Parser rewrite"')
@session_argument
@click.argument("name")
def command(session: str, name: str, as_json: bool) -> None:
    """Give a session a name, which `helmsman list` then shows.

    SESSION is a session's id or a part of it (`helmsman list` shows them).
    """
    host().begin_change("repeatable")
    session_id, named = on_session(session, lambda helm, session_id: helm.extras.upkeep.rename(session_id, name))
    given = named.state.name or ""
    shown = {"sessionId": session_id, "name": given}
    print_result(f"Session {session_id} is now called {given!r}.", shown, as_json=as_json)
