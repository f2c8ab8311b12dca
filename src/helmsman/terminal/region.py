"""The last lines of a terminal, which change while everything above them scrolls: one writer owns them.

Each drawing goes over the one before, as a single write. Lines never wrap: they are cut to the width, and the terminal is
told not to, for programs and terminals disagree about how wide some characters are. When the width changes, most terminals
fold anew what stands there, some long before a program can know, and a higher terminal shows again what had scrolled away.
Who owns the whole screen (`Region.restores`) clears it then, and prints the last lines again: nothing stale is left.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

_BEGIN: Final = "\x1b[?2026h\x1b[?25l\x1b[?7l"
"""Shown at once, where the terminal knows how; without a cursor that jumps about; lines are not wrapped."""
_END: Final = "\x1b[?7h\x1b[?2026l"
_SHOW_CURSOR: Final = "\x1b[?25h"
_MARK_PASTES: Final = "\x1b[?2004h"
"""A paste says that it is one, so that a line break in it does not send what was pasted."""
_LEAVE: Final = "\x1b[?2004l\x1b[?25h"
_CLEAR_BELOW: Final = "\x1b[J"
_HOME: Final = "\x1b[H"
_NEXT_LINE: Final = "\x1b[K\r\n"
_KEPT: Final = 300
"""Lines above the region that can be printed again: more than a screen has."""


class Region:
    """Lines at the bottom of a console. Where there is a cursor in them, somebody types there.

    With `restores`, what was printed above them is printed again when the terminal has another size.
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
        """Show these lines, and the cursor in that row and column of them."""
        cut = [self._cut(line) for line in lines]
        drawn = [self._escaped(line) for line in cut]
        size = (self._console.width, self._console.height)
        if (drawn, cursor, size) == (self._drawn, self._cursor, self._size):
            return
        restored = self._restored(len(drawn)) if self._is_stale(size) else ""
        parts = [restored, _BEGIN, self._up(), _NEXT_LINE.join(drawn), _CLEAR_BELOW, "\r"]
        if cursor is not None:
            row, column = cursor
            parts += [_move(len(drawn) - 1 - row, "A"), _move(column, "C"), _MARK_PASTES, _SHOW_CURSOR]
        self._drawn, self._cells = drawn, [line.cell_len for line in cut]
        self._cursor, self._size = cursor, size
        self._write("".join([*parts, _END]))

    def print(self, lines: Sequence[Text]) -> None:
        """Lines that stay, where the region was; it is to be drawn again below them."""
        self._above += lines
        self._write(self._gone() + self._printed(lines))

    def erase(self) -> None:
        """Leave the terminal as if nothing had been drawn."""
        if self._drawn:
            self._write(self._gone() + _LEAVE)

    def _gone(self) -> str:
        up = f"{self._up()}{_CLEAR_BELOW}" if self._drawn else ""
        self._drawn, self._cells, self._cursor = [], [], None
        return up

    def _is_stale(self, size: tuple[int, int]) -> bool:
        """Whether the terminal has moved what stood on it."""
        if not self._drawn:
            return False
        self._was_folded = self._was_folded or size[0] != self._size[0]
        return self._was_folded and size != self._size

    def _restored(self, height: int) -> str:
        """An empty screen with the last lines on it, as many as there is room for above so many more."""
        if not self._restores:
            return self._gone()
        room, lines = self._console.height - height - 1, list[Text]()
        for line in reversed(self._above):
            room -= self._rows(line.cell_len)
            if room < 0:
                break
            lines.insert(0, line)
        self._drawn, self._cells, self._cursor = [], [], None
        return f"{_HOME}{_CLEAR_BELOW}{self._printed(lines) if lines else ''}"

    def _up(self) -> str:
        """To the beginning of the region, from where the cursor was left."""
        row, column = (max(0, len(self._drawn) - 1), 0) if self._cursor is None else self._cursor
        return f"\r{_move(sum(map(self._rows, self._cells[:row])) + column // self._console.width, 'A')}"

    def _rows(self, cells: int) -> int:
        """How many rows a line is folded to."""
        return max(1, -(-cells // max(1, self._console.width)))

    def _printed(self, lines: Sequence[Text]) -> str:
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(lines), soft_wrap=True)
        return captured.get()

    def _cut(self, line: Text) -> Text:
        cut = line.copy()
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
    return f"\x1b[{count}{where}" if count else ""
