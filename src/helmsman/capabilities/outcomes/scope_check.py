"""Detect changes to a working tree that agents may only read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman.base.git import find_git
from helmsman.capabilities.outcomes.evidence import Evidence
from helmsman.errors import InvalidInput
from helmsman.worktrees import diff_of_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.outcomes.request import Wanted
    from helmsman.steering.core import Steering


async def require_repository(helm: Steering, wanted: Wanted) -> Path:
    """Return the root of the repository of a job.

    Raises:
        InvalidInput: The directory is not in a repository.
    """
    git = await anyio.to_thread.run_sync(find_git, Path(wanted.directory), helm.settings.state_dir)
    if git is None:
        raise InvalidInput(
            f"{wanted.directory} is not in a git repository. Name a directory that is.", parameter="workingDirectory"
        )
    return git.work_tree


def look(root: Path, state_dir: Path) -> dict[str, str]:
    """Return the state of the working tree, commit and digest of changes, as JSON. Blocks."""
    git = find_git(root, state_dir)
    head = "" if git is None else git.commit("HEAD") or ""
    return {"head": head, "diff": diff_of_directory(root, state_dir=state_dir).digest}


async def untouched(root: Path, state_dir: Path, before: Mapping[str, str]) -> Evidence:
    """Verify that the working tree is unchanged."""
    return nothing_changed(await anyio.to_thread.run_sync(look, root, state_dir) == before)


def nothing_changed(same: bool) -> Evidence:
    """Return the evidence for an unchanged or changed working tree."""
    changed = "Files of the working tree, or its commit, changed meanwhile. Look at the changes, and ask again."
    return Evidence(ok=same, what="Nothing in the working tree was changed." if same else changed)
