"""Some files and hunks of a change are applied or taken back; everything else stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.errors import ApplyConflict, DiffChanged, InvalidInput
from helmsman.git import lifecycle, snapshot, tree_changes
from helmsman.git.snapshot import SizeLimits
from helmsman.git.tree_changes import TreeDiff
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git
from tests.git.contents import everything
from tests.git.test_applying import commit, edit

pytestmark = pytest.mark.needs_git


def anything(_diff: TreeDiff) -> None:
    return


def files_in(tree: Worktree) -> dict[str, bytes]:
    """Return the files of a worktree without git's own."""
    files = (path for path in tree.path.rglob("*") if path.is_file() and path.name != ".git")
    return {str(path.relative_to(tree.path)): path.read_bytes() for path in files}


def lines_of(root: Path) -> dict[int, str]:
    """Return the lines of the poem that differ from the original."""
    lines = (root / "poem.txt").read_text(encoding="utf-8").splitlines()
    return {number: line for number, line in enumerate(lines, 1) if line != f"line {number}"}


def edit_three_places(tree: Worktree) -> None:
    """Make three hunks, of which the first adds a line."""
    edit(tree.path, 19, "nineteenth")
    edit(tree.path, 10, "tenth")
    edit(tree.path, 2, "second\nand a half")


def test_one_hunk_is_applied_where_it_belongs_and_the_others_stay_behind(tree: Worktree, main: Path) -> None:
    edit_three_places(tree)
    (tree.path / "new").write_text("new\n", encoding="utf-8")
    before = files_in(tree)
    applied = tree_changes.apply(tree, only={"poem.txt": [1]})
    assert [file.path for file in applied.files] == ["poem.txt"]
    assert lines_of(main) == {10: "tenth"}
    assert not (main / "new").exists()
    assert files_in(tree) == before


