"""A worktree's changes into the main tree: all of them, or nothing.

What the main tree is to hold is worked out among git's objects (`merging`), then what stands in the way is looked for, and
only then files are written; a failure to write puts back what was there. The main tree's index is never touched, so the
changes are there unstaged, as if a person had typed them, and new files are untracked.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from helmsman.base.git import shown
from helmsman.errors import DirtyTree, WorktreeError
from helmsman.worktrees.changes import changed_paths, check_present, compare
from helmsman.worktrees.merging import Conflicts, merge
from helmsman.worktrees.records import one_at_a_time
from helmsman.worktrees.snapshot import nul_separated, scratch, take_snapshot
from helmsman.worktrees.writing import write_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from helmsman.base.git import Git
    from helmsman.worktrees.changes import FileStat, RawChange, TreeDiff
    from helmsman.worktrees.records import Worktree
    from helmsman.worktrees.snapshot import Snapshot

_NAMED_FILES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was brought over. `three-way`: the main tree had moved on since the worktree was made, so both were merged.

    `files` are those of the main tree that are different for it; `diff` is what had been changed in the worktree.
    """

    files: tuple[FileStat, ...]
    how: Literal["clean", "three-way"]
    diff: TreeDiff


def apply(tree: Worktree, *, allow_dirty: bool = False, check: Callable[[TreeDiff], None] | None = None) -> Applied:
    """Bring all that was changed in a worktree into the main tree. Blocks; call it in a thread.

    The worktree stays as it is. What is in the main tree already is not brought again, so that a call that was repeated,
    or that a crash cut short, does no harm.

    Args:
        tree: The worktree.
        allow_dirty: Go on where the main tree has uncommitted changes, as long as they are in other files.
        check: Given the very changes that are about to be brought over, whatever happens in the worktree meanwhile. What
            it raises refuses them.

    Raises:
        DirtyTree: The main tree has uncommitted changes. Untracked files do not count unless they are in the way.
        ApplyConflict: The changes do not fit. Nothing was touched.
        WorktreeError: Git cannot do it, or a file cannot be written. Nothing was touched, or all was put back.
    """
    check_present(tree)
    if not tree.repository.is_dir() or not tree.main_git.has("HEAD^{commit}"):
        raise WorktreeError(f"{tree.repository} is gone or has no commit at HEAD. Check out the branch to apply to.")
    with one_at_a_time(tree), scratch(tree.own_git) as own:
        snapshot = take_snapshot(own)
        diff = compare(own, tree.base, snapshot.tree, nested=snapshot.nested)
        if check is not None:
            check(diff)
        assert own.index is not None
        main = replace(tree.main_git, index=own.index.with_name("main-index"), objects=own.objects)
        head, base = (main.text("rev-parse", "--verify", f"{commit}^{{tree}}") for commit in ("HEAD", tree.base))
        wanted = snapshot.tree if head == base else merge(main, base, head, snapshot.tree)
        changes = changed_paths(main, head, wanted)
        _check_kinds(snapshot, changes)
        missing = _not_there_yet(tree, main, head, wanted, changes, allow_dirty=allow_dirty)
        if missing:
            write_changes(main, wanted, missing)
        files = diff.files if head == base else compare(main, head, wanted).files
        return Applied(files=files, how="clean" if head == base else "three-way", diff=diff)


def _check_kinds(snapshot: Snapshot, changes: list[RawChange]) -> None:
    """Submodules and other repositories are more than files: their commits would have to come along."""
    repositories = [*snapshot.nested, *(change.path for change in changes if change.is_submodule)]
    if repositories:
        raise WorktreeError(
            f"{_named(repositories)}: git repositories of their own, whose changes cannot be brought over with these "
            "files. Nothing was touched. Bring them over by hand, and put them back as they were in the worktree."
        )


