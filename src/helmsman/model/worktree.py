"""Git worktree of a session."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.base.structs import Value

if TYPE_CHECKING:
    from helmsman.base.git import Git


class Worktree(Value, frozen=True, kw_only=True):
    """Worktree of a repository in the state directory, on a separate branch.

    `repository` is the main tree, to which changes are applied. `directory` corresponds to the requested directory.
    `base` is the commit it started from. `included` lists ignored files copied from the main tree (`.worktreeinclude`),
    which are not changes of the session.
    """

    path: Path
    directory: Path
    branch: str
    base: str
    repository: Path
    git_dir: Path
    repository_git_dir: Path
    session_id: str | None
    owner_pid: int
    created_at: datetime
    included: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def state_dir(self) -> Path:
        return self.path.parent.parent

    @property
    def own_git(self) -> Git:
        """Git in the worktree."""
        from helmsman.base.git import Git  # clients that only read events need no git

        return Git(work_tree=self.path, git_dir=self.git_dir, place=self.state_dir)

    @property
    def main_git(self) -> Git:
        """Git in the main tree."""
        from helmsman.base.git import Git  # as above

        return Git(work_tree=self.repository, git_dir=self.repository_git_dir, place=self.state_dir)
