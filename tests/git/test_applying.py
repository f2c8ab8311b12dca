"""A worktree's changes come into the main tree as a whole, or the main tree stays as it is to the byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helmsman.errors import ApplyConflict, DiffChanged, WorktreeError
from helmsman.git import lifecycle, tree_changes
from helmsman.git.tree_changes import TreeDiff
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git, make_repository
from tests.git.contents import content, everything

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
    applied = tree_changes.apply(tree)
    assert applied.how == "clean"
    assert [(file.path, file.kind) for file in applied.files] == [
        ("deep/er/new", "added"),
        ("pack/inner.txt", "deleted"),
        ("poem.txt", "modified"),
    ]
    shown = git(main, "status", "--porcelain", "--untracked-files=all").splitlines()
    assert shown == [" D pack/inner.txt", " M poem.txt", "?? deep/er/new"]
    assert not (main / "pack").exists()
    assert (
        tree_changes.diff_of_directory(main, state_dir=main.with_name("state")).patch == tree_changes.diff(tree).patch
    )


def test_nothing_changed_is_nothing_to_do(tree: Worktree, main: Path) -> None:
    before = everything(main)
    assert tree_changes.apply(tree).files == ()
    assert everything(main) == before


def test_the_checked_content_is_written_whatever_changes_meanwhile(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "as it was shown")
    shown = tree_changes.diff(tree)

    def check(diff: TreeDiff) -> None:
        assert diff.digest == shown.digest
        edit(tree.path, 3, "slipped in")  # after the yes, before the write
        (tree.path / "slipped in").touch()

    applied = tree_changes.apply(tree, check=check)
    assert applied.diff.digest == shown.digest
    assert "as it was shown" in (main / "poem.txt").read_text(encoding="utf-8")
    assert not (main / "slipped in").exists()


def test_changes_that_are_refused_touch_nothing(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    before = everything(main)

    def refuse(_diff: TreeDiff) -> None:
        raise DiffChanged("Not these.")

    with pytest.raises(DiffChanged):
        tree_changes.apply(tree, check=refuse)
    assert everything(main) == before


def test_the_digest_is_that_of_the_bytes_anybody_can_hash(tree: Worktree) -> None:
    edit(tree.path, 3, "third")
    diff = tree_changes.diff(tree)
    assert diff.digest == hashlib.sha256(diff.patch).hexdigest()
    assert tree_changes.diff(tree).digest == diff.digest
    for change in ("content", "mode"):
        before = tree_changes.diff(tree).digest
        edit(tree.path, 4, change) if change == "content" else (tree.path / "run.sh").chmod(0o755)
        assert tree_changes.diff(tree).digest != before


def test_the_worktree_stays_as_it_is(tree: Worktree) -> None:
    edit(tree.path, 3, "third")
    before = content(tree.path), (tree.git_dir / "index").read_bytes()
    tree_changes.apply(tree)
    assert (content(tree.path), (tree.git_dir / "index").read_bytes()) == before


def test_a_main_tree_that_moved_on_is_merged_with(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "of the worktree")
    edit(main, 18, "of the main tree")
    commit(main)
    applied = tree_changes.apply(tree)
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
    tree_changes.apply(tree)
    assert not (main / "poem.txt").exists()
    assert "of the worktree" in (main / "verse.txt").read_text(encoding="utf-8")
    assert not (main / "run.sh").exists()
    assert "hello" in (main / "start.sh").read_text(encoding="utf-8")


def test_another_branch_gets_the_changes_and_not_the_commits_before_them(main: Path, state_dir: Path) -> None:
    git(main, "branch", "older")
    (main / "between").write_text("x", encoding="utf-8")
    commit(main)
    tree = lifecycle.create(main, state_dir)
    edit(tree.path, 3, "third")
    git(main, "checkout", "--quiet", "older")
    tree_changes.apply(tree)
    assert git(main, "status", "--porcelain") == " M poem.txt\n"
    assert not (main / "between").exists()


def test_changes_that_the_main_tree_has_are_not_applied_again(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    (tree.path / "new").write_text("n", encoding="utf-8")
    tree_changes.apply(tree)
    before = everything(main)
    assert tree_changes.apply(tree).how == "clean"
    assert everything(main) == before
    commit(main)
    assert tree_changes.apply(tree).files == ()
    (tree.path / "more").write_text("m", encoding="utf-8")
    assert [file.path for file in tree_changes.apply(tree).files] == ["more"]


# --- conflicts -------------------------------------------------------------------------------------------------------


def test_a_conflict_is_reported_with_its_lines_and_touches_nothing(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "of the worktree")
    (tree.path / "other").write_text("fits", encoding="utf-8")
    edit(main, 3, "of the main tree")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        tree_changes.apply(tree)
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
        tree_changes.apply(tree)
    assert caught.value.details["conflicts"] == ["poem.txt"]
    assert "deleted in main tree" in caught.value.details["reasons"]["poem.txt"]
    assert everything(main) == before


def test_a_binary_file_changed_on_both_sides_is_a_conflict(tree: Worktree, main: Path) -> None:
    (tree.path / "picture").write_bytes(b"\0of the worktree")
    (main / "picture").write_bytes(b"\0of the main tree")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        tree_changes.apply(tree)
    assert (caught.value.details["conflicts"], caught.value.details["hunks"]) == (["picture"], {})
    assert everything(main) == before


def test_a_file_where_the_main_tree_made_a_directory_is_a_conflict(tree: Worktree, main: Path) -> None:
    (tree.path / "place").write_text("a file", encoding="utf-8")
    (main / "place").mkdir()
    (main / "place" / "inside").write_text("a directory", encoding="utf-8")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        tree_changes.apply(tree)
    assert caught.value.details["conflicts"] == ["place"]
    assert everything(main) == before


def test_untracked_files_elsewhere_do_not_matter(tree: Worktree, main: Path) -> None:
    (main / "notes").write_text("mine", encoding="utf-8")
    edit(tree.path, 3, "third")
    tree_changes.apply(tree)
    assert (main / "notes").read_text(encoding="utf-8") == "mine"


# --- what else can be asked of it ------------------------------------------------------------------------------------


def test_a_repository_made_inside_is_refused_rather_than_lost(tree: Worktree, main: Path) -> None:
    make_repository(tree.path / "lib")
    edit(tree.path, 3, "third")
    before = everything(main)
    with pytest.raises(WorktreeError, match="lib: git repositories of their own"):
        tree_changes.apply(tree)
    assert everything(main) == before


def test_a_main_tree_without_a_commit_is_refused(tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    git(main, "symbolic-ref", "HEAD", "refs/heads/unborn")
    with pytest.raises(WorktreeError, match="no commit at HEAD"):
        tree_changes.apply(tree)


def test_a_main_tree_that_is_gone_is_said_so(main: Path, state_dir: Path, tmp_path: Path) -> None:
    git(main, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    tree = lifecycle.create(tmp_path / "linked", state_dir)
    (tmp_path / "linked").rename(tmp_path / "moved")
    with pytest.raises(WorktreeError, match="linked is gone"):
        tree_changes.apply(tree)


@pytest.mark.long
def test_a_program_that_does_not_end_is_ended(
    tree: Worktree, monkeypatch: pytest.MonkeyPatch, own_filter: Callable[..., None]
) -> None:
    own_filter("slow", clean="sleep 600")
    (tree.path / ".gitattributes").write_text("* filter=slow\n", encoding="utf-8")
    monkeypatch.setattr("helmsman.git.command._GIT_SECONDS", 0.5)
    with pytest.raises(WorktreeError, match="did not end"):
        tree_changes.diff(tree)


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
        tree_changes.apply(tree)
