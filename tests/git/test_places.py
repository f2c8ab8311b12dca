"""Work counts for the outermost repository, also in a worktree, and after the worktree's lifetime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helmsman.git import lifecycle
from helmsman.git.worktree import PAST_WORKTREES, places, projects, remember_place

pytestmark = pytest.mark.needs_git


def test_a_worktree_and_what_is_in_it_belong_to_the_repository(git_repo: Path, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    tree = lifecycle.create(git_repo, state_dir)
    remember_place(tree)
    for _ in range(2):
        place = places(state_dir)
        assert place(str(tree.path)) == str(git_repo)
        assert place(str(tree.path / "sub" / "deep")) == str(git_repo / "sub" / "deep")
        assert place(str(git_repo)) == str(git_repo)
        assert place(None) is None
        lifecycle.discard(tree)
    if sys.platform != "win32":
        assert (state_dir / PAST_WORKTREES).stat().st_mode & 0o077 == 0


def test_an_unknown_worktree_counts_as_its_own_place(tmp_path: Path) -> None:
    (tmp_path / PAST_WORKTREES).write_bytes(b'\xff\n[1]\n{"name": 3}\n{"name": "known-1", "repository": "/src"}\n{"na')
    place = places(tmp_path)
    unknown = str(tmp_path / "worktrees" / "unknown-1")
    assert place(unknown) == unknown
    assert place(str(tmp_path / "worktrees" / "known-1")) == "/src"


def git(directory: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True)


@pytest.mark.parametrize("planted", ["repository", "bare_git_file", "link", "submodule", "worktree"])
def test_a_repository_inside_of_another_is_not_its_own_project(git_repo: Path, tmp_path: Path, planted: str) -> None:
    inner = git_repo / "sub" / "inner"
    inner.parent.mkdir()
    match planted:
        case "repository":
            inner.mkdir()
            git(inner, "init")
        case "bare_git_file":
            inner.mkdir()
            (inner / ".git").write_text(f"gitdir: {tmp_path}/elsewhere/.git\n")
        case "link":
            inner.mkdir()
            (inner / ".git").symlink_to(tmp_path)
        case "submodule":
            other = tmp_path / "other"
            other.mkdir()
            git(other, "init")
            git(other, "commit", "--allow-empty", "-m", "first")
            git(git_repo, "submodule", "add", str(other), "sub/inner")
        case _:
            git(git_repo, "worktree", "add", str(inner))
    project = projects(tmp_path / "state")
    assert {project(str(place)) for place in (git_repo, inner, inner / "deep")} == {str(git_repo)}


def test_a_worktree_elsewhere_counts_for_its_repository_and_a_forged_one_for_itself(
    git_repo: Path, tmp_path: Path
) -> None:
    tree, forged = tmp_path / "tree", tmp_path / "forged"
    git(git_repo, "worktree", "add", str(tree))
    git_dir = forged / "own"
    git_dir.mkdir(parents=True)
    (forged / ".git").write_text(f"gitdir: {git_dir}\n")
    (git_dir / "gitdir").write_text(f"{forged}/.git\n")
    (git_dir / "commondir").write_text(f"{git_repo}/.git\n")
    project = projects(tmp_path / "state")
    assert project(str(tree / "sub")) == str(git_repo)
    assert project(str(forged)) == str(forged)


def test_a_repository_of_the_home_directory_has_no_projects_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    work, notes = tmp_path / "work", tmp_path / "notes"
    for place in (work, notes):
        place.mkdir()
    for place in (tmp_path, work):
        git(place, "init")
    project = projects(tmp_path / "state")
    assert project(str(work)) == str(work)
    assert project(str(notes)) == str(tmp_path)
