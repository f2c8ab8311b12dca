"""Create and discard the worktrees of sessions, and find those of processes that have ended."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import stat
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import field

from helmsman.base.files import file_lock
from helmsman.base.structs import Value, replace
from helmsman.errors import InvalidInput, WorktreeError
from helmsman.git.command import Git, find_git, is_bare
from helmsman.git.diff import FileStat
from helmsman.git.included_files import include
from helmsman.git.patches import named, one_at_a_time
from helmsman.git.snapshot import private_index, take_snapshot
from helmsman.git.tree_changes import Unsaved, changed_files, commit_object, lost_commits, remote_of, unsaved
from helmsman.git.turn_snapshots import forget_snapshots
from helmsman.git.worktree import (
    BRANCH_PREFIX,
    Worktree,
    all_records,
    claim,
    is_owned,
    read_records,
    records_directory,
    remove_record,
    slug,
    worktree_of,
    write_record,
)
from helmsman.settings import WORKSPACES, WORKTREES, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


log = logging.getLogger(__name__)

UNCOMMITTED: Final = "dirty"
"""Word for a worktree that starts from the main tree with its uncommitted changes."""
_PULL_REQUEST: Final = re.compile(r"(?:pr:|#)([1-9][0-9]{0,8})")
_PULL_REQUEST_REFERENCES: Final = ("refs/pull/{}/head", "refs/merge-requests/{}/head")
"""Names that forges give the last commit of a pull request: GitHub and Gitea, then GitLab."""
_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-gc")
_FIRST_PORT: Final = 20_000
_PORTS: Final = 10_000
"""Below the ports that systems give to outgoing connections."""
_PORT_SECONDS: Final = 10


class Discarded(Value, frozen=True, kw_only=True):
    """Contents of a discarded worktree: commits that no other branch has, and all changed files.

    `branch_kept`: the branch was kept because it is checked out elsewhere. `notes` are remarks on the tear-down.
    """

    worktree: Worktree
    commits: tuple[str, ...]
    files: tuple[FileStat, ...]
    branch_kept: bool
    notes: tuple[str, ...] = ()


class Leftover(Value, frozen=True, kw_only=True):
    """Worktree without a running process. `files` are its changes; None if it is unreadable.

    `unsaved` is the work that would be lost with it.
    """

    worktree: Worktree
    files: tuple[FileStat, ...] | None
    unsaved: Unsaved = field(default_factory=Unsaved)


# --- creating --------------------------------------------------------------------------------------------------------


def create(
    directory: Path,
    state_dir: Path,
    on_note: Callable[[str], None] | None = None,
    *,
    start: str | None = None,
    add_dirs: Sequence[Path] = (),
) -> Worktree:
    """Create a worktree for a session in `directory`, and one in the repository of each of `add_dirs`. Blocks; call it in
    a thread.

    It contains `start`: a branch, tag or commit; `pr:17`, which is fetched; or `dirty`, HEAD with the uncommitted changes
    of the main tree. By default, and in further repositories unless it is `dirty`, it contains HEAD. Ignored files named
    by `.worktreeinclude` are copied, which is reported to `on_note`. Submodules are not checked out.

    Raises:
        InvalidInput: A directory is not in a working tree, the repository has no commit yet or is named twice, or there
            is no such start.
        WorktreeError: Git failed.
    """
    state_dir = state_dir.absolute()
    notes: list[str] = []
    further = UNCOMMITTED if start == UNCOMMITTED else None
    places = [(directory, start), *((place, further) for place in add_dirs)]
    mains = [_main_tree(place, state_dir) for place, _ in places]
    for number, main in enumerate(mains):
        if any(main.common_dir == other.common_dir for other in mains[:number]):
            raise InvalidInput(
                f"{places[number][0]} is in a repository of this session already. Name each repository once.",
                parameter="add_dirs",
            )
    made: list[Worktree] = []
    try:
        for main, (place, wanted) in zip(mains, places, strict=True):
            base = _start_of(main, wanted, notes.append)
            tree = _planned(main, place, base, state_dir, beside=made[0].name if made else None)
            made.append(replace(tree, has_uncommitted=wanted == UNCOMMITTED and base != main.commit("HEAD")))
            made[-1] = _fill(main, made[-1], notes.append)
    except BaseException:
        if made:
            discard(replace(made[0], others=tuple(made[1:])))
        raise
    if on_note is not None:
        for note in notes:
            on_note(note)
    return replace(made[0], others=tuple(made[1:]))


def _planned(main: Git, directory: Path, base: str, state_dir: Path, *, beside: str | None) -> Worktree:
    """Return a worktree that does not exist yet, with a port that no other has. It is recorded and claimed."""
    name = f"{slug(main.work_tree.name)}-{uuid.uuid4().hex[:8]}"
    folder = ensure_state_dir(state_dir) / WORKTREES
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    tree = Worktree(
        path=path,
        directory=path / directory.resolve().relative_to(main.work_tree.resolve()),
        branch=BRANCH_PREFIX + name,
        base=base,
        repository=main.work_tree,
        git_dir=main.common_dir / "worktrees" / name,
        repository_git_dir=main.git_dir,
        session_id=None,
        owner_pid=os.getpid(),
        created_at=datetime.now(UTC),
        beside=beside,
    )
    records_directory(state_dir)
    # Claimed before it is recorded: a recorded worktree without an owner counts as a leftover.
    claim(tree)
    try:
        with file_lock(state_dir / "worktree-ports.lock", timeout=_PORT_SECONDS):
            tree = replace(tree, port=_free_port(name, state_dir))
            write_record(tree)
    except TimeoutError as error:
        raise WorktreeError(f"The ports of worktrees are locked by another process: {error}. Try again.") from error
    return tree


def _free_port(name: str, state_dir: Path) -> int:
    """Return a port that no other worktree has and on which no program listens now."""
    taken = {tree.port for tree in all_records(state_dir)}
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    for number in range(_PORTS):
        port = _FIRST_PORT + (first + number) % _PORTS
        with suppress(OSError), socket.socket() as probe:
            if port not in taken:
                probe.bind(("127.0.0.1", port))
                return port
    raise WorktreeError(f"No port from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} is free. Discard some worktrees.")


def _fill(main: Git, tree: Worktree, on_note: Callable[[str], None]) -> Worktree:
    """Create a worktree that is recorded, with its files."""
    with one_at_a_time(tree.main_git):
        main.run_unviewed("worktree", "add", "--quiet", "--no-checkout", "-b", tree.branch, str(tree.path), tree.base)
    write_files(tree.own_git, pointers=main.work_tree.parent == tree.state_dir / WORKSPACES)
    included = include(tree)
    tree = replace(tree, directory=made_inside(tree.directory, tree.path), included=included.files)
    write_record(tree)
    if included.note is not None:
        on_note(included.note)
    return tree


def _start_of(main: Git, start: str | None, on_note: Callable[[str], None]) -> str:
    """Return the commit that a worktree starts from."""
    head = main.commit("HEAD")
    if head is None:
        raise InvalidInput(
            f"The repository {main.work_tree} has no commit yet, so there is nothing to make a worktree of. Commit first.",
            parameter="worktree",
        )
    if start is None:
        return head
    if start == UNCOMMITTED:
        return _with_uncommitted(main, head, on_note)
    if (pull_request := _PULL_REQUEST.fullmatch(start)) is not None:
        return _fetched(main, pull_request[1])
    # As for `git switch`, a branch that only the remote has will do.
    found = main.commit(start) or main.commit(f"refs/remotes/origin/{start}")
    if found is None:
        raise InvalidInput(
            f"{main.work_tree} has no branch, tag or commit {start!r:.200}. Use one that `git log` shows, pr:NUMBER or "
            f"{UNCOMMITTED}.",
            parameter="start",
        )
    return found


def _with_uncommitted(main: Git, head: str, on_note: Callable[[str], None]) -> str:
    """Return a commit on no branch of the main tree as it is, without ignored files; HEAD if that is the same."""
    with private_index(main) as own:
        snapshot = take_snapshot(own)
        if left := (*snapshot.nested, *(f"{path} ({why})" for path, why in snapshot.left_out.items())):
            on_note(f"Not carried over from the main tree: {named(left)}.")
        if snapshot.tree == own.text("rev-parse", "--verify", f"{head}^{{tree}}"):
            return head
        return commit_object(own, snapshot.tree, head, message=f"Uncommitted changes of {slug(main.work_tree.name)}")


def _fetched(main: Git, number: str) -> str:
    """Fetch the last commit of a pull request from the repository's remote. No branch refers to it yet."""
    name, url = remote_of(main)
    references = [one.format(number) for one in _PULL_REQUEST_REFERENCES]
    listed = main.run("ls-remote", "--", url, *references).output.decode("utf-8", "replace").split()
    if not listed:
        raise InvalidInput(f"The remote {name} has no pull request {number}.", parameter="start")
    with main.viewed() as seen:
        seen.run(*_FETCH, "--", url, listed[1])
        found = seen.commit(listed[0])
    if found is None:
        raise WorktreeError(f"Pull request {number} has changed while it was fetched. Try again.")
    return found


