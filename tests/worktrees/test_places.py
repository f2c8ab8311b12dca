"""Work in a worktree counts for its repository, in the worktree's lifetime and after."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from helmsman import worktrees
from helmsman.worktrees.places import PAST_WORKTREES, places, remember_place

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_git


def test_a_worktree_and_what_is_in_it_belong_to_the_repository(git_repo: Path, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    tree = worktrees.create(git_repo, state_dir)
    remember_place(tree)
    for _ in range(2):
        place = places(state_dir)
        assert place(str(tree.path)) == str(git_repo)
        assert place(str(tree.path / "sub" / "deep")) == str(git_repo / "sub" / "deep")
        assert place(str(git_repo)) == str(git_repo)
        assert place(None) is None
        worktrees.discard(tree)
    if sys.platform != "win32":
        assert (state_dir / PAST_WORKTREES).stat().st_mode & 0o077 == 0


def test_what_nobody_remembers_stays_where_it_was(tmp_path: Path) -> None:
    (tmp_path / PAST_WORKTREES).write_bytes(b'\xff\n[1]\n{"name": 3}\n{"name": "known-1", "repository": "/src"}\n{"na')
    place = places(tmp_path)
    unknown = str(tmp_path / "worktrees" / "unknown-1")
    assert place(unknown) == unknown
    assert place(str(tmp_path / "worktrees" / "known-1")) == "/src"
