"""What commands write: JSON for programs, lists and details for people, and what was done in a sentence.

Nothing here is heavy to import; what draws tables comes when there is one to draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.shown_text import one_line, visible
from helmsman.cli.consoles import is_terminal, result_console
from helmsman.cli.host import host
from helmsman.cli.tables import fitting_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from helmsman.cli.tables import Column
    from helmsman.tasks.model import Task

_LABEL_WIDTH: Final = 10

limit_option: Final = click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Show at most this many."
)
pager_option: Final = click.option("--no-pager", is_flag=True, help="Do not use a pager.")


def print_json(shown: Mapping[str, Any]) -> None:
    """One object, on one line of stdout."""
    from helmsman.shapes.rendering import json_line

    click.echo(json_line(shown))


def print_result(sentence: str, shown: Mapping[str, Any], *, as_json: bool) -> None:
    """Say what was done: to a person in a sentence, or to a program."""
    if as_json:
        print_json(shown)
    else:
        click.echo(visible(sentence), err=True)


WAITING_FOR_YOU: Final = "waiting for you"
"""How a session or task with an open question is described to people, here as in the dashboard. For programs it is
`awaiting_approval`, whatever is asked."""


def standing(status: str) -> str:
    """How a session stands, as the end of a sentence."""
    return {"error": "has failed", "awaiting_approval": f"is {WAITING_FOR_YOU}"}.get(status, f"is {status}")


def task_word(task: Task) -> str:
    """How a task stands, in one word: that it asks or waits is more than that it works."""
    return WAITING_FOR_YOU if task.input_required else "waits" if task.waiting_for else task.status


def print_list(
    shown: Mapping[str, Any],
    rows: Sequence[Sequence[str | None]],
    columns: Sequence[Column],
    cells: Callable[[int], Sequence[Sequence[str | Text]]],
    *,
    nothing: str,
    as_json: bool,
    no_pager: bool = True,
    note: str | None = None,
) -> None:
    """Write a list: as JSON, as a table on a terminal, anywhere else as rows with tabs between their columns.

    Args:
        shown: The JSON.
        rows: What programs get that read columns.
        columns: The columns of the table.
        cells: Its rows, given how wide the terminal is.
        nothing: What to say where there are no rows.
        no_pager: Write it all at once, even where it is longer than the screen.
        note: What a person is told below the table.
    """
    if as_json:
        print_json(shown)
    elif not rows:
        click.echo(nothing, err=True)
    elif is_terminal(console := result_console()):
        _print_paged(console, fitting_table(console, columns, cells(console.width)), no_pager=no_pager)
        if note is not None:
            click.echo(note, err=True)
    else:
        for row in rows:
            click.echo("\t".join(one_line(cell or "") for cell in row))


def print_details(details: Mapping[str, str | None]) -> None:
    """One thing in lines of a label and its value, as far as it is known; further lines of a value stand below its first."""
    from rich.text import Text

    from helmsman.terminal.layout import fold

    console = result_console()
    below = "\n" + " " * (_LABEL_WIDTH + 1)
    for label, text in details.items():
        begin = f"{label:<{_LABEL_WIDTH}} "
        if not text:
            continue
        if is_terminal(console):
            console.print(*fold(console, Text(text), lead=Text(begin, "dim")), sep="\n")
        else:
            click.echo(begin + text.replace("\n", below))


def print_markdown(text: str) -> None:
    """A model's text: on a terminal as what its Markdown means, elsewhere as it was written."""
    console = result_console()
    if is_terminal(console):
        console.print(*markdown_or_text(console, text), sep="\n", soft_wrap=True)
    else:
        click.echo(visible(text) if console.file.isatty() else text)


def markdown_or_text(console: Console, text: str, *, indent: int = 0) -> list[Text]:
    """A model's text for a console, folded: on a terminal as what its Markdown means."""
    if is_terminal(console):
        from helmsman.terminal.markdown import markdown_lines

        return markdown_lines(console, text, indent=indent)
    from rich.text import Text

    from helmsman.terminal.layout import fold

    return fold(console, Text(visible(text)), indent=indent)


def print_diff(patch: bytes, console: Console) -> None:
    """A unified diff for a person to look at."""
    from helmsman.terminal.diffs import diff_lines

    for line in diff_lines(patch.decode("utf-8", "replace")):
        console.print(line, soft_wrap=True)


def page_diff(patch: bytes, console: Console) -> None:
    """A unified diff for a person to look at, in the pager that git would use."""
    with console.capture() as captured:
        print_diff(patch, console)
    if shown := captured.get():
        host().page_as_git(shown)


def counted(number: int, one: str, many: str | None = None) -> str:
    """How many: `1 file`, `2 files`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _print_paged(console: Console, table: Table, *, no_pager: bool) -> None:
    """Write to a terminal; through $PAGER, or less, where it does not fit the screen."""
    if no_pager:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    if text.count("\n") < console.height:  # the prompt needs a line too
        click.echo(text, nl=False, color=True)
    else:
        host().page(text)
