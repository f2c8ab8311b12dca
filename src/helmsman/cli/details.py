"""One thing told in lines of a label and its value, as `status` tells of a session and `tasks show` of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

_LABEL_WIDTH: Final = 10


def print_details(details: Mapping[str, str | None]) -> None:
    """What is known, to stdout; further lines of a value stand below its first."""
    from rich.text import Text

    from helmsman.cli.consoles import is_terminal, result_console
    from helmsman.terminal.layout import fold

    console = result_console()
    below = "\n" + " " * (_LABEL_WIDTH + 1)
    for label, text in details.items():
        begin = f"{label:<{_LABEL_WIDTH}} "
        if not text:
            continue
        if is_terminal(console):
            for line in fold(console, Text(text), lead=Text(begin, "dim")):
                console.print(line)
        else:
            click.echo(begin + text.replace("\n", below))
