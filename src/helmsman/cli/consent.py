"""Confirmation before irreversible actions. `--yes` confirms in advance; an empty answer declines."""

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
    """Return whether a user can be asked on a terminal. The caller must then ask."""
    if as_json or not (host().on_terminal(0) and host().on_terminal(2)):
        return False
    host().require_own_process()
    return True


def confirmed(question: str) -> bool:
    """Ask the user to confirm, ignoring keys typed before the question appeared.

    Raises:
        click.Abort: Ctrl-D was pressed, or the terminal was closed.
    """
    host().require_own_process()
    if sys.platform == "win32" or not sys.stdin.isatty():
        return click.confirm(question, default=False, err=True)
    import termios

    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    console = message_console()
    if not is_terminal(console):
        return click.confirm(question, default=False, err=True)
    from helmsman.terminal.line_editor import is_agreed

    try:
        return host().run(partial(is_agreed, console, sys.stdin.fileno(), question))
    except EOFError:
        raise click.Abort from None


def agree(question: str, *, agreed: bool, as_json: bool, otherwise: str | None) -> None:
    """Continue only if the user agrees, now or with `--yes`.

    Args:
        question: The question for the user at the terminal.
        agreed: Whether `--yes` was given.
        as_json: Whether a program reads the output.
        otherwise: Why confirmation is required without a terminal; None means it is not.

    Raises:
        ConfirmationNeeded: There is no terminal to ask on.
        click.exceptions.Exit: The user declined.
    """
    if agreed:
        return
    if can_ask(as_json=as_json):
        if not confirmed(question):
            click.echo("Nothing was done.", err=True)
            raise click.exceptions.Exit(ExitCode.FAILED)
    elif otherwise is not None:
        raise ConfirmationNeeded(f"{otherwise} Nothing was done. Add --yes to do it.")
