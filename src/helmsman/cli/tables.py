"""Tables that fit the terminal: a column or two give way, and what matters least is left out where it is narrow.

A table library that has to save room takes a little from every column, and cuts the ids that people want to copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_GAP: Final = 2
_READABLE: Final = 16
"""What the column that gives way should keep; below that, others are left out first."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Args:
        gives_way: It is cut, at its end or at its beginning (where a path says least), when there is not enough room.
        left_out: On a narrow terminal the columns with the lowest of these numbers go first; None stays.
        usual: Where every row says this, the column says nothing and is not there.
    """

    name: str
    style: str = ""
    justify: Literal["left", "right"] = "left"
    gives_way: Literal["no", "at its end", "at its beginning"] = "no"
    left_out: int | None = None
    usual: str | None = None


def fitting_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> Table:
    """The rows under the names of their columns."""
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    natural = [max([len(column.name), *(row[at].cell_len for row in cells)]) for at, column in enumerate(columns)]
    shown = [
        at
        for at, column in enumerate(columns)
        if column.usual is None or any(row[at].plain != column.usual for row in cells)
    ]

    def room() -> int:
        """What is left for the columns that give way."""
        fixed = sum(natural[at] for at in shown if columns[at].gives_way == "no")
        return console.width - fixed - _GAP * (len(shown) - 1)

    def wanted() -> int:
        return sum(min(natural[at], _READABLE) for at in shown if columns[at].gives_way != "no")

    leaving = sorted((rank, at) for at in shown if (rank := columns[at].left_out) is not None)
    while room() < wanted() and leaving:
        shown.remove(leaving.pop(0)[1])
    left, rooms = room(), dict[int, int]()
    giving_way = sorted((at for at in shown if columns[at].gives_way != "no"), key=natural.__getitem__)
    for place, at in enumerate(giving_way):  # the short ones whole, where there is room; the long ones share the rest
        rooms[at] = min(natural[at], max(left, 0) // (len(giving_way) - place))
        left -= rooms[at]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for at in shown:
        table.add_column(columns[at].name, style=columns[at].style, justify=columns[at].justify, no_wrap=True)
    for row in cells:
        table.add_row(*(_cut(row[at], rooms.get(at, 0), columns[at]) for at in shown))
    return table


def _cut(cell: Text, room: int, column: Column) -> Text:
    room = max(room, len(column.name), 1)
    if column.gives_way == "no" or cell.cell_len <= room:
        return cell
    if column.gives_way == "at its end":
        cut = cell.copy()
        cut.truncate(room, overflow="ellipsis")
        return cut
    first = 1
    while cell[first:].cell_len > room - 1:
        first += 1
    return cell.blank_copy("…").append_text(cell[first:])


def ago(time: datetime) -> str:
    """How long ago, as people say it."""
    seconds = max(0, int((datetime.now(UTC) - time).total_seconds()))
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60} min ago"
    if seconds < 86400:
        return f"{seconds // 3600} h ago"
    days = seconds // 86400
    return "1 day ago" if days == 1 else f"{days} days ago"
