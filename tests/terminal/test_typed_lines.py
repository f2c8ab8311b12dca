"""A line that somebody types: how it looks on a terminal, and what is kept of it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from helmsman.cli.screen import MOST_LINES, KeptHistory
from helmsman.terminal.line_editor import line_rows


@pytest.mark.parametrize(
    ("text", "cursor", "rows", "at"),
    [
        ("", 0, [""], (0, 0)),
        ("abc", 1, ["abc"], (0, 1)),
        ("abcdefgh", 8, ["abcdefgh", ""], (1, 0)),  # the cursor needs a cell of its own
        ("漢字漢字漢字", 5, ["漢字漢字", "漢字"], (1, 2)),
        ("abc漢字漢", 6, ["abc漢字", "漢"], (1, 2)),  # half a character does not fit
        ("e\u0301e", 2, ["e\u0301e"], (0, 1)),
        ("a\nb", 2, ["a", "b"], (1, 0)),
        ("a\x1b[2Jb", 6, ["a\\x1b[2J", "b"], (1, 1)),
        ("1\n2\n3\n4", 0, ["1", "2", "3"], (0, 0)),
        ("1\n2\n3\n4", 7, ["2", "3", "4"], (2, 1)),
    ],
)
def test_a_line_is_folded_by_cells_around_the_cursor(
    text: str, cursor: int, rows: list[str], at: tuple[int, int]
) -> None:
    assert line_rows(text, cursor, width=8, most=3) == (rows, at)


def test_typed_lines_are_stored_privately_without_secrets_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "typed"
    history = KeptHistory(file)
    history.store_string("Use\ntabs")
    history.store_string("export API_TOKEN=hunter2hunter2")
    history.store_string("x" * 100_000)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hunter2" not in file.read_text(encoding="utf-8")
    newest, oldest = KeptHistory(file).load_history_strings()
    assert newest.startswith("export API_TOKEN=")
    assert oldest == "Use\ntabs"
    file.write_text("".join(f"{json.dumps(str(number))}\n" for number in range(3 * MOST_LINES)) + "broken\n")
    assert next(iter(KeptHistory(file).load_history_strings())) == str(3 * MOST_LINES - 1)
    assert len(file.read_text(encoding="utf-8").splitlines()) == MOST_LINES
    assert [*KeptHistory(tmp_path / "nowhere" / "typed").load_history_strings()] == []
    KeptHistory(tmp_path / "nowhere" / "typed").store_string("lost")
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link"
    elsewhere.touch()
    link.symlink_to(elsewhere)
    KeptHistory(link).store_string("lost")
    assert not elsewhere.read_bytes()
