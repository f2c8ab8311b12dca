"""Tables that fit the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from helmsman.cli.output import Column, fitting_table

COLUMNS = (
    Column("TO"),
    Column("STATUS"),
    Column("WHAT", gives_way="at its end"),
    Column("NOTE", gives_way="at its end"),
)


@pytest.mark.parametrize(
    ("note", "what"), [("", "W" * 50), ("It was late", "W" * 39), ("N" * 60, "W" * 29)], ids=["no", "short", "long"]
)
def test_columns_that_give_way_share_what_the_others_leave(note: str, what: str) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    console.print(fitting_table(console, COLUMNS, [("desktop", "failed", "W" * 50, note)]))
    line = shown.getvalue().splitlines()[1]
    assert line.startswith("desktop  failed  ")
    assert what in line
    assert note[:20] in line
