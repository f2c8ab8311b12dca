"""Tables that fit the terminal: flexible columns are truncated, and the least important columns are dropped.

Table libraries shrink every column a little, which would truncate the ids that users copy.
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
_READABLE: Final = 16  # minimum width of a flexible column; other columns are dropped first


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Args:
        gives_way: Where it is truncated if space is short: at its end, or at its beginning (for paths).
        left_out: On a narrow terminal, columns with the lowest number are dropped first; None is never dropped.
        usual: The column is omitted if all rows have this value.
    """

    name: str
    style: str = ""
    justify: Literal["left", "right"] = "left"
    gives_way: Literal["no", "at its end", "at its beginning"] = "no"
    left_out: int | None = None
    usual: str | None = None


def fitting_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Return a table with these rows."""
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
        """Return the width left for flexible columns."""
        fixed = sum(natural[at] for at in shown if columns[at].gives_way == "no")
        return console.width - fixed - _GAP * (len(shown) - 1)

    def wanted() -> int:
        return sum(min(natural[at], _READABLE) for at in shown if columns[at].gives_way != "no")

    leaving = sorted((rank, at) for at in shown if (rank := columns[at].left_out) is not None)
    while room() < wanted() and leaving:
        shown.remove(leaving.pop(0)[1])
    left, rooms = room(), dict[int, int]()
    giving_way = sorted((at for at in shown if columns[at].gives_way != "no"), key=natural.__getitem__)
    for place, at in enumerate(giving_way):  # short columns in full if there is room; long ones share the rest
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
    """Format the time elapsed since a moment."""
    seconds = max(0, int((datetime.now(UTC) - time).total_seconds()))
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60} min ago"
    if seconds < 86400:
        return f"{seconds // 3600} h ago"
    days = seconds // 86400
    return "1 day ago" if days == 1 else f"{days} days ago"
