from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.testing import git, make_repository

pytestmark = pytest.mark.needs_git


def test_a_repository_has_one_commit_on_main(git_repo: Path, tmp_path: Path) -> None:
    for folder in (git_repo, make_repository(tmp_path / "another")):  # the first was made by git, others like it
        assert git(folder, "log", "--format=%s %an") == "First Test\n"
        assert git(folder, "branch", "--show-current") == "main\n"
        assert git(folder, "diff-files", "--name-only") == ""  # which does not look into files
        assert git(folder, "status", "--porcelain") == ""
        assert git(folder, "fsck", "--strict") == ""


def test_a_repository_is_as_git_itself_would_have_made_it(git_repo: Path) -> None:
    assert git(git_repo, "fsck", "--strict", "--full") == ""
    assert git(git_repo, "reflog", "--format=%gs") == "commit (initial): First\n"
    by_hand = (git_repo / ".git" / "index").read_bytes()
    git(git_repo, "rm", "--quiet", "--cached", "README.md")
    git(git_repo, "add", "README.md")
    assert (git_repo / ".git" / "index").read_bytes() == by_hand


def test_a_repository_is_made_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setenv("PATH", str(tmp_path))
        folder = make_repository(tmp_path / "repo")

    assert git(folder, "rev-parse", "--show-toplevel").strip() == str(folder.resolve())
    assert git(folder, "log", "--format=%s") == "First\n"