@pytest.mark.parametrize("path", ["poem.txt", "new"], ids=["tracked", "untracked"])
def test_a_file_too_large_to_be_compared_is_never_replaced(
    tree: Worktree, main: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = SizeLimits(largest=1000, most=100_000, takes="a comparison takes")
    (tree.path / path).write_text("other\n", encoding="utf-8")
    (main / path).write_text("x" * 2000, encoding="utf-8")
    monkeypatch.setattr(snapshot, "COMPARED", limits)
    with pytest.raises(ApplyConflict, match=rf"{path} \(0 MB, more than 0 MB\)"):
        tree_changes.apply(tree, only={path: None})
    assert (main / path).read_text(encoding="utf-8") == "x" * 2000


def test_a_hunk_among_equal_lines_is_applied_at_its_own_place(tree: Worktree, main: Path) -> None:
    """Where the context occurs several times, only the numbers of lines tell the places apart."""
    same = "".join(f"{'begin' if number % 10 == 0 else 'x'}\n" for number in range(100))
    for root in (main, tree.path):
        (root / "same.txt").write_text(same, encoding="utf-8")
    commit(main)
    made = lifecycle.create(main, main.with_name("state"))
    lines = same.splitlines(keepends=True)
    lines[5] = "".join(f"added {number}\n" for number in range(12))
    lines[55] = "changed\n"
    (made.path / "same.txt").write_text("".join(lines), encoding="utf-8")
    tree_changes.apply(made, only={"same.txt": [1]})
    now = (main / "same.txt").read_text(encoding="utf-8").splitlines()
    assert [(number, line) for number, line in enumerate(now) if line == "changed"] == [(55, "changed")]
    assert len(now) == 100


def test_parts_follow_each_other_and_the_users_own_changes_stay(tree: Worktree, main: Path) -> None:
    edit_three_places(tree)
    edit(main, 6, "mine")
    (main / "notes").write_text("mine\n", encoding="utf-8")
    tree_changes.apply(tree, only={"poem.txt": [2]})
    assert lines_of(main) == {6: "mine", 19: "nineteenth"}
    tree_changes.apply(tree, only={"poem.txt": [2]})
    tree_changes.apply(tree, only={"poem.txt": [1]})
    assert lines_of(main) == {6: "mine", 10: "tenth", 19: "nineteenth"}
    tree_changes.apply(tree, only={"poem.txt": None})
    assert (main / "notes").read_text(encoding="utf-8") == "mine\n"
    edit(main, 1, "mine too")
    edit(tree.path, 1, "theirs")
    before = everything(main)
    with pytest.raises(ApplyConflict):
        tree_changes.apply(tree, only={"poem.txt": [0]})
    assert everything(main) == before


def test_whole_files_of_any_kind_are_applied_alone(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    (tree.path / "picture").write_bytes(b"\0\1\2")
    (tree.path / "run.sh").chmod(0o755)
    (tree.path / "link").symlink_to("poem.txt")
    git(tree.path, "mv", "pack/inner.txt", "outer.txt")
    tree_changes.apply(tree, only={"picture": None, "run.sh": None, "link": None, "outer.txt": None})
    assert lines_of(main) == {}
    assert (main / "picture").read_bytes() == b"\0\1\2"
    assert (main / "run.sh").stat().st_mode & 0o100
    assert (main / "link").is_symlink()
    assert (main / "outer.txt").read_text(encoding="utf-8") == "inner\n"
    assert not (main / "pack").exists()


def test_a_hunk_is_merged_with_newer_commits_of_the_repository(tree: Worktree, main: Path) -> None:
    edit_three_places(tree)
    edit(main, 6, "theirs")
    commit(main)
    applied = tree_changes.apply(tree, only={"poem.txt": [2]})
    assert applied.how == "three-way"
    assert lines_of(main) == {6: "theirs", 19: "nineteenth"}


def test_a_hunk_is_taken_back_and_everything_else_stays(tree: Worktree) -> None:
    edit_three_places(tree)
    (tree.path / "new").write_text("new\n", encoding="utf-8")
    (tree.path / "picture").write_bytes(b"\0\1\2")
    files = tree_changes.discard_part(tree, {"poem.txt": [0], "new": None}, check=anything)
    assert {file.path for file in files} == {"poem.txt", "new"}
    assert lines_of(tree.path) == {10: "tenth", 19: "nineteenth"}
    assert not (tree.path / "new").exists()
    assert (tree.path / "picture").read_bytes() == b"\0\1\2"


def test_all_hunks_of_a_file_taken_back_are_the_file_as_it_was(tree: Worktree, main: Path) -> None:
    edit_three_places(tree)
    tree_changes.discard_part(tree, {"poem.txt": [0, 1, 2]}, check=anything)
    assert (tree.path / "poem.txt").read_bytes() == (main / "poem.txt").read_bytes()
    assert tree_changes.diff(tree).patch == b""


def test_committed_changes_are_taken_back_in_the_files(tree: Worktree) -> None:
    edit_three_places(tree)
    commit(tree.path)
    tree_changes.discard_part(tree, {"poem.txt": [1]}, check=anything)
    text = (tree.path / "poem.txt").read_text(encoding="utf-8")
    assert "line 10\n" in text
    assert "and a half\n" in text
    assert "nineteenth\n" in text


def test_line_endings_and_a_missing_last_newline_are_kept(tree: Worktree, main: Path) -> None:
    text = "".join(f"line {number}\r\n" for number in range(40))
    (main / "dos.txt").write_bytes(text.encode())
    commit(main)
    made = lifecycle.create(main, main.with_name("state"))
    changed = text.replace("line 1\r\n", "first\r\n").replace("line 39\r\n", "last")
    (made.path / "dos.txt").write_bytes(changed.encode())
    tree_changes.apply(made, only={"dos.txt": [1]})
    assert (main / "dos.txt").read_bytes() == text.replace("line 39\r\n", "last").encode()


@pytest.mark.parametrize(
    "only", [{"nowhere": None}, {"poem.txt": [3]}, {"poem.txt": [-1]}, {"new": [0]}, {"picture": [0]}]
)
def test_a_selection_that_is_not_there_is_refused_and_nothing_is_touched(
    tree: Worktree, main: Path, only: dict[str, list[int] | None]
) -> None:
    edit_three_places(tree)
    (tree.path / "new").write_text("new\n", encoding="utf-8")
    (tree.path / "picture").write_bytes(b"\0\1\2")
    before = everything(main), files_in(tree)
    with pytest.raises(InvalidInput):
        tree_changes.apply(tree, only=only)
    with pytest.raises(InvalidInput):
        tree_changes.discard_part(tree, only, check=anything)
    assert (everything(main), files_in(tree)) == before


def test_hunks_of_other_changes_than_were_shown_are_not_applied(tree: Worktree, main: Path) -> None:
    edit_three_places(tree)

    def other(_diff: TreeDiff) -> None:
        raise DiffChanged("Not these.")

    before = everything(main), files_in(tree)
    with pytest.raises(DiffChanged):
        tree_changes.apply(tree, only={"poem.txt": [1]}, check=other)
    with pytest.raises(DiffChanged):
        tree_changes.discard_part(tree, {"poem.txt": [1]}, check=other)
    assert (everything(main), files_in(tree)) == before


def test_a_view_leaves_out_white_space_and_shows_a_whole_file(tree: Worktree) -> None:
    edit(tree.path, 3, "line  3")
    edit(tree.path, 12, "twelfth")
    whole, seen = tree_changes.diff_and_view(tree, tree_changes.DiffView(ignore_whitespace=True))
    assert whole.patch == tree_changes.diff(tree).patch
    assert "line  3" not in seen
    assert "twelfth" in seen
    _, seen = tree_changes.diff_and_view(tree, tree_changes.DiffView(whole=("poem.txt",)))
    assert seen.count("@@ -") == 1
    assert " line 20\n" in seen
