"""Find work that exists only in a worktree: commits on no other branch, and changes that were not applied."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helmsman.base.patches import is_file, same_file
from helmsman.base.structs import replace
from helmsman.errors import WorktreeError
from helmsman.model.unified_diff import FileStat
from helmsman.worktrees.changes import diff

if TYPE_CHECKING:
    from helmsman.model.worktree import Worktree

_EXECUTABLE = 0o100


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaved:
    """Work that discarding a worktree would lose.

    `nested` lists git repositories created inside it; `unreadable` means that its content is unknown.
    """

    commits: tuple[str, ...] = ()
    files: tuple[FileStat, ...] = ()
    nested: tuple[str, ...] = ()
    unreadable: bool = False

    def __bool__(self) -> bool:
        return bool(self.commits or self.files or self.nested or self.unreadable)


def unsaved(tree: Worktree) -> Unsaved:
    """Return the work that exists only in a worktree. Blocks; call it in a thread.

    A changed file counts as saved if the main tree has the same content, by an apply or otherwise.
    """
    commits = lost_commits(tree)
    try:
        changes = diff(tree)
    except WorktreeError:
        return Unsaved(commits=commits, unreadable=tree.path.exists())
    files = tuple(file for file in changes.files if not _is_in_main_tree(tree, file))
    odd = tuple(FileStat(path=name, kind="added", added=None, removed=None) for name in changes.left_out)
    return Unsaved(commits=commits, files=(*files, *odd), nested=changes.nested)


def lost_commits(tree: Worktree) -> tuple[str, ...]:
    """Return the commits that only this worktree and its branch have, newest first."""
    wanted = ("HEAD", f"refs/heads/{tree.branch}")
    others = ("--not", tree.base, f"--exclude={tree.branch}", "--branches", "--tags", "--remotes")
    git = replace(tree.own_git, work_tree=tree.git_dir)  # the files may be gone already
    with suppress(WorktreeError):
        told = git.run("log", "-z", "--format=%h %s", *wanted, *others, "--").output
        return tuple(line.decode("utf-8", "replace") for line in told.split(b"\0") if line)
    return ()


def changed_files(tree: Worktree) -> tuple[FileStat, ...] | None:
    """Return the files that differ from the worktree's base; None if it cannot be read."""
    with suppress(WorktreeError):
        return diff(tree).files
    return None


def _is_in_main_tree(tree: Worktree, file: FileStat) -> bool:
    """Return whether the main tree has the same file. An unreadable file counts as missing, so that nothing is lost."""
    here = tree.repository / file.path
    try:
        if file.kind == "deleted":
            return not os.path.lexists(here)
        if file.kind == "renamed" and file.old_path is not None and os.path.lexists(tree.repository / file.old_path):
            return False
        return is_file(here) and same_file(tree.path / file.path, here, mode=_EXECUTABLE)
    except OSError:
        return False
