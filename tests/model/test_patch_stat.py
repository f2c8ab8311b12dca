"""What a diff changes, from its text alone: the same as git says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.git.diff import files_of, stat_of
from helmsman.git.tree_changes import diff_of_directory
from helmsman.testing.repository import git


@pytest.mark.needs_git
def test_git_and_the_text_agree(git_repo: Path) -> None:
    for name, content in {
        "gone.txt": "bye\n",
        "old name.txt": "a\nb\nc\nd\ne\n",
        "changed.txt": "-- x\n++ y\n",
    }.items():
        (git_repo / name).write_text(content, encoding="utf-8")
    (git_repo / "blob.bin").write_bytes(bytes(range(256)))
    git(git_repo, "add", ".")
    git(git_repo, "commit", "--quiet", "--message=Second")
    (git_repo / "gone.txt").unlink()
    (git_repo / "old name.txt").rename(git_repo / "new name.txt")
    (git_repo / "changed.txt").write_text("--- x\n+++ y\ndiff --git a/x b/x\n", encoding="utf-8")
    (git_repo / "blob.bin").write_bytes(bytes(range(255, -1, -1)))
    (git_repo / "made.txt").write_text("no newline at the end", encoding="utf-8")
    diff = diff_of_directory(git_repo, state_dir=git_repo.with_name("state"))
    assert files_of(diff.text) == diff.files
    assert "5 file(s) changed" in stat_of(diff.files)
    assert "blob.bin | binary" in stat_of(diff.files)


@pytest.mark.parametrize("text", ["", "no diff at all\n", "@@ -1 +1 @@\n-a\n+b\n"])
def test_an_invalid_diff_changes_nothing(text: str) -> None:
    assert files_of(text) == ()
    assert stat_of(()) == " 0 file(s) changed, +0 -0\n"
