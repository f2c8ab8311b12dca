"""Track work that another machine does on a local tree, and apply its result.

The result is a commit in this repository, kept by a reference next to that of the sent commit (`refs/helmsman/away/…`).
The difference of the two is shown and applied: merged with the current tree as git objects before any file is touched.
Uncommitted changes that were sent are part of the base, and do not block the apply while they are unchanged. All
functions block; call them in threads.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.files import replace_file
from helmsman.base.git import Git
from helmsman.base.patches import (
    SUBMODULE,
    Conflicts,
    exchange_trees,
    left_out_by_sparse_checkout,
    named,
    one_at_a_time,
    refuse_repositories,
    shown,
)
from helmsman.base.snapshot import index_files, scratch
from helmsman.base.structs import Value, pack, replace, unpack
from helmsman.errors import DirtyTree, WorktreeError
from helmsman.settings import ensure_state_dir
from helmsman.worktrees.applying import Applied, merged
from helmsman.worktrees.bundles import take_bundle
from helmsman.worktrees.changes import TreeDiff, compare
from helmsman.worktrees.remote_bundle import AWAY, REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_FOLDER: Final = "away"
_SHORTEST: Final = 8
"""Minimum length of a partial id: a shorter one may mean a local session."""


class RemoteTree(Value, frozen=True, kw_only=True):
    """Work on another machine with a local tree. `base` is the commit that was sent, `result` the last one received.

    `session_id` and `task_id` are those of the other machine, once known.
    """

    id: str
    host: str
    repository: Path
    git_dir: Path
    base: str
    state_dir: Path
    sent_at: datetime
    result: str | None = None
    session_id: str | None = None
    task_id: str | None = None

    @property
    def git(self) -> Git:
        return Git(work_tree=self.repository, git_dir=self.git_dir, place=self.state_dir)


# --- records ---------------------------------------------------------------------------------------------------------


def write_remote_tree(remote: RemoteTree) -> None:
    """Write or replace the record.

    Raises:
        WorktreeError: The file cannot be written.
    """
    try:
        folder = ensure_state_dir(remote.state_dir) / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        replace_file(folder / f"{remote.id}.json", json.dumps(pack(remote)))
    except OSError as error:
        raise WorktreeError(f"Work on another machine cannot be recorded: {error}. Make room.") from error


def all_remote_trees(state_dir: Path) -> Iterator[RemoteTree]:
    """Yield all remote work on trees of this machine, without invalid records."""
    for file in sorted((state_dir / _FOLDER).glob("*.json")):
        with suppress(OSError, ValueError):
            found = unpack(json.loads(file.read_bytes()), RemoteTree)
            if found.id == file.stem:
                yield replace(found, state_dir=state_dir)


def find_remote_tree(state_dir: Path, reference: str) -> tuple[RemoteTree, ...]:
    """Find remote work by session id, a prefix or suffix of it, task id or workspace id."""
    found = tuple(all_remote_trees(state_dir))
    exact = tuple(one for one in found if reference in (one.session_id, one.task_id, one.id))
    if exact or len(reference) < _SHORTEST:
        return exact
    return tuple(
        one
        for one in found
        if (one.session_id or "").startswith(reference) or (one.session_id or "").endswith(reference)
    )


def forget_remote_tree(remote: RemoteTree) -> None:
    """Delete the record and the references of sent and received commits."""
    if remote.git_dir.is_dir():
        with suppress(WorktreeError):
            for name in ("base", "result"):
                remote.git.with_settings(REFERENCES).run("update-ref", "-d", f"{AWAY}/{remote.id}/{name}")
    (remote.state_dir / _FOLDER / f"{remote.id}.json").unlink(missing_ok=True)


# --- results ---------------------------------------------------------------------------------------------------------


def take_result(remote: RemoteTree, commit: str, bundle: Path | None) -> RemoteTree:
    """Store a received result in the repository; without a bundle it must be present.

    Raises:
        WorktreeError: The repository is gone, or the result is damaged or a different commit.
    """
    if not remote.git_dir.is_dir():
        raise WorktreeError(f"The repository {remote.repository} is gone, so nothing can be brought back to it.")
    have_commit(remote.git, commit, bundle, f"{AWAY}/{remote.id}/result")
    remote = replace(remote, result=commit)
    write_remote_tree(remote)
    return remote


def have_commit(git: Git, commit: str, bundle: Path | None, reference: str | None = None) -> None:
    """Store a commit in a repository, and a reference to it; without a bundle it must be present.

    Raises:
        WorkspaceIncomplete: It requires missing commits.
        WorktreeError: The bundle is damaged or contains a different commit.
    """
    if bundle is not None:
        take_bundle(git, bundle, commit)
    elif git.commit(commit) != commit:
        raise WorktreeError(f"What came back for {git.work_tree} is not whole. Try again.")
    if reference is not None:
        git.with_settings(REFERENCES).run("update-ref", reference, commit)


def diff_of_result(remote: RemoteTree) -> TreeDiff:
    """Return the received changes.

    Raises:
        WorktreeError: Git cannot read them.
    """
    with remote.git.viewed() as git:
        return compare(git, remote.base, remote.result or remote.base)


def apply_result(
    remote: RemoteTree, *, allow_dirty: bool = False, check: Callable[[TreeDiff], None] | None = None
) -> Applied:
    """Apply a received result to the working tree, all or nothing. Compare `helmsman.worktrees.apply`.

    Raises:
        DirtyTree: The tree has uncommitted changes that were not sent. Untracked files count only if they are in the way.
        ApplyConflict: The changes do not fit. Nothing was touched.
        WorktreeError: Git failed, or a file cannot be written. Nothing was touched, or everything was restored.
    """
    if not remote.repository.is_dir() or not remote.git.has("HEAD^{commit}"):
        raise WorktreeError(f"{remote.repository} is gone or has no commit at HEAD. Check out the branch to apply to.")
    with one_at_a_time(remote.git), scratch(remote.git) as git:
        head, base, result = (
            git.text("rev-parse", "--verify", f"{one}^{{tree}}")
            for one in ("HEAD", remote.base, remote.result or remote.base)
        )
        diff = compare(git, remote.base, remote.result or remote.base)
        if check is not None:
            check(diff)
        changed = _differing(git, base, result)
        refuse_repositories(path for path, modes in changed.items() if SUBMODULE in modes)
        own = replace(git, index=None, objects=None)
        uncommitted = {entry[3:] for entry in own.names("status", "--porcelain=v1", "-z", "-uno", "--no-renames")}
        sparse = left_out_by_sparse_checkout(own)
        looked_at: set[str] = set()
        more = {*changed, *_differing(git, head, base), *uncommitted}
        while True:
            looked_at |= more
            now = _tree_of(git, head, looked_at - sparse)
            wanted = result if now == base else merged(git, base, now, result)
            to_do = {*_differing(git, now, wanted)}
            more = to_do - looked_at  # a merge may move a new file to another path
            if not more:
                break
        since = {*_differing(git, base, now)}
        unexpected = sorted((uncommitted & since) - ({*changed} - to_do))
        if unexpected and not allow_dirty:
            raise DirtyTree(
                f"The working tree {remote.repository} has uncommitted changes that it did not have when it was sent: "
                f"{named(unexpected)}. Nothing was touched. Commit or stash them, or allow a dirty tree.",
                files=[shown(path) for path in unexpected],
            )
        conflicts = Conflicts()
        for path in to_do & since & {*_differing(git, head, now)}:
            tracked = path in uncommitted
            conflicts.reasons[path] = "uncommitted changes in it" if tracked else "an untracked file is in its place"
        if conflicts.reasons:
            raise conflicts.error(remote.repository)
        files = compare(git, now, wanted).files
        exchange_trees(git, now, wanted)
        return Applied(files=files, how="clean" if now == base else "three-way", diff=diff)


def _tree_of(git: Git, head: str, paths: Collection[str]) -> str:
    """Return HEAD with the working tree's content at these paths, as a tree."""
    git.run("read-tree", head)
    index_files(git, paths)
    return git.text("write-tree")


def _differing(git: Git, before: str, after: str) -> dict[str, list[str]]:
    """Return the paths on which two trees differ, with both modes."""
    raw = git.names("diff-tree", "-r", "--no-renames", "--ignore-submodules=none", "--raw", "-z", before, after)
    return {path: about.removeprefix(":").split(" ")[:2] for about, path in zip(raw[::2], raw[1::2], strict=True)}
