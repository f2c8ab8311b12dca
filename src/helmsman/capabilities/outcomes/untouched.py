"""Whether nothing was changed where an agent was only to look: the working tree, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman.base.git import find_git
from helmsman.capabilities.outcomes.evidence import Evidence
from helmsman.errors import InvalidInput
from helmsman.worktrees import diff_of_directory

if TYPE_CHECKING:
    from helmsman.capabilities.outcomes.wanted import Wanted
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.steering.core import Steering


async def require_repository(helm: Steering, wanted: Wanted) -> Path:
    """The root of the repository that an outcome is wanted in.

    Raises:
        InvalidInput: There is none.
    """
    git = await anyio.to_thread.run_sync(find_git, Path(wanted.directory), helm.settings.state_dir)
    if git is None:
        raise InvalidInput(
            f"{wanted.directory} is not in a git repository. Name a directory that is.", parameter="workingDirectory"
        )
    return git.work_tree


async def look(work: Work, root: Path) -> dict[str, str]:
    """What the working tree is: its commit, and what differs from that. As a step keeps it."""

    def snapshot() -> dict[str, str]:
        git = find_git(root, work.helm.settings.state_dir)
        head = "" if git is None else git.commit("HEAD") or ""
        return {"head": head, "diff": diff_of_directory(root, state_dir=work.helm.settings.state_dir).digest}

    return await anyio.to_thread.run_sync(snapshot)


async def untouched(work: Work, root: Path, before: dict[str, str]) -> Evidence:
    """Whether it is what it was."""
    same = await look(work, root) == before
    changed = "Files of the working tree, or its commit, changed meanwhile. Look at what they are, and ask again."
    return Evidence(ok=same, what="Nothing in the working tree was changed." if same else changed)
