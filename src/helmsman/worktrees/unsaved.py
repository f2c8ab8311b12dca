"""What is in a worktree and nowhere else, and so goes with it: commits on no other branch, files not brought over."""

from __future__ import annotations

import filecmp
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from helmsman.errors import WorktreeError
from helmsman.worktrees.changes import diff

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.worktrees.changes import FileStat
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
    return Unsaved(commits=commits, files=files, nested=changes.nested)


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
    gone = [file.old_path] if file.kind == "renamed" and file.old_path is not None else []
    if file.kind == "deleted":
        return not _exists(tree.repository / file.path)
    return _same(tree.path / file.path, tree.repository / file.path) and not any(
        _exists(tree.repository / path) for path in gone
    )


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _same(one: Path, other: Path) -> bool:
    """Whether both are the same link or file. What cannot be read is not the same: nothing is then lost unasked."""
    try:
        if one.is_symlink() or other.is_symlink():
            return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
        if not (one.is_file() and other.is_file()):
            return False
        modes = one.stat().st_mode ^ other.stat().st_mode
        return not modes & _EXECUTABLE and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
