"""What is in a worktree and nowhere else, and so goes with it: commits on no other branch, files not brought over."""

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
    from helmsman.worktrees.records import Worktree

_EXECUTABLE = 0o100


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaved:
    """What discarding a worktree would lose. `nested` are git repositories that were made in there, `unreadable` says that
    nobody can tell what there is.
    """

    commits: tuple[str, ...] = ()
    files: tuple[FileStat, ...] = ()
    nested: tuple[str, ...] = ()
    unreadable: bool = False

    def __bool__(self) -> bool:
        return bool(self.commits or self.files or self.nested or self.unreadable)


def unsaved(tree: Worktree) -> Unsaved:
    """What is in a worktree and nowhere else. Blocks; call it in a thread.

    A changed file is saved if the main tree has the same: it was applied, or somebody else made the same change.
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
    """The commits that only this worktree and its branch have, newest first."""
    wanted = ("HEAD", f"refs/heads/{tree.branch}")
    others = ("--not", tree.base, f"--exclude={tree.branch}", "--branches", "--tags", "--remotes")
    git = replace(tree.own_git, work_tree=tree.git_dir)  # the files may be gone already
    with suppress(WorktreeError):
        told = git.run("log", "-z", "--format=%h %s", *wanted, *others, "--").output
        return tuple(line.decode("utf-8", "replace") for line in told.split(b"\0") if line)
    return ()


def changed_files(tree: Worktree) -> tuple[FileStat, ...] | None:
    """What differs from where the worktree began; None where it cannot be read."""
    with suppress(WorktreeError):
        return diff(tree).files
    return None


def _is_in_main_tree(tree: Worktree, file: FileStat) -> bool:
    """What cannot be read is not there: nothing is then lost unasked."""
    here = tree.repository / file.path
    try:
        if file.kind == "deleted":
            return not os.path.lexists(here)
        if file.kind == "renamed" and file.old_path is not None and os.path.lexists(tree.repository / file.old_path):
            return False
        return is_file(here) and same_file(tree.path / file.path, here, mode=_EXECUTABLE)
    except OSError:
        return False
