"""Check out a working tree from another machine, and pack the result for the way back.

Each repository of another machine has a bare repository here (`workspace-stores`), so known objects are not sent again.
Only Helmsman writes to it, and a bundle cannot name a reference. A workspace is a working tree of it with a detached
HEAD (`workspaces`). Sessions use worktrees of the workspace, as of any repository.

All values from another machine are validated before they are used in a path or passed to git. All functions block; call
them in threads.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from helmsman.base.files import replace_file
from helmsman.base.structs import Value, pack, replace, unpack
from helmsman.errors import DirtyTree, InvalidInput, WorkspaceIncomplete, WorktreeError
from helmsman.git.bundles import (
    AWAY,
    MB,
    REFERENCES,
    Limits,
    PackedTree,
    Parts,
    check_whole,
    digest_of,
    is_fetchable,
    take_bundle,
    write_bundle,
)
from helmsman.git.command import Git, init_bare
from helmsman.git.included_files import unpack_included
from helmsman.git.lifecycle import made_inside, remove_folder, write_files
from helmsman.git.patches import (
    Conflicts,
    named,
    one_at_a_time,
    refuse_repositories,
    shown,
    write,
)
from helmsman.git.snapshot import scratch, take_snapshot
from helmsman.git.tree_changes import Applied, TreeDiff, check_present, commit_object, compare, plan_on_files
from helmsman.git.worktree import Worktree, read_records
from helmsman.settings import WORKSPACE_STORES, WORKSPACES, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


_RECORDS: Final = "workspace-records"
_PLACED: Final = "refs/helmsman/workspaces"
_FETCHED: Final = "refs/helmsman/fetched"
PROTOCOLS: Final = "https:ssh"
_UNUSED_SECONDS: Final = 30 * 24 * 3600
_ID: Final = re.compile(r"[0-9a-f]{12}")
_HEX: Final = re.compile(r"[0-9a-f]{24}")
_OBJECT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_BRANCH: Final = re.compile(r"[^-\s][^\s]{0,200}")
_MOST_ASKED: Final = 1000


class Placed(Value, frozen=True, kw_only=True):
    """Workspace on this machine. `directory` is the working directory inside it."""

    workspace: PackedTree
    path: Path
    directory: Path


class Result(Value, frozen=True, kw_only=True):
    """Result of the work in a workspace: a commit on top of `base`, with the agent's commits below it.

    `digest` is None if nothing was changed. `head` is the last commit of the agent. `notes` list everything that is
    left out.
    """

    commit: str
    base: str
    digest: str | None = None
    head: str | None = None
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        """Validate the fields, which come from another machine.

        Raises:
            InvalidInput: A commit id is invalid.
        """
        for commit in (self.commit, self.base, self.head or self.base):
            _checked(_OBJECT, commit)


# --- checkout --------------------------------------------------------------------------------------------------------


def known_commits(state_dir: Path, repository: str, commits: Collection[str]) -> list[str]:
    """Return the commits of another machine's repository that are present here."""
    asked = [commit for commit in list(commits)[:_MOST_ASKED] if _OBJECT.fullmatch(commit)]
    store = state_dir / WORKSPACE_STORES / _checked(_HEX, repository)
    if not (store / "HEAD").is_file() or not asked:
        return []
    git = Git(work_tree=store, git_dir=store, place=state_dir)
    lines = "".join(f"{commit}\n" for commit in asked).encode()
    told = git.run("cat-file", "--batch-check", stdin=lines).output.decode().splitlines()
    return [line.split()[0] for line in told if line.split()[1:2] == ["commit"]]


