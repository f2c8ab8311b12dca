"""Fold styled text to the terminal's width, with indentation and without trailing spaces."""

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
    """Fold text into lines.

    `lead` fills the indent of the first line and sets its width; `below` fills that of the others. `width` is the
    available width, by default the console's.
    """
    indent = indent if lead is None else lead.cell_len
    room = console.width if width is None else width
    # Never exceed the width: the terminal would wrap the line without the indent.
    width = max(1, room - max(indent, below.cell_len if below is not None else 0))
    # Blank lines stay: they separate paragraphs of a message.
    folded = [
        line for part in text.split("\n", allow_blank=True) for line in part.wrap(console, width, overflow="fold")
    ]
    first = Text(" " * indent) if lead is None else lead
    further = Text(" " * indent) if below is None else below
    return indented(folded, first, further) or [first.copy()]


def indented(lines: Iterable[Text], first: Text, further: Text) -> list[Text]:
    """Prefix the first line with `first` and the others with `further`, keeping styles."""
    shown = [Text.assemble(further if number else first, line) for number, line in enumerate(lines)]
    for line in shown:
        # Trailing spaces would be copied with the text, and wrap in a terminal that is then made narrower.
        line.rstrip()
    return shown


def crop(console: Console, text: Text, *, indent: int = INDENT) -> Text:
    """Return the text on one line, truncated with an ellipsis."""
    line = Text(" " * indent).append_text(text)
    # A tab has no fixed width, so a line with tabs cannot be measured.
    line.expand_tabs(8)
    line.truncate(max(_NARROWEST, console.width), overflow="ellipsis")
    return line


def fold_all(console: Console, texts: Iterable[Text]) -> list[Text]:
    return [line for text in texts for line in fold(console, text)]
