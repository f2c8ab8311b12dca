"""One thing told in lines of a label and its value, as `status` tells of a session and `tasks show` of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LABEL_WIDTH: Final = 10


def detail_lines(details: Mapping[str, str | None]) -> list[str]:
    """A line for each that is known; further lines of a value stand below its first."""
    below = "\n" + " " * (_LABEL_WIDTH + 1)
    return [f"{label:<{_LABEL_WIDTH}} {text.replace(chr(10), below)}" for label, text in details.items() if text]
