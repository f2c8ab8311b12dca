"""A diff is read as git reads it, and nothing of it is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helmsman.git.diff import DiffLine, FileDiff, read_change, read_diff
from helmsman.model.events import ChangeKind, PathChange

NOT_LINE_ENDS = "\u2028\u2029\x0b\x0c\x1c\x1d\x1e\x85\r"
"""Where Python's `splitlines`, JavaScript's `^` and `$` or a terminal see the end of a line, and git does not."""


def _texts(file: FileDiff) -> list[str]:
    return [line.text for line in file.lines]


def test_lines_end_where_git_ends_them_and_nowhere_else() -> None:
    body = "".join(f"+before{char}after\n" for char in NOT_LINE_ENDS)
    diff = (
        f"diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,{len(NOT_LINE_ENDS)} @@\n{body}"
    )
    (file,) = read_diff(diff)
    assert (file.path, file.kind, file.added, file.removed) == ("x", "added", len(NOT_LINE_ENDS), 0)
    assert _texts(file)[1:] == [f"+before{char}after" for char in NOT_LINE_ENDS]


def test_lines_that_look_like_headers_are_lines_of_their_file() -> None:
    diff = (
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n"
        "--- a/other\n-diff --git a/y b/y\n-@@ -1 +1 @@\n+++ b/other\n+diff --git a/z b/z\n+@@ -9 +9 @@\n"
    )
    (file,) = read_diff(diff)
    assert (file.path, file.added, file.removed) == ("x", 3, 3)
    assert [(line.kind, line.text) for line in file.lines[1:]] == [
        ("remove", "--- a/other"),
        ("remove", "-diff --git a/y b/y"),
        ("remove", "-@@ -1 +1 @@"),
        ("add", "+++ b/other"),
        ("add", "+diff --git a/z b/z"),
        ("add", "+@@ -9 +9 @@"),
    ]


def test_a_diff_in_a_file_is_a_file() -> None:
    inner = "diff --git a/in b/in\n--- a/in\n+++ b/in\n@@ -1 +1 @@\n-a\n+b\n"
    change = PathChange(path="fix.patch", kind="add", diff=inner)
    assert _texts(read_change(change)) == [f"+{line}" for line in inner.split("\n")[:-1]]


def test_lines_are_numbered_in_both_files() -> None:
    (file,) = read_diff("--- a/x\n+++ b/x\n@@ -4,3 +4,3 @@ def f():\n a\n-b\n+c\n\n\\ No newline at end of file\n")
    assert [(line.before, line.after) for line in file.lines] == [
        *((None, None), (4, 4), (5, None), (None, 5)),
        *((6, 6), (None, None)),
    ]


@pytest.mark.parametrize(
    "diff",
    [
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n+b\n",  # fewer lines than it says
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,9 @@\n-a\n-b\n+c\n",  # others than it says
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\nnonsense\n+b\n",
    ],
)
def test_a_file_whose_hunks_do_not_add_up_is_shown_as_it_stands(diff: str) -> None:
    (file,) = read_diff(diff)
    assert (file.path, file.added, file.removed) == ("x", None, None)
    assert "\n".join(_texts(file)) + "\n" == diff
    assert {line.kind for line in file.lines} == {"raw"}


def test_text_outside_of_hunks_is_shown_unchanged() -> None:
    diff = "hello\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n+not counted\n-- \n2.40\n"
    before, file = read_diff(diff)
    assert (before.path, _texts(before)) == ("", ["hello"])
    assert (file.added, file.removed) == (1, 1)
    assert [line.text for line in file.lines if line.kind == "raw"] == ["+not counted", "-- ", "2.40"]


@pytest.mark.parametrize(
    "header",
    [
        "diff --git a/readme b/readme\n--- a/readme\n+++ b/etc/passwd",
        "diff --git a/readme b/readme\n--- a/etc/passwd\n+++ b/readme",
        "diff --git a/etc/passwd b/etc/passwd\n--- a/readme\n+++ b/readme",
    ],
)
def test_names_that_do_not_agree_are_all_shown(header: str) -> None:
    (file,) = read_diff(f"{header}\n@@ -1 +1 @@\n-a\n+b\n")
    shown = f"{file.path}\n" + "\n".join(_texts(file))
    assert "readme" in shown
    assert "etc/passwd" in shown


@pytest.mark.parametrize(
    ("header", "path", "old_path", "kind"),
    [
        ("diff --git a/a b b/a b\nold mode 100644\nnew mode 100755", "a b", None, "mode"),
        ('diff --git "a/\\303\\244\\n" "b/\\303\\244\\n"\nnew file mode 100644', "ä\n", None, "added"),
        (
            "diff --git a/old b/new x\nsimilarity index 100%\nrename from old\nrename to new x",
            "new x",
            "old",
            "renamed",
        ),
        ("diff --git a/old b/new\nsimilarity index 100%\ncopy from old\ncopy to new", "new", "old", "copied"),
        ("diff --git a/gone b/gone\ndeleted file mode 100644\nindex e69de29..0000000", "gone", None, "deleted"),
        ("diff --git a//etc/hosts b//etc/hosts\nnew file mode 100644", "/etc/hosts", None, "added"),
    ],
)
def test_files_without_a_hunk_are_named(header: str, path: str, old_path: str | None, kind: str) -> None:
    (file,) = read_diff(header + "\n")
    assert (file.path, file.old_path, file.kind) == (path, old_path, kind)


def test_a_program_and_a_link_are_distinguished_from_a_file() -> None:
    for mode in ("100755", "120000", "160000"):
        (file,) = read_diff(f"diff --git a/x b/x\nnew file mode {mode}\n")
        assert file.lines == (DiffLine("note", f"new file mode {mode}"),)


@pytest.mark.parametrize("kind", ["add", "delete"])
def test_a_whole_file_has_as_many_lines_as_git_says(kind: ChangeKind) -> None:
    read = read_change(PathChange(path="x", kind=kind, diff=f"a{NOT_LINE_ENDS}b\n\nlast"))
    assert len(read.lines) == (read.added or read.removed) == 3


_HEADERS = (
    "diff --git a/x b/x",
    "--- a/x",
    "+++ b/x",
    "--- /dev/null",
    "new file mode 100644",
    "rename from x",
    "index 1..2",
)
_BODY = (
    "@@ -1 +1 @@",
    "@@ -1,2 +0,0 @@",
    "@@ -0,0 +1,3 @@",
    "+a",
    "-a",
    " a",
    "",
    "\\ No newline at end of file",
    "+++ b/y",
    "x",
)
_OTHERS = (
    "new file mode 100755",
    "old mode 100644",
    "Binary files differ",
    "GIT binary patch",
    "--- a/y",
    "+\u2028",
    "-\r",
)
_PIECES = st.sampled_from([*_HEADERS, *_BODY, *_OTHERS])
_SAID_BY_PATH_AND_KIND = ("diff --git ", "--- ", "+++ ", "index ", "new file mode 100644", "rename ")


@given(st.lists(_PIECES, max_size=25))
def test_every_line_of_any_diff_comes_out_again(lines: list[str]) -> None:
    """Except headers: and those only where no hunk has begun, never as a line of a hunk."""
    diff = "\n".join(lines)
    out = [line.text for file in read_diff(diff) for line in file.lines]
    for line in set(lines) - {""}:
        if not line.startswith(_SAID_BY_PATH_AND_KIND):
            assert out.count(line) == lines.count(line)


@given(st.text(st.sampled_from("+-@ abdifgt/\\\n\u2028\r0,1")), st.text())
def test_no_text_whatever_raises(diff: str, other: str) -> None:
    for text in (diff, other, f"@@ -1,{diff}", f"diff --git {other}\n{diff}"):
        read_diff(text)
        read_change(PathChange(path=other, kind="update", diff=text))


_CONTENT = st.lists(
    st.text(st.sampled_from("ab-+ @\\" + NOT_LINE_ENDS.replace("\r", "")), max_size=5)
    | st.sampled_from(["-- a/x", "++ b/x", "diff --git a/x b/x"]),
    max_size=8,
)


def _lines(content: str) -> list[str]:
    return content.removesuffix("\n").split("\n") if content else []


@pytest.mark.needs_git
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(old=_CONTENT, new=_CONTENT, end=st.sampled_from(["\n", ""]))
def test_git_counts_and_shows_the_same_lines(tmp_path: Path, old: list[str], new: list[str], end: str) -> None:
    before, after = ("\n".join(lines) + end for lines in (old, new))
    (tmp_path / "before").write_bytes(before.encode())
    (tmp_path / "after").write_bytes(after.encode())

    def diff(*options: str) -> str:
        command = ["git", "diff", "--no-index", "--no-color", "--text", *options, "before", "after"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=30).stdout.decode()

    if before == after:
        return
    (file,) = read_diff(diff("-U99"))
    assert diff("--numstat").split("\t")[:2] == [str(file.added), str(file.removed)]
    kept = {kind: [line.text[1:] for line in file.lines if line.kind in ("same", kind)] for kind in ("remove", "add")}
    assert (kept["remove"], kept["add"]) == (_lines(before), _lines(after))
