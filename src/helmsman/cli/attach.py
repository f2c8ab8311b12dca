"""`helmsman session attach`: join a session in its agent's own terminal program."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result
from helmsman.cli.session_ids import short_id
from helmsman.errors import HelmsmanError, InvalidInput, SessionLocked, Unsupported

if TYPE_CHECKING:
    from helmsman.agents.protocol import OwnTerminal
    from helmsman.client import Helmsman


@cli_command(
    "attach",
    "Join a session in its agent's own terminal program.",
    "helmsman session attach 3b2d5c8e",
    "helmsman session attach 3b2d5c8e --json | jq -r .shell",
)
@session_argument
def command(session: str, as_json: bool) -> int | None:
    """Open a session in its agent's own terminal program, while Helmsman keeps running it.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. Both see everything, either can answer, and the first answer counts. Leaving the program stops nothing;
    pressing Esc or Ctrl-C in it while a turn runs stops that turn. Works with Codex 0.163 and newer. With --json the
    command is shown and not run.
    """
    from helmsman.terminal import has_terminal

    if not as_json:
        host().require_own_process()
        if not has_terminal():
            raise InvalidInput("This needs a terminal. `helmsman session attach --json` shows what to run in one.")
        if (code := host().run_there("session", "attach", session)) is not None:
            return code
    session_id, found = on_session(session, _own_terminal)
    if as_json:
        shell = shlex.join(("env", *(f"{name}={value}" for name, value in found.variables.items()), *found.command))
        shown = {"sessionId": session_id, "command": list(found.command), "variables": dict(found.variables)}
        print_result(shell, {**shown, "shell": shell}, as_json=True)
        return None
    code = _run(found)
    name = short_id(session_id)
    click.echo(f"Left. Session {name} is still there: helmsman watch {name}, helmsman session attach {name}", err=True)
    return code


async def _own_terminal(helm: Helmsman, session_id: str) -> OwnTerminal:
    name = short_id(session_id)
    instead = f"`helmsman watch {name}` follows it, `helmsman say {name}` writes to it"
    try:
        return await helm.extras.upkeep.own_terminal(session_id)
    except (SessionLocked, Unsupported) as error:
        message = error.message.replace(" ID`", f" {session_id}`")
        raise type(error)(f"{message} Meanwhile {instead}.", **error.details) from error


def _run(found: OwnTerminal) -> int:
    """Run the program on this terminal, keep its engine alive in parallel, and return the exit code."""
    import signal
    import subprocess

    from helmsman.agents.registry import engine_in_use
    from helmsman.base.caller_context import environment
    from helmsman.cli.consoles import settings_of_command

    with engine_in_use(settings_of_command().state_dir, found.engine):
        before = signal.signal(signal.SIGINT, lambda *_: None)  # leave Ctrl-C to the program
        try:
            with subprocess.Popen(found.command, env={**environment(), **found.variables}) as program:
                return program.wait()
        except OSError as error:
            raise HelmsmanError(f"{found.command[0]} cannot be started: {error}. Is it installed?") from error
        finally:
            signal.signal(signal.SIGINT, before)
