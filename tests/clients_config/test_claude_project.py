"""The project as Claude Code sees it (compared with the real one in tests/cli/test_install_in_clients.py)."""

from __future__ import annotations

from pathlib import Path

from helmsman.clients.locations import claude_project


def test_it_is_the_nearest_directory_with_a_git(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    assert claude_project(inner) == tmp_path
    (tmp_path / "a" / "b" / ".git").mkdir()
    assert claude_project(inner) == tmp_path / "a" / "b"


def test_from_a_worktree_it_is_the_repository(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/tree\n", encoding="utf-8")
    assert claude_project(tree / "sub") == tmp_path / "main"


def test_a_submodule_is_its_own_project(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: ../.git/modules/x\n", encoding="utf-8")
    assert claude_project(tmp_path) == tmp_path
