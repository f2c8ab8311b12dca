"""Styled text folded into lines of the terminal's width, under an indent, without spaces at their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

INDENT: Final = 2
_NARROWEST: Final = 20


def fold(
    console: Console,
    text: Text,
    *,
    indent: int = INDENT,
    lead: Text | None = None,
    below: Text | None = None,
    width: int | None = None,
) -> list[Text]:
    """The text in as many lines as it needs. `lead` stands in the indent of the first (and sets its width), `below` in
    that of the others. `width` is all the room there is, if not the console's."""
    indent = indent if lead is None else lead.cell_len
    room = console.width if width is None else width
    # Never more than there is room for: the terminal would break the line itself, with nothing in the indent.
    width = max(1, room - max(indent, below.cell_len if below is not None else 0))
    folded = [
        line for part in text.split("\n", allow_blank=True) for line in part.wrap(console, width, overflow="fold")
    ]
    first = Text(" " * indent) if lead is None else lead
    further = Text(" " * indent) if below is None else below
    return indented(folded, first, further) or [first.copy()]


def indented(lines: Iterable[Text], first: Text, further: Text) -> list[Text]:
    """Lines behind something: `first` before the first, `further` before the others, each in its own style."""
    shown = [Text.assemble(further if number else first, line) for number, line in enumerate(lines)]
    for line in shown:
        line.rstrip()
    return shown


def crop(console: Console, text: Text, *, indent: int = INDENT) -> Text:
    """The text on one line, cut with an ellipsis where it is too long."""
    line = Text(" " * indent).append_text(text)
    line.expand_tabs(8)
    line.truncate(max(_NARROWEST, console.width), overflow="ellipsis")
    return line


def fold_all(console: Console, texts: Iterable[Text]) -> list[Text]:
    return [line for text in texts for line in fold(console, text)]
