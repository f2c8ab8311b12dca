"""One line of a person, typed behind a prompt and edited there; what it was stays on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
from prompt_toolkit.history import InMemoryHistory
from rich.text import Text

from helmsman.base.shown_text import one_line
from helmsman.terminal.line_editor import Key, LineEditor
from helmsman.terminal.line_view import line_rows
from helmsman.terminal.region import Region

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS: Final = 5
_LOOK_SECONDS: Final = 0.2
"""How soon a line is there again that was resized, or in the background."""
_ANSWERS: Final = InMemoryHistory()
"""What was answered so far. It goes with the process: an answer may be anything, and nobody types it twice."""


async def read_line(console: Console, fd: int, prompt: str, *, secret: bool) -> str:
    """A line from the terminal with this descriptor.

    Raises:
        EOFError: The end was typed (Ctrl-D on an empty line), or the terminal is gone.
    """
    region, ended = Region(console), anyio.Event()
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        ended.set()

    def draw() -> None:
        text, cursor = ("", 0) if secret else (editor.text, editor.cursor)
        rows, (row, column) = line_rows(text, cursor, width=console.width - 1 - len(prompt), most=_MOST_ROWS)
        region.draw(_behind(prompt, rows), (row, len(prompt) + column))

    keys = [Key("enter", ended.set), Key("c-d", end, on_empty_line=True)]
    editor = LineEditor(fd, keys, draw, None if secret else _ANSWERS)
    try:
        async with editor.reading(end, region.erase):
            draw()
            while not ended.is_set():
                with anyio.move_on_after(_LOOK_SECONDS):
                    await ended.wait()
                if editor.has_keys:  # it may have been in the background
                    draw()
    finally:
        region.erase()
    text = editor.take(keep=not secret)
    region.print([Text.assemble((prompt, "bold"), "" if secret else one_line(text))])
    if is_over:
        raise EOFError
    return text


def _behind(prompt: str, rows: list[str]) -> list[Text]:
    return [Text.assemble((" " * len(prompt) if number else prompt, "bold"), row) for number, row in enumerate(rows)]
