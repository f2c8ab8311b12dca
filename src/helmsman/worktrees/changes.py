"""Differences of a working tree, as one patch and per file."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.base.git import Git, find_git
from helmsman.base.patches import diff_digest, is_file, same_file, shown
from helmsman.base.snapshot import Snapshot, scratch, take_snapshot
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, WorktreeError
from helmsman.model.unified_diff import FileKind, FileStat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from helmsman.model.worktree import Worktree
    from helmsman.worktrees.turn_snapshots import TreeState

_KINDS: Final[dict[str, FileKind]] = {"A": "added", "D": "deleted", "R": "renamed", "C": "copied"}
_STAT_WIDTH: Final = 100

_PLAINLY: Final = (
    *("-r", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--ignore-submodules=none"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)
"""Ignore the repository's configuration and attributes: no program named there may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDiff:
    """Difference of two trees. `patch` is for `git apply`, byte for byte; `stat` is git's overview.

    `nested` names git repositories inside the tree, which are not part of the patch. `left_out` names other entries
    that cannot be included, with the reason.
    """

    patch: bytes
    files: tuple[FileStat, ...]
    stat: str
    nested: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the patch."""
        return diff_digest(self.patch)

    @property
    def text(self) -> str:
        """Patch as text, with invalid UTF-8 replaced."""
        return self.patch.decode("utf-8", "replace")


def diff(tree: Worktree) -> TreeDiff:
    """Return all changes in a worktree since its creation, committed or not. Blocks; call it in a thread.

    Raises:
        WorktreeError: The worktree is gone, or git cannot read it.
    """
    check_present(tree)
    with scratch(tree.own_git) as git:
        snapshot = take_snapshot(git, tree.included)
        return compare(git, tree.base, snapshot.tree, snapshot)


def diff_of_directory(directory: Path, since: str | None = None, *, state_dir: Path) -> TreeDiff:
    """Return the changes in the repository around a directory since a commit, by default since HEAD. Blocks.

    Raises:
        InvalidInput: There is no working tree, or no such commit.
        WorktreeError: Git cannot read it.
    """
    found = find_git(directory, state_dir)
    if found is None:
        raise InvalidInput(
            f"{directory} is not in the working tree of a git repository, so what changed in it is not known. Name one."
        )
    with scratch(found) as git:
        snapshot = take_snapshot(git)
        return compare(git, _since(git, since), snapshot.tree, snapshot)


def compare(git: Git, before: str, after: str, around: Snapshot | TreeState | None = None) -> TreeDiff:
    """Return the difference of two trees, with renames detected. `around` supplies nested repositories and omissions."""

    def diff_tree(*options: str) -> bytes:
        return git.run("diff-tree", *_PLAINLY, "-M", "-C", *options, before, after).output

    # Rename detection is expensive, so two outputs are requested per run. An empty line ends the stat.
    stat, end, patch = diff_tree(f"--stat={_STAT_WIDTH}", "--patch", "--binary").partition(b"\n\n")
    return TreeDiff(
        patch=patch,
        files=tuple(_file_stats(diff_tree("--raw", "--numstat", "-z"))),
        stat=(stat + end[:1]).decode("utf-8", "replace"),
        nested=() if around is None else tuple(map(shown, around.nested)),
        left_out=tuple(map(shown, around.left_out)) if isinstance(around, Snapshot) else (),
    )


def check_present(tree: Worktree) -> None:
    if tree.path.is_symlink():  # files behind the link would be shown and applied as the session's
        raise WorktreeError(
            f"The worktree {tree.path} was replaced by a link to {tree.path.resolve()}. Remove the link, then discard it."
        )
    if not (tree.path.is_dir() and tree.git_dir.is_dir()):
        raise WorktreeError(
            f"The worktree {tree.path} is gone: it was discarded, or removed by hand. Discard it to forget it."
        )


def _since(git: Git, since: str | None) -> str:
    if since is None:
        return "HEAD" if git.has("HEAD^{commit}") else git.text("mktree")
    commit = git.commit(since)
    if commit is None:
        raise InvalidInput(f"There is no commit {since!r:.200} in {git.work_tree}. Name one that `git log` shows.")
    return commit


def _file_stats(output: bytes) -> Iterator[FileStat]:
    """Parse raw changes, followed by line counts.

    A change is `:old-mode new-mode old-id new-id status`, the path, and for renames and copies a second path. A count
    is `added TAB removed TAB path`, or an empty path followed by the old and the new one; `-` for a binary file.
    """
    changes: list[tuple[str, str, str | None]] = []
    counts: dict[str, tuple[int | None, int | None]] = {}
    fields = iter(output.decode("utf-8", "surrogateescape").split("\0")[:-1])
    for about in fields:
        if about.startswith(":"):
            old_path = next(fields)
            is_moved = about.rpartition(" ")[2][0] in "RC"
            changes.append((about, next(fields) if is_moved else old_path, old_path if is_moved else None))
        else:
            *lines, path = about.split("\t", 2)
            if not path:
                next(fields)
                path = next(fields)
            more, less = (None if number == "-" else int(number) for number in lines)
            counts[path] = more, less
    for about, path, moved_from in changes:
        old_mode, new_mode, old_id, new_id, status = about.removeprefix(":").split(" ")
        kind = _KINDS.get(status[0], "modified")
        if kind == "modified" and old_id == new_id and old_mode != new_mode:
            kind = "mode"
        added, removed = counts.get(path, (None, None))
        yield FileStat(
            path=shown(path),
            kind=kind,
            old_path=None if moved_from is None else shown(moved_from),
            added=added,
            removed=removed,
        )


# --- Find work that exists only in a worktree: commits on no other branch, and changes that were not applied ----------

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
