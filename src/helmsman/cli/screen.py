"""Terminal output that scrolls above a live region: unfinished text, progress and the input line.

The event loop does all the drawing, never a thread, so drawing can read any state. `paused` yields the terminal to
other code; lines printed during a pause are buffered.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio

from helmsman.terminal.keyboard import in_background
from helmsman.terminal.region import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

_FRAME_SECONDS: Final = 0.1


class TypedLine(Protocol):
    """Input line."""

    def rows(self, console: Console) -> tuple[list[Text], tuple[int, int]] | None:
        """Return its lines and the row and column of the cursor, or None if there is no input."""


class Screen:
    """Prints lines to a console; `changing` is the live region below them, `line` the input line below that."""

    def __init__(self, console: Console, changing: Callable[[], Sequence[Text]] | None) -> None:
        self._console = console
        self._changing = changing
        self._region = Region(console, restores=True)
        self._kept: list[Text] = []
        self._pauses = 0
        self._is_open = False
        self.line: TypedLine | None = None

    def __enter__(self) -> Self:
        self._is_open = self._changing is not None
        self.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the live region until the screen is entered again."""
        self._is_open = False
        self._region.erase()

    def print(self, lines: Sequence[Text]) -> None:
        if self._pauses:
            self._kept += lines
        elif lines:
            self._region.print(lines)
            self.refresh()

    def refresh(self) -> None:
        """Draw the live region."""
        if self._changing is None or not self._is_open or self._pauses or in_background(self._console.file.fileno()):
            return
        lines, cursor = [*self._changing()], None
        typed = None if self.line is None else self.line.rows(self._console)
        if typed is not None:
            rows, (row, column) = typed
            cursor = (len(lines) + row, column)
            lines += rows
        too_many = max(0, len(lines) - max(1, self._console.height - 1))
        self._region.draw(lines[too_many:], None if cursor is None else (max(0, cursor[0] - too_many), cursor[1]))

    def step_aside(self) -> None:
        """Remove the live region until the next drawing."""
        self._region.erase()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Yield the terminal to other code during the block."""
        self._pauses += 1
        self._region.erase()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                kept, self._kept = self._kept, []
                self.print(kept)
                self.refresh()

    async def animate(self) -> None:
        """Redraw until cancelled."""
        while self._is_open:
            self.refresh()
            await anyio.sleep(_FRAME_SECONDS)
