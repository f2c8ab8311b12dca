"""A worktree's changes come into the main tree as a whole, or the main tree stays as it is to the byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from helmsman import worktrees
from helmsman.errors import ApplyConflict, DiffChanged, DirtyTree, WorktreeError
from helmsman.testing.repository import git, make_repository
from tests.worktrees.contents import content, everything

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helmsman.worktrees import TreeDiff, Worktree

pytestmark = pytest.mark.needs_git


def edit(root: Path, line: int, text: str) -> None:
    poem = root / "poem.txt"
    lines = poem.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[line - 1] = text + "\n"
    poem.write_text("".join(lines), encoding="utf-8")


def commit(root: Path, message: str = "More") -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", f"--message={message}")


def test_changes_come_unstaged_and_new_files_untracked(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    (tree.path / "deep" / "er").mkdir(parents=True)
    (tree.path / "deep" / "er" / "new").write_text("x", encoding="utf-8")
    (tree.path / "pack" / "inner.txt").unlink()
    applied = worktrees.apply(tree)
    assert applied.how == "clean"
    assert [(file.path, file.kind) for file in applied.files] == [
        ("deep/er/new", "added"),
        ("pack/inner.txt", "deleted"),
        ("poem.txt", "modified"),
    ]
    shown = git(main, "status", "--porcelain", "--untracked-files=all").splitlines()
    assert shown == [" D pack/inner.txt", " M poem.txt", "?? deep/er/new"]
    assert not (main / "pack").exists()
    assert worktrees.diff_of_directory(main).patch == worktrees.diff(tree).patch


def test_nothing_changed_is_nothing_to_do(tree: Worktree, main: Path) -> None:
    before = everything(main)
    assert worktrees.apply(tree).files == ()
    assert everything(main) == before


def test_what_is_checked_is_what_is_written_whatever_changes_meanwhile(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "as it was shown")
    shown = worktrees.diff(tree)

    def check(diff: TreeDiff) -> None:
        assert diff.digest == shown.digest
        edit(tree.path, 3, "slipped in")  # after the yes, before the write
        (tree.path / "slipped in").touch()

    applied = worktrees.apply(tree, check=check)
    assert applied.diff.digest == shown.digest
    assert "as it was shown" in (main / "poem.txt").read_text(encoding="utf-8")
    assert not (main / "slipped in").exists()


def test_changes_that_are_refused_touch_nothing(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    before = everything(main)

    def refuse(_diff: TreeDiff) -> None:
        raise DiffChanged("Not these.")

    with pytest.raises(DiffChanged):
        worktrees.apply(tree, check=refuse)
    assert everything(main) == before


def test_the_digest_is_that_of_the_bytes_anybody_can_hash(tree: Worktree) -> None:
    edit(tree.path, 3, "third")
    diff = worktrees.diff(tree)
    assert diff.digest == hashlib.sha256(diff.patch).hexdigest()
    assert worktrees.diff(tree).digest == diff.digest
    for change in ("content", "mode"):
        before = worktrees.diff(tree).digest
        edit(tree.path, 4, change) if change == "content" else (tree.path / "run.sh").chmod(0o755)
        assert worktrees.diff(tree).digest != before


def test_the_worktree_stays_as_it_is(tree: Worktree) -> None:
    edit(tree.path, 3, "third")
    before = content(tree.path), (tree.git_dir / "index").read_bytes()
    worktrees.apply(tree)
    assert (content(tree.path), (tree.git_dir / "index").read_bytes()) == before


def test_a_main_tree_that_moved_on_is_merged_with(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "of the worktree")
    edit(main, 18, "of the main tree")
    commit(main)
    applied = worktrees.apply(tree)
    assert applied.how == "three-way"
    assert [(file.path, file.added, file.removed) for file in applied.files] == [("poem.txt", 1, 1)]
    lines = (main / "poem.txt").read_text(encoding="utf-8").splitlines()
    assert (lines[2], lines[17]) == ("of the worktree", "of the main tree")


def test_a_file_renamed_on_one_side_gets_the_changes_of_the_other(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "of the worktree")
    (tree.path / "run.sh").rename(tree.path / "start.sh")
    git(main, "mv", "poem.txt", "verse.txt")
    (main / "run.sh").write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
    commit(main)
    worktrees.apply(tree)
    assert not (main / "poem.txt").exists()
    assert "of the worktree" in (main / "verse.txt").read_text(encoding="utf-8")
    assert not (main / "run.sh").exists()
    assert "hello" in (main / "start.sh").read_text(encoding="utf-8")


def test_another_branch_gets_the_changes_and_not_the_commits_before_them(main: Path, state_dir: Path) -> None:
    git(main, "branch", "older")
    (main / "between").write_text("x", encoding="utf-8")
    commit(main)
    tree = worktrees.create(main, state_dir)
    edit(tree.path, 3, "third")
    git(main, "checkout", "--quiet", "older")
    worktrees.apply(tree)
    assert git(main, "status", "--porcelain") == " M poem.txt\n"
    assert not (main / "between").exists()


def test_what_the_main_tree_has_already_is_not_brought_again(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    (tree.path / "new").write_text("n", encoding="utf-8")
    worktrees.apply(tree)
    before = everything(main)
    assert worktrees.apply(tree).how == "clean"
    assert everything(main) == before
    commit(main)
    assert worktrees.apply(tree).files == ()
    (tree.path / "more").write_text("m", encoding="utf-8")
    assert [file.path for file in worktrees.apply(tree).files] == ["more"]


def test_a_half_done_apply_is_completed_by_the_next(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    (tree.path / "new").write_text("n", encoding="utf-8")
    edit(main, 3, "third")
    worktrees.apply(tree)
    assert (main / "new").read_text(encoding="utf-8") == "n"


# --- conflicts -------------------------------------------------------------------------------------------------------


def test_a_conflict_is_told_with_its_lines_and_touches_nothing(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "of the worktree")
    (tree.path / "other").write_text("fits", encoding="utf-8")
    edit(main, 3, "of the main tree")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        worktrees.apply(tree)
    assert caught.value.details["conflicts"] == ["poem.txt"]
    (hunk,) = caught.value.details["hunks"]["poem.txt"]
    assert hunk.splitlines() == [
        "<<<<<<< main tree",
        "of the main tree",
        "=======",
        "of the worktree",
        ">>>>>>> worktree",
    ]
    assert "poem.txt" in caught.value.message
    assert everything(main) == before


def test_a_file_deleted_here_and_changed_there_is_a_conflict(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "of the worktree")
    git(main, "rm", "--quiet", "poem.txt")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        worktrees.apply(tree)
    assert caught.value.details["conflicts"] == ["poem.txt"]
    assert "deleted in main tree" in caught.value.details["reasons"]["poem.txt"]
    assert everything(main) == before


def test_a_binary_file_changed_on_both_sides_is_a_conflict(tree: Worktree, main: Path) -> None:
    (tree.path / "picture").write_bytes(b"\0of the worktree")
    (main / "picture").write_bytes(b"\0of the main tree")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        worktrees.apply(tree)
    assert (caught.value.details["conflicts"], caught.value.details["hunks"]) == (["picture"], {})
    assert everything(main) == before


def test_a_file_where_the_main_tree_made_a_directory_is_a_conflict(tree: Worktree, main: Path) -> None:
    (tree.path / "place").write_text("a file", encoding="utf-8")
    (main / "place").mkdir()
    (main / "place" / "inside").write_text("a directory", encoding="utf-8")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        worktrees.apply(tree)
    assert caught.value.details["conflicts"] == ["place"]
    assert everything(main) == before


@pytest.mark.parametrize("in_the_way", ["file", "link", "directory", "file for a directory"])
def test_untracked_things_in_the_way_are_conflicts(tree: Worktree, main: Path, tmp_path: Path, in_the_way: str) -> None:
    (tree.path / "new").mkdir()
    (tree.path / "new" / "file").write_text("mine", encoding="utf-8")
    match in_the_way:
        case "file":
            (main / "new").mkdir()
            (main / "new" / "file").write_text("yours", encoding="utf-8")
        case "link":
            (tmp_path / "elsewhere").mkdir()
            (main / "new").symlink_to(tmp_path / "elsewhere")
        case "directory":
            (main / "new" / "file").mkdir(parents=True)
            (main / "new" / "file" / "precious").write_text("yours", encoding="utf-8")
        case _:
            (main / "new").write_text("yours", encoding="utf-8")
    before = everything(main)
    for allow_dirty in (False, True):
        with pytest.raises(ApplyConflict) as caught:
            worktrees.apply(tree, allow_dirty=allow_dirty)
        assert caught.value.details["conflicts"] == ["new/file"]
    assert everything(main) == before
    assert not (tmp_path / "elsewhere" / "file").exists()


def test_an_ignored_file_in_the_way_is_a_conflict_too(tree: Worktree, main: Path) -> None:
    (tree.path / ".gitignore").write_text("", encoding="utf-8")
    (tree.path / "a.log").write_text("mine", encoding="utf-8")
    (main / "a.log").write_text("yours", encoding="utf-8")
    with pytest.raises(ApplyConflict, match=r"a\.log"):
        worktrees.apply(tree)
    assert (main / "a.log").read_text(encoding="utf-8") == "yours"


# --- a dirty main tree -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_main_tree_is_refused_unless_allowed(tree: Worktree, main: Path, *, staged: bool) -> None:
    edit(tree.path, 3, "third")
    (main / "README.md").write_text("mine\n", encoding="utf-8")
    if staged:
        git(main, "add", "README.md")
    before = everything(main)
    with pytest.raises(DirtyTree) as caught:
        worktrees.apply(tree)
    assert caught.value.details["files"] == ["README.md"]
    assert everything(main) == before
    worktrees.apply(tree, allow_dirty=True)
    assert (main / "README.md").read_text(encoding="utf-8") == "mine\n"
    assert "third" in (main / "poem.txt").read_text(encoding="utf-8")
    assert git(main, "diff", "--cached", "--name-only") == ("README.md\n" if staged else "")


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_file_that_the_changes_touch_is_a_conflict(tree: Worktree, main: Path, *, staged: bool) -> None:
    edit(tree.path, 3, "of the worktree")
    edit(main, 18, "not committed")
    if staged:
        git(main, "add", "poem.txt")
        git(main, "show", "HEAD:poem.txt")
        (main / "poem.txt").write_text(git(main, "show", "HEAD:poem.txt"), encoding="utf-8")
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        worktrees.apply(tree, allow_dirty=True)
    assert caught.value.details["reasons"] == {"poem.txt": "uncommitted changes in it"}
    assert everything(main) == before


def test_untracked_files_elsewhere_do_not_matter(tree: Worktree, main: Path) -> None:
    (main / "notes").write_text("mine", encoding="utf-8")
    edit(tree.path, 3, "third")
    worktrees.apply(tree)
    assert (main / "notes").read_text(encoding="utf-8") == "mine"


# --- when writing fails ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="Needs permissions that count.")
def test_a_file_that_cannot_be_written_puts_all_back(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    (tree.path / "README.md").unlink()
    (tree.path / "pack" / "inner.txt").write_text("changed", encoding="utf-8")
    (tree.path / "new").write_text("n", encoding="utf-8")
    before = everything(main)
    (main / "pack").chmod(0o500)
    try:
        with pytest.raises(WorktreeError):
            worktrees.apply(tree)
    finally:
        (main / "pack").chmod(0o700)
    assert everything(main) == before
    worktrees.apply(tree)
    assert content(main) == content(tree.path)


def test_a_failing_filter_puts_all_back(tree: Worktree, main: Path, own_filter: Callable[..., None]) -> None:
    (tree.path / "README.md").unlink()
    (tree.path / ".gitattributes").write_text("*.odd filter=odd\n", encoding="utf-8")
    (tree.path / "a.odd").write_text("x", encoding="utf-8")
    own_filter("odd", clean="cat", smudge="false", required="true")
    before = everything(main)
    with pytest.raises(WorktreeError):
        worktrees.apply(tree)
    assert everything(main) == before


# --- what else can be asked of it ------------------------------------------------------------------------------------


def test_a_repository_made_inside_is_refused_rather_than_lost(tree: Worktree, main: Path) -> None:
    make_repository(tree.path / "lib")
    edit(tree.path, 3, "third")
    before = everything(main)
    with pytest.raises(WorktreeError, match="lib: git repositories of their own"):
        worktrees.apply(tree)
    assert everything(main) == before


def test_several_worktrees_are_applied_at_once_without_mixing(main: Path, state_dir: Path) -> None:
    trees = [worktrees.create(main, state_dir) for _ in range(4)]
    for number, tree in enumerate(trees):
        (tree.path / f"file {number}").write_text(str(number), encoding="utf-8")
    with ThreadPoolExecutor() as pool:
        list(pool.map(worktrees.apply, trees))
    assert sorted(git(main, "status", "--porcelain").splitlines()) == [f'?? "file {number}"' for number in range(4)]


def test_line_endings_follow_the_attributes_that_come_along(tree: Worktree, main: Path) -> None:
    (tree.path / ".gitattributes").write_text("*.bat text eol=crlf\n", encoding="utf-8")
    (tree.path / "a.bat").write_bytes(b"one\r\ntwo\r\n")
    worktrees.apply(tree)
    assert (main / "a.bat").read_bytes() == b"one\r\ntwo\r\n"


def test_a_main_tree_without_a_commit_is_refused(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    git(main, "symbolic-ref", "HEAD", "refs/heads/unborn")
    with pytest.raises(WorktreeError, match="no commit at HEAD"):
        worktrees.apply(tree)


def test_a_main_tree_that_is_gone_is_said_so(main: Path, state_dir: Path, tmp_path: Path) -> None:
    git(main, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    tree = worktrees.create(tmp_path / "linked", state_dir)
    (tmp_path / "linked").rename(tmp_path / "moved")
    with pytest.raises(WorktreeError, match="linked is gone"):
        worktrees.apply(tree)


def test_a_program_that_does_not_end_is_ended(
    tree: Worktree, monkeypatch: pytest.MonkeyPatch, own_filter: Callable[..., None]
) -> None:
    own_filter("slow", clean="sleep 600")
    (tree.path / ".gitattributes").write_text("* filter=slow\n", encoding="utf-8")
    monkeypatch.setattr("helmsman.base.git._GIT_SECONDS", 0.5)
    with pytest.raises(WorktreeError, match="did not end"):
        worktrees.diff(tree)


def test_a_git_that_cannot_merge_says_which_can(
    tree: Worktree, main: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(tree.path, 3, "third")
    edit(main, 18, "moved on")
    commit(main)
    real = subprocess.run(["which", "git"], capture_output=True, encoding="utf-8", check=True).stdout.strip()
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text(f'#!/bin/sh\n[ "$1" = version ] && echo git version 2.30.2 && exit\nexec "{real}" "$@"\n', "utf-8")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(old.parent), prepend=os.pathsep)
    with pytest.raises(WorktreeError, match=r"2\.38 or newer"):
        worktrees.apply(tree)
