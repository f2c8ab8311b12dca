"""What is no ordinary file in a worktree is named, left out and removed, and never waited for."""

from __future__ import annotations

import os
import re
import socket
import time

import pytest

from helmsman.errors import WorktreeError
from helmsman.git import command as git_module
from helmsman.git import lifecycle, snapshot, tree_changes
from helmsman.git.snapshot import SizeLimits
from helmsman.git.worktree import Worktree

pytestmark = [pytest.mark.needs_git, pytest.mark.timeout(60)]

GB = 1024 * 1024 * 1024


def make_sparse(tree: Worktree, name: str = "huge.bin") -> None:
    with (tree.path / name).open("wb") as file:
        file.truncate(8 * GB)


def test_a_huge_file_is_named_and_the_rest_is_shown_applied_and_dropped(tree: Worktree) -> None:
    began = time.monotonic()
    make_sparse(tree)
    (tree.path / "README.md").write_text("# Another\n", encoding="utf-8")
    diff = tree_changes.diff(tree)
    assert [file.path for file in diff.files] == ["README.md"]
    assert diff.left_out == ("huge.bin (8,192 MB, more than 100 MB)",)
    assert tree_changes.apply(tree).diff.left_out == diff.left_out
    assert (tree.repository / "README.md").read_text(encoding="utf-8") == "# Another\n"
    assert not (tree.repository / "huge.bin").exists()
    assert [file.path for file in tree_changes.unsaved(tree).files] == [*diff.left_out]
    lifecycle.discard(tree)
    assert not tree.path.exists()
    assert time.monotonic() - began < 30


def test_of_a_tracked_file_that_became_odd_the_committed_version_stays(tree: Worktree) -> None:
    make_sparse(tree, "poem.txt")
    (tree.path / "run.sh").unlink()
    os.mkfifo(tree.path / "run.sh")
    (tree.path / "README.md").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        place = os.open(tree.path, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{place}/README.md")
        finally:
            os.close(place)
    os.mkfifo(tree.path / "new")
    (tree.path / "folder").mkdir()
    os.mkfifo(tree.path / "folder" / "new")
    os.mkfifo(tree.path / "ignored")
    (tree.path / ".gitignore").write_text("ignored\n", encoding="ascii")
    diff = tree_changes.diff(tree)
    assert [file.path for file in diff.files] == [".gitignore"]
    assert diff.left_out == (
        "README.md (a socket)",
        "folder/new (a pipe)",
        "new (a pipe)",
        "poem.txt (8,192 MB, more than 100 MB)",
        "run.sh (a pipe)",
    )
    lifecycle.discard(tree)
    assert not tree.path.exists()


@pytest.mark.parametrize("name", [".gitignore", ".gitattributes", "pack/.gitignore", "new/.gitattributes"])
def test_a_pipe_that_git_would_read_is_named_and_does_not_keep_the_worktree(
    tree: Worktree, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_module, "_SLOW_SECONDS", 0.5)
    path = tree.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    (path.parent / "beside").write_text("x", encoding="ascii")
    with pytest.raises(WorktreeError, match=re.escape(str(path))):
        tree_changes.diff(tree)
    lifecycle.discard(tree)
    assert not tree.path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named_in_the_diff(tree: Worktree) -> None:
    (tree.path / "poem.txt").write_text("other", encoding="ascii")
    (tree.path / "poem.txt").chmod(0)
    assert tree_changes.diff(tree).left_out == ("poem.txt (it cannot be read)",)
    lifecycle.discard(tree)


def test_links_that_lead_in_circles_are_links(tree: Worktree) -> None:
    (tree.path / "a").symlink_to("b")
    (tree.path / "b").symlink_to("a")
    (tree.path / "self").symlink_to(".", target_is_directory=True)
    (tree.path / "zero").symlink_to("/dev/zero")
    diff = tree_changes.diff(tree)
    assert {file.path for file in diff.files} == {"a", "b", "self", "zero"}
    assert diff.left_out == ()
    lifecycle.discard(tree)
    assert not tree.path.exists()


@pytest.mark.parametrize(
    ("limit", "most"), [("_MOST_FILES", 3), ("COMPARED", SizeLimits(largest=1000, most=10, takes="a comparison takes"))]
)
def test_more_than_can_be_compared_is_refused_before_it_is_read_and_can_be_dropped(
    tree: Worktree, limit: str, most: int | SizeLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, limit, most)
    for number in range(5):
        (tree.path / f"new-{number}").write_text("content", encoding="ascii")
    for look in (tree_changes.diff, tree_changes.apply):
        with pytest.raises(WorktreeError, match="gitignore"):
            look(tree)
    assert tree_changes.unsaved(tree).unreadable
    lifecycle.discard(tree)
    assert not tree.path.exists()