def assign(tree: Worktree, session_id: str) -> Worktree:
    """Record the session of a worktree. A failed write is logged, because the session can continue without it."""
    tree = _of_session(tree, session_id)
    try:
        for one in tree.each:
            write_record(one)
    except WorktreeError as error:
        log.warning("the worktree of session %s will not be found by another process: %s", session_id, error)
    return tree


def _of_session(tree: Worktree, session_id: str) -> Worktree:
    others = tuple(replace(one, session_id=session_id) for one in tree.others)
    return replace(tree, session_id=session_id, others=others)


def adopt(state_dir: Path, session_id: str, directory: str | None = None) -> Worktree | None:
    """Return the worktree of a session that an earlier process began, and claim it if no other process has.

    If the record does not name the session, its directory is used: a fork works in the worktree of another session, and
    a process may be killed before it records the session.
    """
    tree = worktree_of(state_dir, session_id)
    if tree is None and directory is not None:
        place = Path(directory).resolve()
        tree = next((one for one in read_records(state_dir) if one.directory.resolve() == place), None)
        if tree is not None and tree.session_id is None:
            if is_owned(tree):
                return None  # it is still being created
            tree = assign(tree, session_id)
    for one in () if tree is None else tree.each:
        claim(one)
    return tree


def _main_tree(directory: Path, state_dir: Path) -> Git:
    """Return the working tree around a directory."""
    git = find_git(directory, state_dir)
    if git is None:
        what = "a bare repository" if is_bare(directory) else "not in the working tree of a git repository"
        raise InvalidInput(
            f"{directory} is {what}, so there is nowhere to bring a worktree's changes back to. Leave worktree out, or "
            "name a repository.",
            parameter="worktree",
        )
    return git


