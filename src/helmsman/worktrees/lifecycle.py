"""Worktrees come and go: made for a session, discarded with all that is in them, found again when their process is gone."""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.git import Git, find_git, is_bare
from helmsman.base.patches import one_at_a_time
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, WorktreeError
from helmsman.settings import WORKSPACES, WORKTREES, ensure_state_dir
from helmsman.worktrees.included_files import include
from helmsman.worktrees.records import (
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
from helmsman.worktrees.turn_snapshots import forget_snapshots
from helmsman.worktrees.unsaved_work import Unsaved, changed_files, lost_commits, unsaved

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from helmsman.model.unified_diff import FileStat

log = logging.getLogger(__name__)

_SLUG_LENGTH: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """What went with a worktree: its commits that were nowhere else, and the files it had changed in all.

    `branch_kept` says that its branch is checked out elsewhere and so was left.
    """

    worktree: Worktree
    commits: tuple[str, ...]
    files: tuple[FileStat, ...]
    branch_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A worktree that no running process has. `files` are its changes; None when it can no longer be read.

    `unsaved` is what would be lost with it.
    """

    worktree: Worktree
    files: tuple[FileStat, ...] | None
    unsaved: Unsaved = field(default_factory=Unsaved)


# --- made ------------------------------------------------------------------------------------------------------------


def create(directory: Path, state_dir: Path, on_note: Callable[[str], None] | None = None) -> Worktree:
    """Make a worktree for a session that was to work in `directory`. Blocks; call it in a thread.

    It holds what HEAD has: nothing of what is not committed in the main tree, but for ignored files that
    `.worktreeinclude` names; `on_note` is told of them. Submodules are not checked out in it.

    Raises:
        InvalidInput: The directory is not in a working tree, or the repository has no commit yet.
        WorktreeError: Git says no.
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
    """Write down which session works in a worktree. A record that cannot be written is no reason to stop the session."""
    tree = replace(tree, session_id=session_id)
    try:
        write_record(tree)
    except WorktreeError as error:
        log.warning("the worktree of session %s will not be found by another process: %s", session_id, error)
    return tree


def adopt(state_dir: Path, session_id: str, directory: str | None = None) -> Worktree | None:
    """The worktree of a session that an earlier process began: this process's from now on, if no other has it.

    The session's directory tells, where the record does not: a fork works in that of another session, and whoever made one
    may have been killed before it wrote down for which session that was.
    """
    tree = worktree_of(state_dir, session_id)
    if tree is None and directory is not None:
        place = Path(directory).resolve()
        tree = next((one for one in read_records(state_dir) if one.directory.resolve() == place), None)
        if tree is not None and tree.session_id is None:
            if is_owned(tree):
                return None  # it is just being made
            tree = replace(tree, session_id=session_id)
            write_record(tree)
    if tree is not None:
        claim(tree)
    return tree


def _main_tree(directory: Path, state_dir: Path) -> tuple[Git, str]:
    """The working tree around a directory, and the commit it is at."""
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
    """The name of a repository as part of the name of a directory or a branch."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:_SLUG_LENGTH].strip("-") or "repository"


def write_files(git: Git, *, pointers: bool) -> None:
    """Have in a new working tree what its HEAD has. With `pointers` those of git-lfs stay what they are: their objects did
    not come along.
    """
    git = git.with_variables(GIT_LFS_SKIP_SMUDGE="1") if pointers else git
    git.run("read-tree", "--reset", "-u", "--no-recurse-submodules", "HEAD")


def made_inside(directory: Path, path: Path) -> Path:
    """The directory, made if git does not have it (it is empty or ignored); the worktree itself where it leads elsewhere."""
    if not directory.resolve().is_relative_to(path.resolve()):
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:  # in the last commit it is a file
        return path
    return directory


# --- discarded -------------------------------------------------------------------------------------------------------


def discard(tree: Worktree) -> Discarded:
    """Remove a worktree, its branch and its record, with all that was done in it. Blocks; call it in a thread.

    What is gone already is no error, so it can be called again. Branches that somebody made in the worktree besides its
    own are ordinary branches of the repository, and stay.

    Raises:
        WorktreeError: Something in it cannot be removed; its record stays, so that it can be tried again.
    """
    commits, files = lost_commits(tree), changed_files(tree) or ()
    remove_folder(tree.path)
    with one_at_a_time(tree.main_git):
        remove_folder(tree.git_dir)
        with suppress(OSError):
            tree.git_dir.parent.rmdir()  # git's own folder for worktrees, if this was the last
        kept = _remove_branch(tree)
    if tree.session_id is not None:
        forget_snapshots(tree.state_dir, tree.session_id)
    remove_record(tree)
    return Discarded(worktree=tree, commits=commits, files=files, branch_kept=kept)


def remove_folder(folder: Path) -> None:
    """Remove a folder also where it holds folders that nobody may write to, as package caches do."""
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
    """Remove the branch; whether it had to stay."""
    shared = tree.git_dir.parent.parent  # the main tree may be gone, and if that was a worktree too, its git directory
    if not shared.is_dir():
        return False  # the whole repository is gone
    git = Git(work_tree=shared, git_dir=shared, place=tree.state_dir)
    reference = f"refs/heads/{tree.branch}"
    with git.viewed() as seen:
        if not seen.has(reference):
            return False
        seen.run("branch", "--quiet", "-D", tree.branch, accept=(0, 1))
    return git.has(reference)


# --- left over -------------------------------------------------------------------------------------------------------


def leftovers(state_dir: Path, *, running: Collection[str] = ()) -> tuple[Leftover, ...]:
    """Worktrees whose process is gone and whose session is not among those `running`. Blocks; call it in a thread.

    Nothing is removed: a session that has ended may have left work in one that nobody has looked at yet.
    """
    return tuple(
        Leftover(worktree=tree, files=changed_files(tree), unsaved=unsaved(tree))
        for tree in read_records(state_dir)
        if tree.session_id not in running and not is_owned(tree)
    )


def prune(found: Iterable[Leftover]) -> tuple[Discarded, ...]:
    """Discard leftovers, except those that a process has taken up since they were found. Blocks; call it in a thread.

    Raises:
        WorktreeError: One cannot be removed.
    """
    return tuple(discard(leftover.worktree) for leftover in found if claim(leftover.worktree))
