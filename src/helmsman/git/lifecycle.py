"""Create and discard worktrees, and find those of processes that have ended."""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import field

from helmsman.base.structs import Value, replace
from helmsman.errors import InvalidInput, WorktreeError
from helmsman.git.command import Git, find_git, is_bare
from helmsman.git.diff import FileStat
from helmsman.git.included_files import include
from helmsman.git.patches import one_at_a_time
from helmsman.git.tree_changes import Unsaved, changed_files, lost_commits, unsaved
from helmsman.git.turn_snapshots import forget_snapshots
from helmsman.git.worktree import (
    BRANCH_PREFIX,
    Worktree,
    claim,
    is_owned,
    read_records,
    records_directory,
    remove_record,
    worktree_of,
    write_record,
)
from helmsman.settings import WORKSPACES, WORKTREES, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


log = logging.getLogger(__name__)

_SLUG_LENGTH: Final = 40


class Discarded(Value, frozen=True, kw_only=True):
    """Contents of a discarded worktree: commits that no other branch has, and all changed files.

    `branch_kept`: the branch was kept because it is checked out elsewhere.
    """

    worktree: Worktree
    commits: tuple[str, ...]
    files: tuple[FileStat, ...]
    branch_kept: bool


class Leftover(Value, frozen=True, kw_only=True):
    """Worktree without a running process. `files` are its changes; None if it is unreadable.

    `unsaved` is the work that would be lost with it.
    """

    worktree: Worktree
    files: tuple[FileStat, ...] | None
    unsaved: Unsaved = field(default_factory=Unsaved)


# --- creating --------------------------------------------------------------------------------------------------------


def create(directory: Path, state_dir: Path, on_note: Callable[[str], None] | None = None) -> Worktree:
    """Create a worktree for a session in `directory`. Blocks; call it in a thread.

    The worktree contains HEAD, without uncommitted changes of the main tree, plus ignored files named by
    `.worktreeinclude`, which are reported to `on_note`. Submodules are not checked out.

    Raises:
        InvalidInput: The directory is not in a working tree, or the repository has no commit yet.
        WorktreeError: Git failed.
    """
    main, base = _main_tree(directory, state_dir.absolute())
    name = f"{slug(main.work_tree.name)}-{uuid.uuid4().hex[:8]}"
    folder = ensure_state_dir(state_dir.absolute()) / WORKTREES
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
    )
    records_directory(state_dir)
    claim(tree)
    try:
        write_record(tree)
        with one_at_a_time(tree.main_git):
            main.run_unviewed("worktree", "add", "--quiet", "--no-checkout", "-b", tree.branch, str(path), base)
        write_files(tree.own_git, pointers=main.work_tree.parent == state_dir.absolute() / WORKSPACES)
        included = include(tree)
        tree = replace(tree, directory=made_inside(tree.directory, path), included=included.files)
        write_record(tree)
    except BaseException:
        discard(tree)
        raise
    if included.note is not None and on_note is not None:
        on_note(included.note)
    return tree


def assign(tree: Worktree, session_id: str) -> Worktree:
    """Record the session of a worktree. A failed write is logged, because the session can continue without it."""
    tree = replace(tree, session_id=session_id)
    try:
        write_record(tree)
    except WorktreeError as error:
        log.warning("the worktree of session %s will not be found by another process: %s", session_id, error)
    return tree


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
            tree = replace(tree, session_id=session_id)
            write_record(tree)
    if tree is not None:
        claim(tree)
    return tree


def _main_tree(directory: Path, state_dir: Path) -> tuple[Git, str]:
    """Return the working tree around a directory, and its commit."""
    git = find_git(directory, state_dir)
    if git is None:
        what = "a bare repository" if is_bare(directory) else "not in the working tree of a git repository"
        raise InvalidInput(
            f"{directory} is {what}, so there is nowhere to bring a worktree's changes back to. Leave worktree out, or "
            "name a repository.",
            parameter="worktree",
        )
    commit = git.commit("HEAD")
    if commit is None:
        raise InvalidInput(
            f"The repository {git.work_tree} has no commit yet, so there is nothing to make a worktree of. Commit first.",
            parameter="worktree",
        )
    return git, commit


def slug(name: str) -> str:
    """Return the name of a repository as part of a directory or branch name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:_SLUG_LENGTH].strip("-") or "repository"


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
    """Remove a worktree with its branch, its record and all its changes. Blocks; call it in a thread.

    Idempotent: missing parts are ignored. Other branches created in the worktree are ordinary branches of the
    repository and are kept.

    Raises:
        WorktreeError: A file cannot be removed. The record is kept for another attempt.
    """
    commits, files = lost_commits(tree), changed_files(tree) or ()
    remove_folder(tree.path)
    with one_at_a_time(tree.main_git):
        remove_folder(tree.git_dir)
        with suppress(OSError):
            tree.git_dir.parent.rmdir()  # git's directory for worktrees, if this was the last
        kept = _remove_branch(tree)
    if tree.session_id is not None:
        forget_snapshots(tree.state_dir, tree.session_id)
    remove_record(tree)
    return Discarded(worktree=tree, commits=commits, files=files, branch_kept=kept)


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
