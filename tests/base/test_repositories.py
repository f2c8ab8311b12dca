"""Tests of finding a repository's root."""

from __future__ import annotations

from pathlib import Path

from helmsman.git.command import repository_root


def test_the_root_is_found_from_anywhere_inside(git_repo: Path) -> None:
    inside = git_repo / "a" / "b"
    inside.mkdir(parents=True)
    assert repository_root(inside) == git_repo
    assert repository_root(git_repo) == git_repo


def test_a_worktree_or_submodule_has_a_file_for_it(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /elsewhere\n", encoding="utf-8")
    assert repository_root(tmp_path / "sub") == tmp_path


def test_an_empty_leftover_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "x" / ".git").mkdir(parents=True)
    assert repository_root(tmp_path / "x") is None
