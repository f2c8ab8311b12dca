"""Git worktree of a session, and the records with which a later process finds it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.files import release_lock, replace_file, take_lock
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.base.user_directories import enclosing_roots, home_directory
from helmsman.errors import WorktreeError
from helmsman.settings import WORKTREES, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helmsman.git.command import Git


class Worktree(Value, frozen=True, kw_only=True):
    """Worktree of a repository in the state directory, on a separate branch.

    `repository` is the main tree, to which changes are applied. `directory` corresponds to the requested directory.
    `base` is the commit it started from. `included` lists ignored files copied from the main tree (`.worktreeinclude`),
    which are not changes of the session. If it `has_uncommitted` changes of the main tree, `base` is a commit of them.
    `port` is free for the programs of this worktree. `teardown` is the command that was approved for its end.

    A session in several repositories has a worktree in each. The first one is the session's, with the `others`. Each of
    these names it (`beside`).
    """

    path: Path
    directory: Path
    branch: str
    base: str
    repository: Path
    git_dir: Path
    repository_git_dir: Path
    session_id: str | None
    owner_pid: int
    created_at: datetime
    included: tuple[str, ...] = ()
    has_uncommitted: bool = False
    port: int | None = None
    teardown: str | None = None
    beside: str | None = None
    others: tuple[Worktree, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def each(self) -> tuple[Worktree, ...]:
        """All worktrees of the session, this one first."""
        return (self, *self.others)

    @property
    def published_since(self) -> str:
        """Commit from which on the commits of its branch are new to others."""
        return f"{self.base}~1" if self.has_uncommitted else self.base

    @property
    def by_prefix(self) -> dict[str, Worktree]:
        """Return the worktrees of the session by the beginning of their paths in its diff. A single one has none."""
        if not self.others:
            return {"": self}
        found: dict[str, Worktree] = {}
        for tree in self.each:
            label, number = slug(tree.repository.name), 1
            while (prefix := f"{label}/" if number == 1 else f"{label}-{number}/") in found:
                number += 1
            found[prefix] = tree
        return found

    @property
    def state_dir(self) -> Path:
        return self.path.parent.parent

    @property
    def own_git(self) -> Git:
        """Git in the worktree."""
        from helmsman.git.command import Git  # clients that only read events need no git

        return Git(work_tree=self.path, git_dir=self.git_dir, place=self.state_dir)

    @property
    def main_git(self) -> Git:
        """Git in the main tree."""
        from helmsman.git.command import Git  # as above

        return Git(work_tree=self.repository, git_dir=self.repository_git_dir, place=self.state_dir)


# Records of worktrees, with which a later process finds them and learns whether they are in use.
#
# Each record is a JSON file in the state directory, which Codex cannot write. It is written before the worktree is
# created and removed after it is deleted, so a crash at any time leaves a record that leads to the remains. The owner
# of a worktree holds a lock next to its record; the system releases the lock when that process dies.


_SLUG_LENGTH: Final = 40
RECORDS: Final = "worktree-records"
BRANCH_PREFIX: Final = "helmsman/"


def slug(name: str) -> str:
    """Return the name of a repository as part of a directory, branch or path."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:_SLUG_LENGTH].strip("-") or "repository"


# --- records ---------------------------------------------------------------------------------------------------------


def records_directory(state_dir: Path) -> Path:
    folder = ensure_state_dir(state_dir) / RECORDS
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_record(tree: Worktree) -> None:
    """Write or replace the record.

    Raises:
        WorktreeError: The file cannot be written.
    """
    try:
        records_directory(tree.state_dir)
        replace_file(_record_of(tree), json.dumps(pack(replace(tree, others=())), indent=2))
    except OSError as error:
        raise WorktreeError(
            f"The record of a worktree cannot be written: {error}. Make room or set HELMSMAN_STATE_DIR."
        ) from error


def read_records(state_dir: Path) -> Iterator[Worktree]:
    """Yield the worktree of every session with its others, oldest first, without invalid records.

    A worktree whose first one is gone is yielded alone.
    """
    trees = all_records(state_dir)
    names = {tree.name for tree in trees}
    for tree in trees:
        if tree.beside not in names:
            yield replace(tree, others=tuple(one for one in trees if one.beside == tree.name))


def all_records(state_dir: Path) -> list[Worktree]:
    """Return every recorded worktree by itself, oldest first, without invalid records."""
    state_dir = state_dir.absolute()
    found = (_read(file, state_dir) for file in (state_dir / RECORDS).glob("*.json"))
    return sorted((tree for tree in found if tree is not None), key=lambda tree: (tree.created_at, tree.name))


def worktree_of(state_dir: Path, session_id: str) -> Worktree | None:
    """Return the worktree of a session, from any process."""
    return next((tree for tree in read_records(state_dir) if tree.session_id == session_id), None)


def remove_record(tree: Worktree) -> None:
    release(tree)
    for file in (_record_of(tree), set_up_of(tree), _lock_of(tree)):
        file.unlink(missing_ok=True)


def _read(file: Path, state_dir: Path) -> Worktree | None:
    try:
        tree = unpack_if_valid(json.loads(file.read_bytes()), Worktree)
    except (OSError, ValueError, RecursionError):
        return None
    # Recorded paths are removed one day, so they must be exactly those that Helmsman creates.
    path, branch = state_dir / WORKTREES / file.stem, BRANCH_PREFIX + file.stem
    if tree is None or tree.branch != branch or tree.git_dir.parts[-2:] != ("worktrees", file.stem):
        return None
    return None if tree.created_at.tzinfo is None else replace(tree, path=path, others=())


