"""What changed in a tree, as one patch and file by file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.base.git import find_git, shown
from helmsman.base.patches import diff_digest
from helmsman.errors import InvalidInput, WorktreeError
from helmsman.worktrees.snapshot import scratch, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from helmsman.base.git import Git
    from helmsman.model.unified_diff import FileKind
    from helmsman.worktrees.records import Worktree

_KINDS: Final[dict[str, FileKind]] = {"A": "added", "D": "deleted", "R": "renamed", "C": "copied"}
_SUBMODULE_MODE: Final = "160000"
_STAT_WIDTH: Final = 100

_PLAINLY: Final = (
    "-r",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--full-index",
    "--ignore-submodules=none",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
"""Whatever the repository's configuration and attributes ask for: no program of theirs is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """One changed file. `old_path` is where it was, when renamed or copied; `mode` is a change of its mode alone.

    `added` and `removed` count lines; None for a binary file.
    """

    path: str
    kind: FileKind
    old_path: str | None = None
    added: int | None
    removed: int | None

    @property
    def binary(self) -> bool:
        return self.added is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDiff:
    """`patch` is for `git apply`, byte for byte; `stat` is git's overview of it for people.

    `nested` names git repositories that were made inside the tree: they are no part of it, and so not of the patch.
    """

    patch: bytes
    files: tuple[FileStat, ...]
    stat: str
    nested: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of the patch."""
        return diff_digest(self.patch)

    @property
    def text(self) -> str:
        """The patch to be read; what is not UTF-8 in it is replaced."""
        return self.patch.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class RawChange:
    """One path on which two trees differ; an empty mode says that it is not there."""

    path: bytes
    old_path: bytes | None
    status: str
    old_mode: str
    new_mode: str
    same_content: bool

    @property
    def is_submodule(self) -> bool:
        return _SUBMODULE_MODE in (self.old_mode, self.new_mode)

    @property
    def is_deletion(self) -> bool:
        return self.new_mode == ""


def diff(tree: Worktree) -> TreeDiff:
    """All that was changed in a worktree since it was made, committed or not. Blocks; call it in a thread.

    Raises:
        WorktreeError: The worktree is gone, or git cannot read it.
    """
    check_present(tree)
    with scratch(tree.own_git) as git:
        snapshot = take_snapshot(git)
        return compare(git, tree.base, snapshot.tree, nested=snapshot.nested)


def diff_of_directory(directory: Path, since: str | None = None, *, state_dir: Path | None = None) -> TreeDiff:
    """What is changed in the repository around a directory since a commit (without one: since the last, so all that is
    not committed). Blocks; call it in a thread.

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
        return compare(git, _since(git, since), snapshot.tree, nested=snapshot.nested)


def compare(git: Git, before: str, after: str, *, nested: tuple[bytes, ...] = ()) -> TreeDiff:
    """The difference of two trees, with renames found."""

    def diff_tree(*options: str) -> bytes:
        return git.run("diff-tree", *_PLAINLY, "-M", "-C", *options, before, after).output

    return TreeDiff(
        patch=diff_tree("--patch", "--binary"),
        files=tuple(_file_stats(diff_tree("--raw", "-z"), diff_tree("--numstat", "-z"))),
        stat=shown(diff_tree(f"--stat={_STAT_WIDTH}")),
        nested=tuple(map(shown, nested)),
    )


def changed_paths(git: Git, before: str, after: str) -> list[RawChange]:
    """The paths on which two trees differ; a rename is a deletion and an addition."""
    return list(_raw_changes(git.run("diff-tree", *_PLAINLY, "--no-renames", "--raw", "-z", before, after).output))


def check_present(tree: Worktree) -> None:
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


def _file_stats(raw: bytes, numstat: bytes) -> Iterator[FileStat]:
    counts = dict(_line_counts(numstat))
    for change in _raw_changes(raw):
        added, removed = counts.get(change.path, (None, None))
        kind = _KINDS.get(change.status, "modified")
        if kind == "modified" and change.same_content and change.old_mode != change.new_mode:
            kind = "mode"
        yield FileStat(
            path=shown(change.path),
            kind=kind,
            old_path=None if change.old_path is None else shown(change.old_path),
            added=added,
            removed=removed,
        )


def _raw_changes(output: bytes) -> Iterator[RawChange]:
    """`:old-mode new-mode old-id new-id status`, path, and for renames and copies a second path."""
    fields = iter(output.split(b"\0")[:-1])
    for head in fields:
        old_mode, new_mode, old_id, new_id, status = head.removeprefix(b":").decode().split(" ")
        first = next(fields)
        moved = status[0] in "RC"
        yield RawChange(
            path=next(fields) if moved else first,
            old_path=first if moved else None,
            status=status[0],
            old_mode=old_mode.strip("0") and old_mode,
            new_mode=new_mode.strip("0") and new_mode,
            same_content=old_id == new_id,
        )


def _line_counts(output: bytes) -> Iterator[tuple[bytes, tuple[int | None, int | None]]]:
    """`added TAB removed TAB path`, or with an empty path the old and the new one after it; `-` for a binary file."""
    fields = iter(output.split(b"\0")[:-1])
    for entry in fields:
        added, removed, path = entry.split(b"\t", 2)
        if not path:
            next(fields)
            path = next(fields)
        yield path, (None if added == b"-" else int(added), None if removed == b"-" else int(removed))