def write_files(git: Git, *, pointers: bool) -> None:
    """Check out the files of HEAD in a new working tree.

    With `pointers`, git-lfs pointers are not resolved, because their objects were not transferred.
    """
    git = git.with_variables(GIT_LFS_SKIP_SMUDGE="1") if pointers else git
    git.run("read-tree", "--reset", "-u", "--no-recurse-submodules", "HEAD")


def made_inside(directory: Path, path: Path) -> Path:
    """Create a directory that git does not have (empty or ignored); return the worktree's root if it is outside."""
    if not directory.resolve().is_relative_to(path.resolve()):
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:  # in the last commit it is a file
        return path
    return directory


# --- discarding ------------------------------------------------------------------------------------------------------


def discard(tree: Worktree) -> Discarded:
    """Remove the worktrees of a session with their branches, records and all changes. Blocks; call it in a thread.

    Idempotent: missing parts are ignored. Other branches created in a worktree are ordinary branches of the repository
    and are kept.

    Raises:
        WorktreeError: A file cannot be removed. The record is kept for another attempt.
    """
    commits, files = lost_commits(tree), changed_files(tree) or ()
    kept = [_remove(one) for one in reversed(tree.each)]  # the first one last: it leads to the others
    if tree.session_id is not None:
        forget_snapshots(tree.state_dir, tree.session_id)
    return Discarded(worktree=tree, commits=commits, files=files, branch_kept=any(kept))


def _remove(tree: Worktree) -> bool:
    """Remove one worktree; return whether its branch was kept."""
    remove_folder(tree.path)
    with one_at_a_time(tree.main_git):
        remove_folder(tree.git_dir)
        with suppress(OSError):
            tree.git_dir.parent.rmdir()  # git's directory for worktrees, if this was the last
        kept = _remove_branch(tree)
    remove_record(tree)
    return kept


def remove_folder(folder: Path) -> None:
    """Remove a directory, including read-only directories, as package caches contain them."""
    if not folder.is_dir():
        return
    try:
        folder.chmod(stat.S_IRWXU)
        for place, names, _ in os.walk(folder):
            for name in names:
                if not (Path(place) / name).is_symlink():
                    (Path(place) / name).chmod(stat.S_IRWXU)
        shutil.rmtree(folder)
    except OSError as error:
        raise WorktreeError(f"{folder} cannot be removed: {error}. Remove it by hand, then discard again.") from error


def _remove_branch(tree: Worktree) -> bool:
    """Remove the branch; return whether it was kept."""
    # The main tree may be gone, and with it its git directory, if it was a worktree too.
    shared = tree.git_dir.parent.parent
    if not shared.is_dir():
        return False  # the whole repository is gone
    git = Git(work_tree=shared, git_dir=shared, place=tree.state_dir)
    reference = f"refs/heads/{tree.branch}"
    with git.viewed() as seen:
        if not seen.has(reference):
            return False
        # Exits with 1 if the branch is checked out elsewhere.
        seen.run("branch", "--quiet", "-D", tree.branch, accept=(0, 1))
    return git.has(reference)


# --- leftovers -------------------------------------------------------------------------------------------------------


def leftovers(state_dir: Path, *, running: Collection[str] = ()) -> tuple[Leftover, ...]:
    """Return worktrees without a running process or a session in `running`. Blocks; call it in a thread.

    Removes nothing: an ended session may have left work that was not reviewed yet.
    """
    return tuple(
        Leftover(worktree=tree, files=changed_files(tree), unsaved=unsaved(tree))
        for tree in read_records(state_dir)
        if tree.session_id not in running and not is_owned(tree)
    )


def prune(found: Iterable[Leftover]) -> tuple[Discarded, ...]:
    """Discard leftovers, except those that a process has claimed since. Blocks; call it in a thread.

    Raises:
        WorktreeError: A worktree cannot be removed.
    """
    return tuple(discard(leftover.worktree) for leftover in found if claim(leftover.worktree))