def set_up_of(tree: Worktree) -> Path:
    """Return the file with the result of a worktree's set-up and the end of its output."""
    return tree.state_dir / RECORDS / f"{tree.name}.set-up.txt"


def _record_of(tree: Worktree) -> Path:
    return tree.state_dir / RECORDS / f"{tree.name}.json"


# --- ownership -------------------------------------------------------------------------------------------------------

_held: dict[Path, int] = {}
_holding = threading.Lock()


def claim(tree: Worktree) -> bool:
    """Lock the worktree for this process until it ends; False if another process has it."""
    file = _lock_of(tree)
    with _holding:
        if file in _held:
            return True
        held = take_lock(file)
        if held is None:
            return False
        _held[file] = held
        return True


def release(tree: Worktree) -> None:
    """Release a worktree, if this process has it."""
    with _holding:
        held = _held.pop(_lock_of(tree), None)
        if held is not None:
            release_lock(held)


def is_owned(tree: Worktree) -> bool:
    """Return whether a running process has the worktree."""
    with suppress(OSError):
        held = take_lock(_lock_of(tree))
        if held is None:
            return True
        release_lock(held)
    return False


def _lock_of(tree: Worktree) -> Path:
    return tree.state_dir / RECORDS / f"{tree.name}.lock"


# --- Map directories to the repository they belong to, including those of deleted worktrees ---------------------------

# The path of a worktree differs for every session and means nothing to a person. Its record names the repository.
# When a worktree is discarded, one line in a file of the state directory keeps that mapping.

PAST_WORKTREES: Final = "past-worktrees.jsonl"


def remember_place(tree: Worktree) -> None:
    """Record the repositories of a worktree. Write errors are ignored, so that the worktree can still be removed."""
    lines = "".join(json.dumps({"name": one.name, "repository": str(one.repository)}) + "\n" for one in tree.each)
    with contextlib.suppress(OSError):
        path = ensure_state_dir(tree.state_dir) / PAST_WORKTREES
        path.touch(mode=0o600)
        with path.open("ab", buffering=0) as file:  # one write, so that lines of two processes never mix
            file.write(lines.encode("ascii"))


def places(state_dir: Path) -> Callable[[str | None], str | None]:
    """Return a function that maps a directory in a worktree to its repository. Reads files; blocks."""
    repositories, roots = _repositories(state_dir), _roots(state_dir)

    def place(directory: str | None) -> str | None:
        for root in roots:
            if directory is not None and directory.startswith(root + os.sep):
                name, _, inside = directory[len(root) + 1 :].partition(os.sep)
                repository = repositories.get(name)
                return directory if repository is None else os.path.join(repository, inside).rstrip(os.sep)  # noqa: PTH118
        return directory

    return place


def directories_of(directory: str, state_dir: Path) -> frozenset[str]:
    """Return every directory that belongs to this one, including its counterparts in worktrees and deleted worktrees.

    Reads files; blocks.
    """
    real = os.path.realpath(directory)
    found = {directory, real}
    for name, repository in _repositories(state_dir).items():
        if real == repository or real.startswith(repository + os.sep):
            found |= {f"{root}/{name}{real[len(repository) :]}" for root in _roots(state_dir)}
    return frozenset(found)


def _repositories(state_dir: Path) -> dict[str, str]:
    """Return the repository of each worktree, by name."""
    live = {tree.name: str(tree.repository) for tree in all_records(state_dir)}
    return dict(_past(state_dir / PAST_WORKTREES)) | live


def _roots(state_dir: Path) -> set[str]:
    return {str(state_dir / WORKTREES), str(state_dir.resolve() / WORKTREES)}


def projects(state_dir: Path) -> Callable[[str | None], str | None]:
    """Return a function that maps a directory to its project. Reads files; blocks.

    The project is the outermost repository, resolved through links, subdirectories, submodules and worktrees; outside a
    repository it is the directory itself. The outermost one is used because an agent can create a repository inside the
    directories it may write, but none around them.
    """
    place = places(state_dir)
    home = user_home()
    known: dict[str | None, str | None] = {None: None}

    def project(directory: str | None) -> str | None:
        if directory not in known:
            known[directory] = _project_of(os.path.realpath(place(directory) or ""), home)
        return known[directory]

    return project


def user_home() -> str:
    """Return the real path of the user's home directory."""
    return os.path.realpath(home_directory(os.environ))


def _project_of(directory: str, home: str) -> str:
    seen: set[str] = set()
    while directory not in seen:
        seen.add(directory)
        roots = enclosing_roots(directory, home)
        main = next((main for root in roots if (main := _main_tree(root)) is not None), None)
        if main is None:
            return roots[-1] if roots else directory
        directory = main
    return directory


def _main_tree(root: str) -> str | None:
    """Return the main working tree of a worktree; None for everything else.

    The worktree must be registered inside the repository's git directory. Otherwise an agent could write a `.git` file
    and a git directory to have its work counted for another project.
    """
    mark = os.path.join(root, ".git")  # noqa: PTH118
    try:
        if not Path(mark).is_file():
            return None
        named = Path(mark).read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        git_dir = Path(os.path.realpath(Path(root) / named))
        back = os.path.realpath(git_dir / (git_dir / "gitdir").read_text(encoding="utf-8").strip())
        common = Path(os.path.realpath(git_dir / (git_dir / "commondir").read_text(encoding="utf-8").strip()))
    except (OSError, ValueError):
        return None
    is_registered = back == mark and git_dir.parent == common / "worktrees" and common.name == ".git"
    return str(common.parent) if is_registered else None


def _past(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
            entry = json.loads(line)
            yield str(entry["name"]), str(entry["repository"])
