"""Prompt for one editable line, or for yes or no; the input stays on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
from prompt_toolkit.history import InMemoryHistory
from rich.cells import cell_len
from rich.text import Text

from helmsman.base.sanitize import one_line
from helmsman.terminal.line_editor import Key, LineEditor, line_rows
from helmsman.terminal.region import Region

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS: Final = 5
_LOOK_SECONDS: Final = 0.2
"""Interval for redrawing after a resize or a return from the background."""
_YES: Final = ("y", "yes")
_NO: Final = ("", "n", "no")
_ROOM: Final = 6
"""Columns for an answer in the last line of a question."""
_ANSWERS: Final = InMemoryHistory()
"""History of answers, for this process only: an answer may be confidential and is rarely repeated."""


async def is_agreed(console: Console, fd: int, question: str) -> bool:
    """Ask for yes or no. Empty input means no; other input repeats the question.

    Raises:
        EOFError: As for `read_line`.
    """
    width = max(1, console.width - _ROOM)
    about, stop, asked = question.rpartition(". ")
    if stop and cell_len(f"{question} [y/N]: ") > width:  # keep the question on one line
        console.print(Text(f"{about}."))
        question = asked
    *above, last = Text(f"{question} [y/N]: ").wrap(console, width)
    if above:
        console.print(*above, sep="\n")
    while True:
        answer = (await read_line(console, fd, f"{last.plain.rstrip()} ", secret=False)).strip().lower()
        if answer in _YES or answer in _NO:
            return answer in _YES
        console.print("Type y or n.")


async def read_line(console: Console, fd: int, prompt: str, *, secret: bool) -> str:
    """Read a line from the terminal with this descriptor.

    Raises:
        EOFError: Ctrl-D was typed on an empty line, or the terminal is gone.
    """
    region, ended, indent = Region(console), anyio.Event(), cell_len(prompt)
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        ended.set()

    def draw() -> None:
        text, cursor = ("", 0) if secret else (editor.text, editor.cursor)
        rows, (row, column) = line_rows(text, cursor, width=console.width - 1 - indent, most=_MOST_ROWS)
        region.draw(_behind(prompt, rows), (row, indent + column))

    keys = [Key("enter", ended.set), Key("c-d", end, on_empty_line=True)]
    editor = LineEditor(fd, keys, draw, None if secret else _ANSWERS)
    try:
        async with editor.reading(end, region.erase):
            draw()
            while not ended.is_set():
                with anyio.move_on_after(_LOOK_SECONDS):
                    await ended.wait()
                if editor.has_keys:  # may have been in the background
                    draw()
    finally:
        region.erase()
    text = editor.take(keep=not secret)
    region.print([Text.assemble((prompt, "bold"), "" if secret else one_line(text))])
    if is_over:
        raise EOFError
    return text


def _behind(prompt: str, rows: list[str]) -> list[Text]:
    return [
        Text.assemble((" " * cell_len(prompt) if number else prompt, "bold"), row) for number, row in enumerate(rows)
    ]
