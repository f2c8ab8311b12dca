"""Fold an edited line to rows of the terminal, showing the part with the cursor."""

from __future__ import annotations

from typing import Final
from unicodedata import category

from rich.cells import cell_len

from helmsman.base.sanitize import visible

_JOINING: Final = "\u200d\ufe0f"
"""Characters that join others into one emoji and have no width."""


def line_rows(text: str, cursor: int, *, width: int, most: int) -> tuple[list[str], tuple[int, int]]:
    """Return at most `most` rows, and the row and column of the cursor."""
    rows, at, cells = [""], (0, 0), 0
    for number, char in enumerate([*text, " "]):
        shown = _shown(char)
        size = cell_len(shown)
        if cells + size > width:
            rows.append("")
            cells = 0
        if number == cursor:
            at = (len(rows) - 1, cells)
        if char == "\n":
            rows.append("")
            cells = 0
        elif number < len(text):
            rows[-1] += shown
            cells += size
    first = min(max(0, at[0] - most + 1), max(0, len(rows) - most))
    return rows[first : first + most], (at[0] - first, at[1])


def _shown(char: str) -> str:
    if char == "\n":
        return ""
    if char == "\t":
        return "  "
    return visible(char) if category(char)[0] in "CZ" and char not in _JOINING else char
