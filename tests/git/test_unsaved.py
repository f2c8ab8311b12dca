"""What is in a worktree and nowhere else: only that is lost when it is discarded, and somebody has to agree to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmsman.git import tree_changes
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git, make_repository

pytestmark = pytest.mark.needs_git


def lost(tree: Worktree) -> list[str]:
    return sorted(file.path for file in tree_changes.unsaved(tree).files)


def change_everything(root: Path) -> None:
    (root / "poem.txt").rename(root / "verse.txt")
    (root / "picture").write_bytes(bytes(range(255, -1, -1)))
    (root / "run.sh").chmod(0o755)
    (root / "pack" / "inner.txt").unlink()
    (root / "README.md").write_text("# Another\n", encoding="utf-8")
    (root / "link").symlink_to("README.md")


EVERYTHING = ["README.md", "link", "pack/inner.txt", "picture", "run.sh", "verse.txt"]


def test_a_fresh_worktree_loses_nothing(tree: Worktree) -> None:
    assert not tree_changes.unsaved(tree)


def test_applied_changes_do_not_count_as_lost(tree: Worktree) -> None:
    change_everything(tree.path)
    assert lost(tree) == EVERYTHING
    tree_changes.apply(tree)
    assert not tree_changes.unsaved(tree)


def test_differences_from_the_main_tree_count_as_lost(tree: Worktree, main: Path) -> None:
    change_everything(tree.path)
    tree_changes.apply(tree)
    (main / "run.sh").chmod(0o644)
    (main / "link").unlink()
    (main / "link").symlink_to("poem.txt")
    (main / "pack").mkdir()
    (main / "pack" / "inner.txt").write_text("back", encoding="utf-8")
    (main / "poem.txt").write_text("back", encoding="utf-8")
    (main / "README.md").write_text("# Mine\n", encoding="utf-8")
    (main / "picture").unlink()
    (main / "picture").mkdir()
    assert lost(tree) == EVERYTHING


def test_a_file_whose_name_is_no_text_is_lost(tree: Worktree) -> None:
    (tree.path / os.fsdecode(b"caf\xe9")).write_text("x", encoding="utf-8")
    assert len(lost(tree)) == 1


def test_a_commit_is_lost_even_if_its_files_are_not(tree: Worktree) -> None:
    git(tree.path, "commit", "--quiet", "--allow-empty", "--message=Nothing but words")
    unsaved = tree_changes.unsaved(tree)
    assert unsaved.files == ()
    assert [line.partition(" ")[2] for line in unsaved.commits] == ["Nothing but words"]


def test_a_repository_made_in_there_is_lost(tree: Worktree) -> None:
    make_repository(tree.path / "vendor")
    unsaved = tree_changes.unsaved(tree)
    assert (unsaved.nested, bool(unsaved)) == (("vendor",), True)


def test_an_unreadable_git_directory_counts_as_unsaved_changes(tree: Worktree) -> None:
    (tree.git_dir / "HEAD").write_text("nonsense", encoding="utf-8")
    (tree.git_dir / "index").write_bytes(b"nonsense")
    assert tree_changes.unsaved(tree)
