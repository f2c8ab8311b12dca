"""Region at the bottom of a terminal that is redrawn while output above it scrolls; it has one writer.

Each frame replaces the previous one in a single write. Lines are cut to the width, and wrapping is disabled, because
programs and terminals disagree about the width of some characters. When the width changes, most terminals wrap existing
lines again, some before the program is notified, and a higher terminal shows lines from the scrollback. An owner of the
whole screen (`Region.restores`) then clears it and prints the last lines again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

_BEGIN: Final = "\x1b[?2026h\x1b[?25l\x1b[?7l"
"""Synchronized output, if supported; hide the cursor; disable wrapping."""
_END: Final = "\x1b[?7h\x1b[?2026l"
_SHOW_CURSOR: Final = "\x1b[?25h"
_MARK_PASTES: Final = "\x1b[?2004h"
"""Bracketed paste, so that a line break in a paste does not submit the line."""
_LEAVE: Final = "\x1b[?2004l\x1b[?25h"
_CLEAR_BELOW: Final = "\x1b[J"
_HOME: Final = "\x1b[H"
_NEXT_LINE: Final = "\x1b[K\r\n"
_KEPT: Final = 300
"""Lines above the region that can be restored: more than a screen has."""


class Region:
    """Lines at the bottom of a console, with a cursor if the user types there.

    With `restores`, the output above is printed again after a resize.
    """

    def __init__(self, console: Console, *, restores: bool = False) -> None:
        self._console = console
        self._restores = restores
        self._drawn: list[str] = []
        self._cells: list[int] = []
        self._cursor: tuple[int, int] | None = None
        self._size = (0, 0)
        self._was_folded = False
        self._above: deque[Text] = deque(maxlen=_KEPT)

    def draw(self, lines: Sequence[Text], cursor: tuple[int, int] | None = None) -> None:
        """Draw these lines, with the cursor at a row and column of them."""
        cut = [self._cut(line) for line in lines]
        drawn = [self._escaped(line) for line in cut]
        size = (self._console.width, self._console.height)
        # Redrawing on each event would flicker and fill slow connections.
        if (drawn, cursor, size) == (self._drawn, self._cursor, self._size):
            return
        # Restore before anything is measured: after a resize the region is not where it was.
        restored = self._restored(len(drawn)) if self._is_stale(size) else ""
        parts = [restored, _BEGIN, self._up(), _NEXT_LINE.join(drawn), _CLEAR_BELOW, "\r"]
        if cursor is not None:
            row, column = cursor
            parts += [_move(len(drawn) - 1 - row, "A"), _move(column, "C"), _MARK_PASTES, _SHOW_CURSOR]
        # Plain rows are kept to see whether the next frame differs, widths to find its beginning after a resize.
        self._drawn, self._cells = drawn, [line.cell_len for line in cut]
        self._cursor, self._size = cursor, size
        self._write("".join([*parts, _END]))

    def print(self, lines: Sequence[Text]) -> None:
        """Print permanent lines in place of the region, which must be drawn again below."""
        self._above += lines
        self._write(self._gone() + self._printed(lines))

    def erase(self) -> None:
        """Remove the region from the terminal."""
        if self._drawn:
            self._write(self._gone() + _LEAVE)

    def _gone(self) -> str:
        up = f"{self._up()}{_CLEAR_BELOW}" if self._drawn else ""
        self._drawn, self._cells, self._cursor = [], [], None
        return up

    def _is_stale(self, size: tuple[int, int]) -> bool:
        """Return whether a resize has moved the region."""
        if not self._drawn:
            return False
        # Once folded, rows of the old frame stay on screen until it is restored, also after further resizes.
        self._was_folded = self._was_folded or size[0] != self._size[0]
        return self._was_folded and size != self._size

    def _restored(self, height: int) -> str:
        """Clear the screen and print as many of the last lines as fit above `height` lines."""
        # Without the scrollback, removing the region is all that is safe.
        if not self._restores:
            return self._gone()
        room, lines = self._console.height - height - 1, list[Text]()
        for line in reversed(self._above):
            # Old lines wrap at the new width, so they are measured again.
            room -= self._rows(line.cell_len)
            if room < 0:
                break
            lines.insert(0, line)
        self._drawn, self._cells, self._cursor = [], [], None
        return f"{_HOME}{_CLEAR_BELOW}{self._printed(lines) if lines else ''}"

    def _up(self) -> str:
        """Move from the cursor to the beginning of the region."""
        row, column = (max(0, len(self._drawn) - 1), 0) if self._cursor is None else self._cursor
        # Rows above the cursor may have wrapped since they were drawn.
        return f"\r{_move(sum(map(self._rows, self._cells[:row])) + column // self._console.width, 'A')}"

    def _rows(self, cells: int) -> int:
        """Return the number of rows of a wrapped line."""
        return max(1, -(-cells // max(1, self._console.width)))

    def _printed(self, lines: Sequence[Text]) -> str:
        with self._console.capture() as captured:
            # The lines are folded already, so Rich must neither wrap nor crop them.
            self._console.print(Text("\n").join(lines), soft_wrap=True)
        return captured.get()

    def _cut(self, line: Text) -> Text:
        cut = line.copy()
        # A full last column leaves the cursor in a state that terminals treat differently.
        cut.truncate(max(1, self._console.width - 1), overflow="ellipsis")
        return cut

    def _escaped(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _write(self, data: str) -> None:
        self._console.file.write(data)
        self._console.file.flush()


def _move(count: int, where: str) -> str:
    # A count of zero would still move by one.
    return f"\x1b[{count}{where}" if count else ""
