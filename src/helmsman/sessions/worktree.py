"""A git worktree of its own for a session, so that several can work on one repository without meeting.

The worktree lies outside the repository, in the state directory, on a new branch from where the repository stands. Git's
hooks are not run: they are the repository's, and making a worktree is not yet working in it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.repositories import repository_root
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from pathlib import Path

WORKTREES: Final = "worktrees"
"""The directory in the state directory that they are made in."""

_GIT_SECONDS: Final = 120
_NO_PROGRAMS_OF_THE_REPOSITORY: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


class WorktreeFailed(HelmsmanError):
    """Git could not make or remove a worktree."""

    code = "worktree_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree:
    """`directory` is the place in the worktree that corresponds to the one asked for."""

    path: Path
    directory: Path
    branch: str
    base: str
    repository: Path


def create_worktree(directory: Path, state_dir: Path) -> Worktree:
    """Make a worktree for a session that was to work in `directory`. Blocks; call it in a thread.

    Raises:
        InvalidInput: The directory is not in a repository, or the repository has no commit yet.
        WorktreeFailed: Git says no.
    """
    repository = repository_root(directory)
    if repository is None:
        raise InvalidInput(
            f"{directory} is not in a git repository, so it has no worktrees. Leave worktree out, or name a repository.",
            parameter="worktree",
        )
    try:
        base = _git(repository, "rev-parse", "--verify", "HEAD^{commit}").strip()
    except WorktreeFailed:
        raise InvalidInput(
            f"The repository {repository} has no commit yet, so there is nothing to make a worktree of. Commit first.",
            parameter="worktree",
        ) from None
    name = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', repository.name).strip('-') or 'repository'}-{uuid.uuid4().hex[:8]}"
    folder = ensure_state_dir(state_dir) / WORKTREES
    folder.mkdir(mode=0o700, exist_ok=True)
    path, branch = folder / name, f"helmsman/{name}"
    _git(repository, "worktree", "add", "--quiet", "-b", branch, str(path), base)
    inside = path / directory.relative_to(repository)
    return Worktree(
        path=path, directory=inside if inside.is_dir() else path, branch=branch, base=base, repository=repository
    )


def remove_worktree(worktree: Worktree) -> None:
    """Take a worktree and its branch away, with all that is in them. Blocks; call it in a thread."""
    _git(worktree.repository, "worktree", "remove", "--force", str(worktree.path))
    _git(worktree.repository, "branch", "--quiet", "-D", worktree.branch)


def _git(repository: Path, *arguments: str) -> str:
    program = shutil.which("git")
    if program is None:
        raise WorktreeFailed("There is no git on PATH, and worktrees need it. Install git.")
    try:
        done = subprocess.run(
            [program, *_NO_PROGRAMS_OF_THE_REPOSITORY, *arguments],
            cwd=repository,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorktreeFailed(
            f"git {arguments[0]} could not be run: {error}. Try it by hand in {repository}."
        ) from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise WorktreeFailed(
            f"git {arguments[0]} failed: {said[-1] if said else f'exit {done.returncode}'}. Try it by hand in {repository}."
        )
    return done.stdout
