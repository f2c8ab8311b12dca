"""Asking before something is done that cannot be taken back. `--yes` is the answer given beforehand; silence is no."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

import click

from helmsman.cli.consoles import is_terminal, message_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.errors import ConfirmationNeeded

yes_option: Final = click.option("--yes", "-y", "agreed", is_flag=True, help="Do it without asking.")


def can_ask(*, as_json: bool) -> bool:
    """Whether there is a person to ask: at a terminal, and not a program that reads JSON. Then they are asked next."""
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    host().require_own_process()
    return True


def confirmed(question: str) -> bool:
    """Ask a person for a yes. What was typed before the question was on the screen is no answer to it.

    Raises:
        click.Abort: The end was typed (Ctrl-D), or the terminal is gone.
    """
    host().require_own_process()
    if sys.platform == "win32" or not sys.stdin.isatty():
        return click.confirm(question, default=False, err=True)
    import termios

    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    console = message_console()
    if not is_terminal(console):
        return click.confirm(question, default=False, err=True)
    from helmsman.terminal.line_prompt import is_agreed

    try:
        return host().run(partial(is_agreed, console, sys.stdin.fileno(), question))
    except EOFError:
        raise click.Abort from None


def agree(question: str, *, agreed: bool, as_json: bool, otherwise: str | None) -> None:
    """Go on only if somebody says yes, now or beforehand.

    Args:
        question: What the person at the terminal is asked.
        agreed: Whether `--yes` was given.
        as_json: Whether a program reads the output.
        otherwise: Why this cannot be done where nobody can be asked; None: it is then done all the same.

    Raises:
        ConfirmationNeeded: Nobody can be asked.
        click.exceptions.Exit: The person said no.
    """
    if agreed:
        return
    if can_ask(as_json=as_json):
        if not confirmed(question):
            click.echo("Nothing was done.", err=True)
            raise click.exceptions.Exit(ExitCode.FAILED)
    elif otherwise is not None:
        raise ConfirmationNeeded(f"{otherwise} Nothing was done. Add --yes to do it.")
