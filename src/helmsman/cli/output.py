"""Output of commands: JSON for programs; tables, details and sentences for people.

Table code is imported only when a table is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from helmsman.base.sanitize import one_line, visible
from helmsman.cli.consoles import echo, is_terminal, message_console, result_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.errors import ConfirmationNeeded, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from helmsman.tasks.model import Task


ItemT = TypeVar("ItemT")

_GAP: Final = 2
_READABLE: Final = 16  # minimum width of a flexible column; other columns are dropped first


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Args:
        gives_way: Where it is truncated if space is short: at its end, or at its beginning (for paths).
        left_out: On a narrow terminal, columns with the lowest number are dropped first; None is never dropped.
        usual: The column is omitted if all rows have this value.
    """

    name: str
    style: str = ""
    justify: Literal["left", "right"] = "left"
    gives_way: Literal["no", "at its end", "at its beginning"] = "no"
    left_out: int | None = None
    usual: str | None = None


def fitting_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Return a table with these rows."""
    from rich.table import Table
    from rich.text import Text

    # As `Text`, whose width counts wide characters twice.
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    natural = [max([len(column.name), *(row[at].cell_len for row in cells)]) for at, column in enumerate(columns)]
    # A column that says the same in all rows only takes room.
    shown = [
        at
        for at, column in enumerate(columns)
        if column.usual is None or any(row[at].plain != column.usual for row in cells)
    ]

    def room() -> int:
        """Return the width left for flexible columns."""
        fixed = sum(natural[at] for at in shown if columns[at].gives_way == "no")
        return console.width - fixed - _GAP * (len(shown) - 1)

    def wanted() -> int:
        return sum(min(natural[at], _READABLE) for at in shown if columns[at].gives_way != "no")

    # The least important columns leave first, one by one.
    leaving = sorted((rank, at) for at in shown if (rank := columns[at].left_out) is not None)
    while room() < wanted() and leaving:
        shown.remove(leaving.pop(0)[1])
    left, rooms = room(), dict[int, int]()
    # Shortest first: what they do not need goes to the others.
    giving_way = sorted((at for at in shown if columns[at].gives_way != "no"), key=natural.__getitem__)
    for place, at in enumerate(giving_way):  # short columns in full if there is room; long ones share the rest
        rooms[at] = min(natural[at], max(left, 0) // (len(giving_way) - place))
        left -= rooms[at]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for at in shown:
        # Cut here, because Rich would wrap cells into several lines.
        table.add_column(columns[at].name, style=columns[at].style, justify=columns[at].justify, no_wrap=True)
    for row in cells:
        table.add_row(*(_cut(row[at], rooms.get(at, 0), columns[at]) for at in shown))
    return table


def _cut(cell: Text, room: int, column: Column) -> Text:
    # Never narrower than the heading.
    room = max(room, len(column.name), 1)
    if column.gives_way == "no" or cell.cell_len <= room:
        return cell
    if column.gives_way == "at its end":
        cut = cell.copy()
        cut.truncate(room, overflow="ellipsis")
        return cut
    # For paths: the end tells more.
    first = 1
    while cell[first:].cell_len > room - 1:
        first += 1
    return cell.blank_copy("…").append_text(cell[first:])


def local(time: datetime) -> str:
    """Format a moment in the user's time zone."""
    return f"{time.astimezone():%Y-%m-%d %H:%M}"


def ago(time: datetime) -> str:
    """Format the time elapsed since a moment."""
    # Clocks of machines differ, so a time may be in the future.
    seconds = max(0, int((datetime.now(UTC) - time).total_seconds()))
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60} min ago"
    if seconds < 86400:
        return f"{seconds // 3600} h ago"
    days = seconds // 86400
    return "1 day ago" if days == 1 else f"{days} days ago"


_LABEL_WIDTH: Final = 10


def print_json(shown: Mapping[str, Any]) -> None:
    """Print one object as a single line on stdout."""
    from helmsman.shapes.rendering import json_line

    echo(json_line(shown))


def print_result(sentence: str, shown: Mapping[str, Any], *, as_json: bool) -> None:
    """Report the result: a sentence for people on stderr, or JSON."""
    if as_json:
        print_json(shown)
    else:
        print_message(sentence)


def print_error(message: str) -> None:
    """Print an error for people on stderr."""
    print_message(f"Error: {message}")


def print_message(message: str) -> None:
    """Print a message for people on stderr, wrapped at words on a terminal."""
    console, text = message_console(), visible(message)
    if is_terminal(console):
        # Not within words: an address or a command can then still be opened and copied.
        wrap = TextWrapper(console.width, replace_whitespace=False, break_long_words=False, break_on_hyphens=False).wrap
        text = "\n".join(part for line in text.split("\n") for part in wrap(line) or [""])
    echo(text, err=True)


WAITING_FOR_YOU: Final = "waiting for you"
"""Description of a session or task with an open question, as in the dashboard. Its status for programs is
`awaiting_approval` for every kind of question.
"""


def session_word(status: str) -> str:
    """Return the state of a session as a word, the same in all lists."""
    return {"awaiting_approval": WAITING_FOR_YOU, "active": "running", "error": "failed"}.get(status, status)


def standing(status: str) -> str:
    """Return the state of a session as the end of a sentence."""
    return {"error": "has failed", "awaiting_approval": f"is {WAITING_FOR_YOU}"}.get(status, f"is {status}")


def task_word(task: Task) -> str:
    """Return the state of a task as a short phrase. Questions and waits take precedence over its status."""
    return WAITING_FOR_YOU if task.input_required else "waits" if task.waiting_for else task.status