def place(workspace: PackedTree, parts: Parts, state_dir: Path) -> Placed:
    """Check out a workspace. An existing one is returned unchanged.

    Raises:
        InvalidInput: The description is invalid.
        WorkspaceIncomplete: It requires commits that are missing and cannot be fetched.
        WorktreeError: A file is damaged, or git failed.
    """
    state_dir = ensure_state_dir(state_dir.absolute())
    check_packed(workspace)
    stores = state_dir / WORKSPACE_STORES
    stores.mkdir(mode=0o700, exist_ok=True)
    git = init_bare(stores / workspace.repository, workspace.object_format, state_dir)
    folder = f"{workspace.name}-{workspace.id}"
    path = state_dir / WORKSPACES / folder
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with one_at_a_time(git):
        known = placed(state_dir, workspace.id)
        if known is not None:
            return known
        for file, digest in (parts.bundle, workspace.digest), (parts.included, workspace.included):
            if (file is None) != (digest is None) or (file is not None and digest_of(file) != digest):
                raise WorktreeError(f"Workspace {workspace.id} did not arrive whole. Send it again.")
        _fetch(git, workspace, parts)
        git.with_settings(REFERENCES).run("update-ref", f"{_PLACED}/{workspace.id}", workspace.commit)
        own = Git(work_tree=path, git_dir=git.git_dir / "worktrees" / folder, place=state_dir)
        # Remains of a process that was killed before it wrote the record.
        _remove(own)
        try:
            options = ("--quiet", "--detach", "--no-checkout")
            git.run_unviewed("worktree", "add", *options, str(path), workspace.commit)
            write_files(own, pointers=True)
            if parts.included is not None:
                unpack_included(parts.included, path, state_dir)
            found = Placed(workspace=workspace, path=path, directory=made_inside(path / workspace.directory, path))
            # Last: a recorded workspace is complete.
            replace_file(_record(state_dir, workspace.id), json.dumps(pack(found)))
        except BaseException:
            _remove(own)
            raise
    return found


def placed(state_dir: Path, workspace_id: str) -> Placed | None:
    """Return a workspace by its id, if it exists."""
    try:
        found = unpack(json.loads(_record(state_dir, workspace_id).read_bytes()), Placed)
    except (OSError, ValueError):
        return None
    return found if found.path.is_dir() else None


def came_from_elsewhere(tree: Worktree) -> bool:
    """Return whether a worktree belongs to a workspace from another machine."""
    return tree.repository.parent == tree.state_dir / WORKSPACES


def workspace_of(tree: Worktree) -> Placed | None:
    """Return the workspace of a worktree."""
    if not came_from_elsewhere(tree):
        return None
    found = tree.repository.name.rpartition("-")[2]
    return placed(tree.state_dir, found) if _ID.fullmatch(found) else None


def remove_workspace(state_dir: Path, workspace_id: str) -> None:
    """Remove a workspace, without the worktrees of sessions. Idempotent.

    Raises:
        WorktreeError: A file cannot be removed.
    """
    found = placed(state_dir, workspace_id)
    if found is not None:
        store = state_dir / WORKSPACE_STORES / found.workspace.repository
        git = Git(work_tree=store, git_dir=store, place=state_dir)
        with one_at_a_time(git):
            _remove(Git(work_tree=found.path, git_dir=store / "worktrees" / found.path.name, place=state_dir))
            with suppress(WorktreeError):
                git.with_settings(REFERENCES).run("update-ref", "-d", f"{_PLACED}/{workspace_id}")
    _record(state_dir, workspace_id).unlink(missing_ok=True)


def remove_unused(state_dir: Path) -> None:
    """Remove old workspaces without worktrees, and files that arrived but were never used."""
    used = {one.repository for tree in read_records(state_dir) for one in tree.each}
    since = time.time() - _UNUSED_SECONDS
    for file in (state_dir / _RECORDS).glob("*"):
        with suppress(OSError, WorktreeError, InvalidInput):
            if file.stat().st_mtime < since:
                found = placed(state_dir, file.stem) if file.suffix == ".json" else None
                if found is None:
                    file.unlink()
                elif found.path not in used:
                    remove_workspace(state_dir, found.workspace.id)


def arriving(state_dir: Path, workspace_id: str, part: str) -> Path:
    """Return the path of a part of a workspace during its transfer."""
    if part not in ("bundle", "included", "result"):
        raise InvalidInput(f"A workspace has no part {part!r:.100}.")
    return _records(state_dir) / f"{_checked(_ID, workspace_id)}.{part}"