def _not_there_yet(
    tree: Worktree, main: Git, head: str, wanted: str, changes: list[RawChange], *, allow_dirty: bool
) -> list[RawChange]:
    """The changes that the main tree does not have, once it is sure that nothing uncommitted is in their way."""
    conflicts = _obstacles(main.work_tree, changes)
    paths = [change.path for change in changes if change.path not in conflicts.reasons]
    _index_as_it_is(tree, main, head, paths)
    changed_here = _differing(main, head)
    still_to_do = _differing(main, wanted) | conflicts.reasons.keys()
    dirty = _uncommitted(tree.main_git)
    unexpected = dirty - {change.path for change in changes if change.path not in still_to_do}
    if unexpected and not allow_dirty:
        raise DirtyTree(
            f"The main tree {tree.repository} has uncommitted changes: {_named(sorted(unexpected))}. Nothing was touched. "
            "Commit or stash them, or allow a dirty tree.",
            files=[shown(path) for path in sorted(unexpected)],
        )
    for path in paths:
        if path in still_to_do and path in changed_here | dirty:
            tracked = path in dirty
            conflicts.reasons[path] = "uncommitted changes in it" if tracked else "an untracked file is in its place"
    if conflicts.reasons:
        raise conflicts.error()
    return [change for change in changes if change.path in still_to_do]


def _obstacles(root: Path, changes: list[RawChange]) -> Conflicts:
    """What no file can be written over: a file where a directory must be, or a directory with files of its own."""
    going = {change.path for change in changes if change.is_deletion}
    base = os.fsencode(root)
    conflicts = Conflicts()
    for change in changes:
        if change.is_deletion:
            continue
        parts = change.path.split(b"/")
        for depth in range(1, len(parts)):
            folder = b"/".join(parts[:depth])
            kind = _kind_of(base, folder)
            if kind not in (None, stat.S_IFDIR) and folder not in going:
                conflicts.reasons[change.path] = f"{shown(folder)} is not a directory"
        others = (path for path in _files_in(base, change.path) if path not in going)
        if _kind_of(base, change.path) == stat.S_IFDIR and any(others):
            conflicts.reasons[change.path] = "a directory with other files is in its place"
    return conflicts


def _files_in(base: bytes, folder: bytes) -> Iterator[bytes]:
    for place, _, names in os.walk(os.path.join(base, folder)):  # noqa: PTH118 - names of files are bytes
        for name in names:
            yield os.path.relpath(os.path.join(place, name), base)  # noqa: PTH118


def _kind_of(base: bytes, path: bytes) -> int | None:
    try:
        return stat.S_IFMT(os.lstat(os.path.join(base, path)).st_mode)  # noqa: PTH118
    except OSError:
        return None


def _index_as_it_is(tree: Worktree, main: Git, head: str, paths: list[bytes]) -> None:
    """Fill our own index for the main tree: what HEAD has, and the paths in question as they are in the working tree."""
    main.run("read-tree", head)
    sparse = _left_out_by_sparse_checkout(tree.main_git)
    looked_at = [path for path in paths if path not in sparse]
    base = os.fsencode(main.work_tree)
    gone = {path for path in looked_at if _kind_of(base, path) == stat.S_IFDIR or _behind_a_link(base, path)}
    main.run("update-index", "-z", "--force-remove", "--stdin", stdin=nul_separated(gone))
    here = [path for path in looked_at if path not in gone]
    main.run("update-index", "-z", "--add", "--remove", "--replace", "--stdin", stdin=nul_separated(here))


def _left_out_by_sparse_checkout(git: Git) -> set[bytes]:
    """Files that are not in the working tree on purpose: they are as HEAD has them."""
    asked = git.run("config", "--bool", "core.sparseCheckout", accept=(0, 1)).output
    if asked.strip() != b"true":
        return set()
    listed = git.run("ls-files", "-t", "-z").output.split(b"\0")
    return {entry[2:] for entry in listed if entry.startswith(b"S ")}


def _behind_a_link(base: bytes, path: bytes) -> bool:
    parts = path.split(b"/")
    return any(_kind_of(base, b"/".join(parts[:depth])) == stat.S_IFLNK for depth in range(1, len(parts)))


def _differing(git: Git, commit: str) -> set[bytes]:
    listed = git.run("diff-index", "--cached", "--no-renames", "--name-only", "-z", "--ignore-submodules=none", commit)
    return {path for path in listed.output.split(b"\0") if path}


def _uncommitted(git: Git) -> set[bytes]:
    """Tracked files that are changed, staged or not. What happens inside a submodule is the submodule's."""
    told = git.run(
        "status", "--porcelain=v1", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=dirty"
    ).output
    return {entry[3:] for entry in told.split(b"\0") if entry}


def _named(paths: list[bytes]) -> str:
    more = f" and {len(paths) - _NAMED_FILES} more" if len(paths) > _NAMED_FILES else ""
    return ", ".join(map(shown, paths[:_NAMED_FILES])) + more