def the_only_one(found: Sequence[ItemT], what: str, reference: str, listed_by: str) -> ItemT:
    """Return the only thing that was found by this reference: an ambiguous one must not be acted on.

    Raises:
        InvalidInput: There is none, or there are several.
    """
    if len(found) == 1:
        return found[0]
    problem = f"There is no {what}" if not found else f"There is more than one {what}"
    raise InvalidInput(f"{problem} {one_line(reference)}. `{listed_by}` lists them.")


def print_list(
    shown: Mapping[str, Any],
    rows: Sequence[Sequence[str | None]],
    columns: Sequence[Column],
    cells: Callable[[int], Sequence[Sequence[str | Text]]] | None = None,
    *,
    nothing: str,
    as_json: bool,
    note: str | None = None,
    below: Callable[[], Sequence[Text]] | None = None,
) -> None:
    """Print a list: as JSON, as a table on a terminal, or as tab-separated rows.

    Args:
        shown: The JSON object.
        rows: Rows for programs that read columns.
        columns: Columns of the table.
        cells: Returns the table's rows for the width of the terminal, where they differ from `rows`.
        nothing: Message for an empty list.
        note: Note for the user below the table.
        below: Returns a line for the user below each row.
    """
    if as_json:
        print_json(shown)
    elif not rows:
        print_message(nothing)
    elif is_terminal(console := result_console()):
        drawn = [[cell or "" for cell in row] for row in rows] if cells is None else cells(console.width)
        _print_paged(console, fitting_table(console, columns, drawn), [] if below is None else below())
        if note is not None:
            print_message(note)
    else:
        # Tabs and line breaks inside cells would add columns and rows.
        for row in rows:
            echo("\t".join(one_line(cell or "") for cell in row))


def print_details(details: Mapping[str, str | None]) -> None:
    """Print labelled values, omitting empty ones; continuation lines are indented below the first."""
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
            echo(begin + text.replace("\n", below))


def print_markdown(text: str) -> None:
    """Print a model's text: rendered Markdown on a terminal, the source otherwise."""
    console = result_console()
    if is_terminal(console):
        # The lines are folded already.
        console.print(*markdown_or_text(console, text), sep="\n", soft_wrap=True)
    else:
        # A terminal without cursor control still obeys control characters; a pipe gets the text as it is.
        echo(visible(text) if console.file.isatty() else text)


def markdown_or_text(console: Console, text: str, *, indent: int = 0) -> list[Text]:
    """Return a model's text as folded lines, with rendered Markdown on a terminal."""
    if is_terminal(console):
        from helmsman.terminal.markdown import markdown_lines

        return markdown_lines(console, text, indent=indent)
    from rich.text import Text

    from helmsman.terminal.layout import fold

    return fold(console, Text(visible(text)), indent=indent)


def print_diff(patch: bytes, console: Console) -> None:
    """Print a unified diff for reading."""
    from helmsman.terminal.diffs import diff_lines

    for line in diff_lines(patch.decode("utf-8", "replace")):
        console.print(line, soft_wrap=True)


def page_diff(patch: bytes, console: Console) -> None:
    """Show a unified diff in git's pager."""
    with console.capture() as captured:
        print_diff(patch, console)
    if shown := captured.get():
        host().page(shown, as_git=True)


def spent_by(agent: Mapping[str, Any]) -> str:
    """Return the tokens and the cost of a sub-agent (`helmsman.shapes.sub_agents.sub_agents_output`)."""
    tokens = f"{agent['tokens']:,} tokens" if "tokens" in agent else None
    return ", ".join(filter(None, (tokens, dollars(agent["costUsd"]) if "costUsd" in agent else None)))


def dollars(cost: float) -> str:
    """Format a cost. A small one would be shown as $0.00 with two digits."""
    return f"${cost:.2f}" if cost >= 0.01 else f"${cost:.4f}"


def _print_paged(console: Console, table: Table, below: Sequence[Text]) -> None:
    """Print a table to a terminal; through $PAGER or less if it does not fit the screen."""
    from rich.text import Text

    with console.capture() as captured:
        console.print(table)
    heading, *rows = captured.get().splitlines(keepends=True)
    text = heading
    for row, line in zip_longest(rows, below):
        with console.capture() as captured:
            if line is not None:
                console.print(Text.assemble("  ", line), no_wrap=True, overflow="ellipsis")
        text += row + captured.get()
    if text.count("\n") < console.height:  # leave a line for the prompt
        echo(text, nl=False, color=True)
    else:
        host().page(text)


def can_ask(*, as_json: bool) -> bool:
    """Return whether a user can be asked on a terminal. The caller must then ask."""
    # Both: input for the answer, and stderr for the question.
    if as_json or not (host().on_terminal(0) and host().on_terminal(2)):
        return False
    # The hub cannot ask on the user's terminal.
    host().require_own_process()
    return True


def confirmed(question: str) -> bool:
    """Ask the user to confirm, ignoring keys typed before the question appeared.

    Raises:
        click.Abort: Ctrl-D was pressed, or the terminal was closed.
    """
    host().require_own_process()
    from helmsman.terminal.dialogue import is_agreed
    from helmsman.terminal.keyboard import open_keyboard

    with open_keyboard() as keyboard:
        # Windows has no keys without Enter.
        if keyboard is None:
            return click.confirm(question, default=False, err=True)
        try:
            return host().run(partial(is_agreed, message_console(), keyboard, question))
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
        # Without loss nothing needs a confirmation.
        raise ConfirmationNeeded(f"{otherwise} Nothing was done. Add --yes to do it.")