def _fetch(git: Git, workspace: PackedTree, parts: Parts) -> None:
    """Get the commit and all its objects into the store."""
    commit = workspace.commit
    if parts.bundle is not None:
        try:
            take_bundle(git, parts.bundle, commit)
        except WorkspaceIncomplete:
            if workspace.remote is None:
                raise
            _fetch_branch(git, workspace)
            take_bundle(git, parts.bundle, commit)
    elif workspace.remote is not None and not known_commits(git.place, workspace.repository, [commit]):
        _fetch_branch(git, workspace)
    if not git.has(f"{commit}^{{commit}}"):
        raise WorkspaceIncomplete(f"Commit {commit} is not here, and cannot be fetched. Send it.", missing=[commit])
    check_whole(git, commit)
    git.with_settings(REFERENCES).run("update-ref", "-d", f"{_FETCHED}/{workspace.id}")


def _fetch_branch(git: Git, workspace: PackedTree) -> None:
    """Fetch a branch from its remote, without prompting for credentials. Errors are ignored."""
    if workspace.remote is not None:
        asks_nobody = git.with_variables(
            GIT_ALLOW_PROTOCOL=PROTOCOLS, GIT_ASKPASS="", SSH_ASKPASS_REQUIRE="never", GIT_LFS_SKIP_SMUDGE="1"
        )
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")
        wanted = f"+refs/heads/{workspace.branch}:{_FETCHED}/{workspace.id}"
        strictly = asks_nobody.with_settings({**REFERENCES, "fetch.fsckObjects": "true"})
        with suppress(WorktreeError):
            strictly.run("fetch", *options, "--", workspace.remote, wanted)


def _remove(git: Git) -> None:
    remove_folder(git.work_tree)
    remove_folder(git.git_dir)


def check_packed(workspace: PackedTree) -> None:
    """Validate a description from another machine.

    Raises:
        InvalidInput: It is invalid.
    """
    _checked(_ID, workspace.id)
    _checked(_HEX, workspace.repository)
    _checked(_NAME, workspace.name)
    _checked(_OBJECT, workspace.commit)
    _checked(_OBJECT, workspace.head or workspace.commit)
    _checked(re.compile("sha1|sha256"), workspace.object_format)
    inside = PurePosixPath(workspace.directory)
    if inside.is_absolute() or ".." in inside.parts or ".git" in inside.parts or "\0" in workspace.directory:
        raise InvalidInput(f"{workspace.directory!r:.200} is no directory of a workspace.")
    if workspace.remote is not None:
        if not is_fetchable(workspace.remote):
            raise InvalidInput("A workspace can be fetched by https and ssh only. Send a bundle.")
        _checked(_BRANCH, workspace.branch or "")


def _checked(pattern: re.Pattern[str], value: str) -> str:
    if not pattern.fullmatch(str(value)):
        raise InvalidInput(f"{value!r:.100} cannot be part of a workspace.")
    return value


def _records(state_dir: Path) -> Path:
    folder = ensure_state_dir(state_dir) / _RECORDS
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _record(state_dir: Path, workspace_id: str) -> Path:
    return _records(state_dir) / f"{_checked(_ID, workspace_id)}.json"


# --- result ----------------------------------------------------------------------------------------------------------


