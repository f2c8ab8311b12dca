"""`helmsman session open`: open the directory or worktree of a session in the editor, or print it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from helmsman.base.caller_context import environment
from helmsman.base.programs import available, environment_for
from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_json
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from helmsman.client import Helmsman


@cli_command(
    "open",
    "Open the directory of a session in your editor.",
    "helmsman session open 3b2d5c8e",
    'cd "$(helmsman session open 3b2d5c8e --path)"',
)
@session_argument
@click.option("--path", "only_path", is_flag=True, help="Print the directory, and open nothing.")
def command(session: str, only_path: bool, as_json: bool) -> int | None:
    """Open the worktree of a session, or the directory that it works in, in your editor ($VISUAL or $EDITOR).

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. In a pipe the directory is printed.
    """
    if host().is_elsewhere:
        raise InvalidInput("Its directory is on another machine. Log in there with ssh.")

    async def look(helm: Helmsman, session_id: str) -> str | None:
        return (await helm.session(session_id)).directory

    session_id, directory = on_session(session, look)
    if directory is None or not Path(directory).is_dir():
        raise InvalidInput(f"The directory of session {session_id} is gone: {directory or 'it is not known'}.")
    if as_json:
        print_json({"sessionId": session_id, "directory": directory})
        return None
    if only_path or not sys.stdout.isatty():
        click.echo(directory)
        return None
    host().require_own_process()
    known = environment()
    words = shlex.split(known.get("VISUAL") or known.get("EDITOR") or "")
    program = available(words[0], known) if words else None
    if program is None:
        raise InvalidInput(f"No editor is set. Set EDITOR, or go there: cd {shlex.quote(directory)}")
    try:
        done = subprocess.run([program, *words[1:], directory], cwd=directory, env=environment_for(known), check=False)
    except OSError as error:
        raise HelmsmanError(f"{words[0]} could not be started: {error}.") from error
    return done.returncode
