"""Plan and perform a rewind of a working tree to a snapshot.

Content that snapshots do not cover is left unchanged and reported: files that are too large, submodules, nested
repositories, and paths outside a sparse checkout. A file that the snapshot contains and git now ignores is read again,
so that undoing the rewind restores it. HEAD and the index are not changed. `helmsman.git.patches` writes the files,
all or nothing. All functions block; call them in threads.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helmsman.base.structs import replace
from helmsman.git.patches import SUBMODULE, exchange_trees, is_file, left_out_by_sparse_checkout, one_at_a_time, shown
from helmsman.git.snapshot import index_files, scratch
from helmsman.git.tree_changes import TreeDiff, compare
from helmsman.git.turn_snapshots import LARGEST_FILE, TreeState, state_now

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from helmsman.git.command import Git
    from helmsman.git.turn_snapshots import TurnSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRewind:
    """Planned rewind of files: from tree `now` to tree `wanted`, with the difference `diff`.

    `left` lists differing paths that are not touched. `changed_since` lists files changed after the last turn; None if
    unknown. `lost` lists files of other sessions that would lose work, by session.
    """

    now: TreeState
    wanted: str
    diff: TreeDiff
    left: tuple[str, ...]
    changed_since: tuple[str, ...] | None
    lost: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])


def plan_rewind(
    git: Git,
    wanted: TreeState,
    *,
    after: str | None,
    leave_out: Collection[str] = (),
    others: Mapping[str, Sequence[TurnSnapshot]] | None = None,
) -> FilesRewind:
    """Return the changes that a rewind would make.

    Args:
        git: The working tree.
        wanted: The target state.
        after: The tree after the last turn.
        leave_out: Files that are not work of the session.
        others: The turns of other sessions in the same tree since then, oldest first.

    Raises:
        WorktreeError: Git cannot read the tree.
    """
    with _planned(git, wanted, after, leave_out) as (plan, own):
        lost = {session: _lost(own, turns, plan) for session, turns in (others or {}).items()}
        return replace(plan, lost={session: tuple(map(shown, paths)) for session, paths in lost.items() if paths})


def _lost(git: Git, turns: Sequence[TurnSnapshot], plan: FilesRewind) -> list[str]:
    """Return files with changes by these turns that are present now and would be lost by the rewind.

    If the tree after a turn is unknown, all changes from its beginning until now count as its work.
    """
    begun_with: dict[str, str] = {}
    left: dict[str, str] = {}
    for turn in turns:
        tree = turn.after or plan.now.tree
        for path in _differing(git, turn.before.tree, tree):
            begun_with.setdefault(path, turn.before.tree)
            left[path] = tree
    touched = _differing(git, plan.now.tree, plan.wanted).keys() & left.keys()
    was_changed = {tree: _differing(git, tree, plan.now.tree) for tree in {*begun_with.values()}}
    is_undone = {tree: _differing(git, tree, plan.wanted) for tree in {*left.values()}}
    return sorted(path for path in touched if path in was_changed[begun_with[path]] and path in is_undone[left[path]])


def rewind_files(
    git: Git,
    wanted: TreeState,
    *,
    after: str | None,
    leave_out: Collection[str],
    agree: Callable[[FilesRewind, Git], None],
) -> FilesRewind:
    """Rewind a working tree, all or nothing.

    `agree` receives exactly the change that will be made, and git with a view; an exception it raises cancels the
    rewind.

    Raises:
        ApplyConflict: A file is in the way. Nothing was touched.
        WorktreeError: Git failed, or a file cannot be written. Nothing was touched, or everything was restored.
    """
    with one_at_a_time(git), _planned(git, wanted, after, leave_out) as (plan, own):
        agree(plan, replace(own, index=None))
        exchange_trees(own, plan.now.tree, plan.wanted)
        return plan


@contextmanager
def _planned(
    git: Git, wanted: TreeState, after: str | None, leave_out: Collection[str]
) -> Iterator[tuple[FilesRewind, Git]]:
    with state_now(git, leave_out) as (seen, now, index), scratch(seen) as own:
        own = replace(own, objects=None)  # objects created here must persist
        assert own.index is not None
        with suppress(FileNotFoundError):  # the index does not exist
            shutil.copy2(index, own.index)
        differing = _differing(own, now.tree, wanted.tree)
        left = _left(own, differing, {*now.left_out, *wanted.left_out, *now.nested, *leave_out})
        ignored, large = _ignored_by_now(own.work_tree, [path for path, (old, _) in differing.items() if not old], left)
        left |= large
        if ignored:
            index_files(own, ignored)
            now = replace(now, tree=own.text("write-tree"))
        target = _with_left(own, wanted.tree, now.tree, left)
        diff = compare(own, now.tree, target, now)
        since = None
        if after is not None:
            since = tuple(
                map(shown, sorted({*_differing(own, after, now.tree)} & {*_differing(own, now.tree, target)}))
            )
        yield (
            FilesRewind(now=now, wanted=target, diff=diff, left=tuple(map(shown, sorted(left))), changed_since=since),
            own,
        )


def _differing(git: Git, before: str, after: str) -> dict[str, tuple[str, str]]:
    """Return the paths on which two trees differ, with both modes; an absent file has an empty mode."""
    raw = git.names("diff-tree", "-r", "--no-renames", "--ignore-submodules=none", "--raw", "-z", before, after)
    modes = (about.removeprefix(":").split(" ")[:2] for about in raw[::2])
    return {
        path: (old.strip("0") and old, new.strip("0") and new)
        for path, (old, new) in zip(raw[1::2], modes, strict=True)
    }


def _left(git: Git, differing: dict[str, tuple[str, str]], unknown: Collection[str]) -> set[str]:
    """Return the differing paths that must not be touched."""
    sparse = left_out_by_sparse_checkout(replace(git, index=None))
    parts = ({path, *_parents(path)} for path in differing)
    return {
        path
        for (path, modes), around in zip(differing.items(), parts, strict=True)
        if SUBMODULE in modes or path in sparse or not around.isdisjoint(unknown)
    }


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _ignored_by_now(root: Path, paths: Iterable[str], left: Collection[str]) -> tuple[list[str], set[str]]:
    """Return files that only the snapshot contains but that exist: the readable ones, and those that are too large."""
    there = [path for path in paths if path not in left and is_file(root / path)]
    large = {path for path in there if os.lstat(root / path).st_size > LARGEST_FILE}
    return [path for path in there if path not in large], large


def _with_left(git: Git, wanted: str, now: str, left: Collection[str]) -> str:
    """Return the tree `wanted`, with the current content of the paths in `left`."""
    if not left:
        return wanted
    entries = dict.fromkeys(left, f"0 {'0' * len(now)}")
    for entry in git.names("ls-tree", "-r", "-z", "--full-tree", now):
        about, _, path = entry.partition("\t")
        if path in entries:
            mode, _, name = about.split(" ")
            entries[path] = f"{mode} {name}"
    lines = b"".join(about.encode() + b"\t" + os.fsencode(path) + b"\0" for path, about in entries.items())
    git.run("read-tree", wanted)
    git.run("update-index", "-z", "--replace", "--index-info", stdin=lines)
    return git.text("write-tree")