def pack_result(tree: Worktree, into: Path, limits: Limits) -> Result:
    """Pack the content of a worktree, committed or not, for the machine it came from.

    Writes `into` only if something was changed.

    Raises:
        WorkspaceTooLarge: The result exceeds the limits.
        WorktreeError: The worktree is gone or unreadable.
    """
    check_present(tree)
    into.unlink(missing_ok=True)
    with scratch(tree.own_git) as own:
        snapshot = take_snapshot(own, tree.included, partial(limits.check, tree.path))
        notes = [f"Not in it: {name}, a nested repository." for name in snapshot.nested]
        notes += [f"Not in it: {name}." for name in snapshot.left_out]
        head = own.commit("HEAD") or tree.base
        is_committed = own.text("rev-parse", "--verify", f"{head}^{{tree}}") == snapshot.tree
        commit = head if is_committed else _commit(own, snapshot.tree, head)
        if commit == tree.base:
            return Result(commit=commit, base=tree.base, head=head, notes=tuple(notes))
        if not write_bundle(own, commit, [tree.base], into, limits.total):
            notes.append(f"The commits that were made are not in it: they are more than {limits.total // MB} MB.")
            head, commit = tree.base, _commit(own, snapshot.tree, tree.base)
            if not write_bundle(own, commit, [tree.base], into, limits.total):
                raise limits.refuse(own, snapshot.tree)
        return Result(commit=commit, base=tree.base, digest=digest_of(into), head=head, notes=tuple(notes))


def go_on_from(tree: Worktree, result: Result, bundle: Path | None) -> None:
    """Restore the state of an earlier worktree of the same workspace, from any machine.

    The branch gets its commits; changes that were uncommitted there are uncommitted here.

    Raises:
        WorktreeError: The bundle is damaged, or belongs to another workspace.
    """
    if result.base != tree.base:
        raise WorktreeError(f"The work to continue in {tree.path} was made from another tree.")
    if bundle is not None:
        take_bundle(tree.own_git, bundle, result.commit)
    git = tree.own_git.with_settings(REFERENCES).with_variables(GIT_LFS_SKIP_SMUDGE="1")
    git.run("read-tree", "--reset", "-u", "--no-recurse-submodules", result.commit)
    git.run("update-ref", f"refs/heads/{tree.branch}", result.head or result.base)
    # The files are those of the result, the index that of HEAD: their difference is uncommitted.
    git.run("read-tree", "HEAD")


def _commit(git: Git, tree: str, parent: str) -> str:
    """Create a commit with a fixed date, so that equal trees have equal ids and changes are detected."""
    then = git.text("show", "--no-patch", "--format=%ct +0000", parent)
    dated = git.with_variables(GIT_AUTHOR_DATE=then, GIT_COMMITTER_DATE=then)
    return commit_object(dated, tree, parent)


# Track work that another machine does on a local tree, and apply its result.
#
# The result is a commit in this repository, kept by a reference next to that of the sent commit
# (`refs/helmsman/away/…`). The difference of the two is shown and applied: merged with the current tree as git
# objects before any file is touched. Uncommitted changes that were sent are part of the base, and do not block the
# apply while they are unchanged. All functions block; call them in threads.


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
    """Apply a received result to the working tree, all or nothing. Compare `helmsman.git.tree_changes.apply`.

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
        differences = git.differences(base, result)
        refuse_repositories(one.path for one in differences if one.is_submodule)
        now, planned = plan_on_files(git, base, result)
        changed, to_do, since = {one.path for one in differences}, {*planned.paths}, _differing(git, base, now)
        # The user's own index shows what is uncommitted.
        own = replace(git, index=None, objects=None)
        uncommitted = {entry[3:] for entry in own.names("status", "--porcelain=v1", "-z", "-uno", "--no-renames")}
        # Without changed files that have the content of the result already.
        unexpected = sorted((uncommitted & since) - (changed - to_do))
        if unexpected and not allow_dirty:
            raise DirtyTree(
                f"The working tree {remote.repository} has uncommitted changes that it did not have when it was sent: "
                f"{named(unexpected)}. Nothing was touched. Commit or stash them, or allow a dirty tree.",
                files=[shown(path) for path in unexpected],
            )
        conflicts = Conflicts()
        for path in to_do & since & _differing(git, head, now):
            tracked = path in uncommitted
            conflicts.reasons[path] = "uncommitted changes in it" if tracked else "an untracked file is in its place"
        if conflicts.reasons:
            raise conflicts.error(remote.repository)
        files = compare(git, now, planned.wanted).files
        write([planned])
        return Applied(files=files, how="clean" if now == base else "three-way", diff=diff)


def _differing(git: Git, before: str, after: str) -> set[str]:
    return {one.path for one in git.differences(before, after)}
