from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from helmsman.model.change_diff import file_change_diff
from helmsman.model.events import ChangeKind, PathChange
from helmsman.terminal.diffs import change_lines, diff_lines

CHANGED = PathChange(
    path="/repo/app.py", kind="update", diff="@@ -1,2 +1,2 @@\n-old\n+new\n kept\n", added=1, removed=1
)
ADDED = PathChange(path="/repo/new.txt", kind="add", diff="one\ntwo\n", added=2, removed=0)
DELETED = PathChange(path="/etc/gone", kind="delete", diff="bye\n", added=0, removed=1)
MOVED = PathChange(path="/repo/a", kind="update", moved_to="/repo/b", diff="@@ -1 +1 @@\n-x\n+y\n", added=1, removed=1)


def _plain(lines: Iterable[Text]) -> list[str]:
    return [line.plain for line in lines]


def test_a_change_is_shown_under_its_path_seen_from_the_directory() -> None:
    assert _plain(change_lines(CHANGED, "/repo")) == [
        "change app.py  +1 -1",
        "@@ -1,2 +1,2 @@",
        "-old",
        "+new",
        " kept",
    ]


def test_a_path_outside_the_directory_is_shown_whole() -> None:
    assert _plain(change_lines(DELETED, "/repo")) == ["delete /etc/gone  +0 -1", "-bye"]


def test_a_directory_that_merely_begins_alike_does_not_count_as_inside() -> None:
    outside = PathChange(path="/repository/x", kind="add")
    assert _plain(change_lines(outside, "/repo")) == ["add /repository/x"]


def test_a_new_file_is_shown_as_added_lines() -> None:
    assert _plain(change_lines(ADDED, "/repo"))[1:] == ["+one", "+two"]


def test_a_move_names_both_places() -> None:
    assert _plain(change_lines(MOVED, "/repo/"))[0] == "change a → b  +1 -1"


def test_lines_have_the_colours_of_a_diff() -> None:
    styles = {line.plain[:1]: line.style for line in change_lines(CHANGED, "/repo")[1:]}
    assert styles == {"@": "cyan", "-": "red", "+": "green", " ": ""}


def test_a_unified_diff_has_a_heading_for_each_file() -> None:
    diff = file_change_diff([CHANGED, ADDED, DELETED, MOVED], "/repo")
    assert _plain(diff_lines(diff)) == [
        "change app.py  +1 -1",
        *("@@ -1,2 +1,2 @@", "-old", "+new", " kept"),
        "add new.txt  +2 -0",
        *("@@ -0,0 +1,2 @@", "+one", "+two"),
        "delete /etc/gone  +0 -1",
        *("@@ -1 +0,0 @@", "-bye"),
        "change a → b  +1 -1",
        *("@@ -1 +1 @@", "-x", "+y"),
    ]


def test_a_removed_line_that_looks_like_a_header_is_still_shown() -> None:
    diff = (
        "diff --git a/x.sql b/x.sql\n--- a/x.sql\n+++ b/x.sql\n@@ -1,3 +1 @@\n--- drop the table\n-++ b/other\n kept\n"
    )
    assert _plain(diff_lines(diff)) == [
        "change x.sql  +0 -2",
        "@@ -1,3 +1 @@",
        "--- drop the table",
        "-++ b/other",
        " kept",
    ]


def test_a_file_without_content_has_only_its_heading() -> None:
    diff = "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
    assert _plain(diff_lines(diff)) == ["add empty  +0 -0"]


def test_a_binary_file_says_so() -> None:
    diff = "diff --git a/x.png b/x.png\nindex 1..2 100644\nBinary files a/x.png and b/x.png differ\n"
    assert _plain(diff_lines(diff)) == ["change x.png", "Binary files a/x.png and b/x.png differ"]


def test_a_hostile_line_cannot_hide_itself() -> None:
    hostile = PathChange(path="/repo/a\x1b[8m", kind="add", diff="ok\x1b[1A\x1b[2K\n", added=1, removed=0)
    assert _plain(change_lines(hostile, "/repo")) == ["add a\\x1b[8m  +1 -0", "+ok\\x1b[1A\\x1b[2K"]


_CHANGES = st.builds(
    PathChange,
    path=st.text(),
    kind=st.sampled_from(list[ChangeKind](["add", "delete", "update"])),
    moved_to=st.none() | st.text(),
    diff=st.none() | st.text(st.sampled_from("+-@ ab\\\n")),
)


@given(st.text(st.sampled_from("+-@ abdifgt/\\\n")), st.lists(_CHANGES, max_size=3))
def test_no_diff_whatever_raises(diff: str, changes: list[PathChange]) -> None:
    diff_lines(diff)
    diff_lines(file_change_diff(changes))
    for change in changes:
        assert change_lines(change, "/repo")
