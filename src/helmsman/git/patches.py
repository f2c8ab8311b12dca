"""Apply a change to a repository's working tree: all of it, or nothing. All code that applies changes uses this module.

The new content of the tree is computed among git's objects: by the caller (`plan_tree`), or from a unified diff
(`apply_patch`). A diff is applied to a separate index, or else merged three-way with the version it was made from. So a
conflict is found before any file changes. Then obstacles in the working tree are looked for, and only then files are
written. A failed write restores the previous files; if the process is killed, the next process restores them. Changes that
the working tree already has are skipped, so applying is idempotent.

The tree's own index is never touched, so the change is left unstaged and its new files untracked, as if a person had typed
them. No program of the repository is run, and no merge driver.
"""

from __future__ import annotations

import filecmp
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import stat
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from helmsman.base.files import file_lock, put_file, release_lock, remove_file, replace_file, take_lock
from helmsman.base.structs import replace
from helmsman.base.truncate import listed
from helmsman.errors import ApplyConflict, DirtyTree, InvalidInput, WorktreeError
from helmsman.git.command import Git, TreeDifference, find_git
from helmsman.git.snapshot import index_files, nul_separated, scratch
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


log = logging.getLogger(__name__)

_LOCK_SECONDS: Final = 150
"""Longer than one git command may take."""
_NAMED_FILES: Final = 10
"""Maximum number of files that a message names; `details` has all of them."""
_ANY: Final = range(256)
_JOURNAL: Final = "writing-"
_FOLDER: Final = "journal-"
_SETTLING: Final = "writing.lock"
_NOT_PUT_BACK: Final = "not-put-back-"
_BEGUN: Final = "begun.json"
_COMPLAINT: Final = re.compile(
    r"^error: (?:patch failed: (?P<hunk>.+):\d+|(?P<file>.+): (?:patch does not apply|does not .+|already exists .+))$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPatch:
    """Applied changes. `three_way` says that the diff did not fit HEAD and had to be merged."""

    repository: Path
    files: tuple[str, ...]
    three_way: bool


@dataclass(slots=True)
class Conflicts:
    """Files that cannot be brought over, with the reason and, where lines clash, the lines."""

    reasons: dict[str, str] = field(default_factory=dict)
    hunks: dict[str, list[str]] = field(default_factory=dict)

    def error(self, root: Path) -> ApplyConflict:
        described = [f"{path} ({reason})" for path, reason in sorted(self.reasons.items())]
        return ApplyConflict(
            f"The change does not fit {root}: {named(described)}. Nothing was touched. Commit or move away what is in the "
            "way, or merge it by hand.",
            conflicts=[shown(path) for path in sorted(self.reasons)],
            reasons={shown(path): reason for path, reason in self.reasons.items()},
            hunks={shown(path): hunks for path, hunks in self.hunks.items()},
        )


def diff_digest(patch: bytes) -> str:
    """Return the SHA-256 of a diff, to check that the applied diff is the one that was shown."""
    return hashlib.sha256(patch).hexdigest()


@contextmanager
def one_at_a_time(git: Git) -> Iterator[None]:
    """Lock a repository against changes by other processes.

    Git fails if it finds a worktree that another git is creating.

    Raises:
        WorktreeError: Another process has held the lock for too long.
    """
    try:
        with file_lock(_lock_file(ensure_state_dir(git.place), _which(git)), timeout=_LOCK_SECONDS):
            _settle(_mark_of(git))
            yield
    except TimeoutError as error:
        raise WorktreeError(
            f"Another process has been busy with {git.work_tree} for {_LOCK_SECONDS} s. Wait for it, then try again."
        ) from error


def _which(git: Git) -> str:
    return hashlib.sha256(os.fsencode(git.common_dir)).hexdigest()[:16]


def _lock_file(state_dir: Path, which: str) -> Path:
    return state_dir / f"repository-{which}.lock"


def _mark_of(git: Git) -> Path:
    return git.place / f"{_JOURNAL}{_which(git)}"


# --- a diff ----------------------------------------------------------------------------------------------------------


def apply_patch(directory: Path, diff: str, *, allow_dirty: bool = False, state_dir: Path) -> AppliedPatch:
    """Apply a diff to the working tree around `directory`. Blocks; call it in a thread.

    Args:
        directory: Any directory of the repository; the paths in the diff begin at the repository's root.
        diff: A unified diff as git makes it.
        allow_dirty: Accept uncommitted changes, as long as they are in other files.
        state_dir: The state directory.

    Raises:
        InvalidInput: There is no repository, or no commit in it.
        DirtyTree: There are uncommitted changes (or untracked files), and `allow_dirty` is not set.
        ApplyConflict: The diff does not fit. Nothing was touched.
        WorktreeError: Git cannot do it, or a file cannot be written. Nothing was touched, or all was put back.
    """
    found = find_git(directory.absolute(), state_dir)
    if found is None:
        raise InvalidInput(f"{directory} is not in a git repository. Name a directory of the repository.")
    with one_at_a_time(found), scratch(found) as git:
        if not git.has("HEAD^{commit}"):
            raise InvalidInput(
                f"The repository {git.work_tree} has no commit yet, so nothing can be applied. Commit first."
            )
        three_way = _apply_to_index(git.without_merge_programs(), diff)
        planned = plan_tree(git, git.text("write-tree"), allow_dirty=allow_dirty, refuse_untracked=True)
        write([planned])
        return AppliedPatch(repository=git.work_tree, files=tuple(map(shown, planned.paths)), three_way=three_way)


def _apply_to_index(git: Git, diff: str) -> bool:
    """Apply the diff to HEAD in a separate index; return whether it had to be merged."""
    # An editor may have removed the final newline of a diff, and git then reports a corrupt patch.
    content = (diff if diff.endswith("\n") else diff + "\n").encode("utf-8", "surrogateescape")
    apply = ("apply", "--cached", "--whitespace=nowarn")
    git.run("read-tree", "HEAD")
    plain = git.run(*apply, stdin=content, accept=_ANY)
    if not plain.code:
        return False
    git.run("read-tree", "HEAD")
    if not git.run(*apply, "--3way", stdin=content, accept=_ANY).code:
        return True
    unmerged = [entry.partition("\t")[2] for entry in git.names("ls-files", "-u", "-z")]
    said = plain.complaint.decode("utf-8", "replace").strip()
    git.run("read-tree", "HEAD")
    if git.run(*apply, "--check", "--reverse", stdin=content, accept=_ANY).code == 0:
        raise ApplyConflict(
            "The change is in this tree already; nothing was touched. There is nothing to do.", said=said
        )
    refused = [found["hunk"] or found["file"] for found in _COMPLAINT.finditer(said)]
    conflicts = list(dict.fromkeys(unmerged or refused))
    where = named(conflicts) or said.partition("\n")[0] or "git does not say where"
    raise ApplyConflict(
        f"The change does not fit this tree: {where}. Nothing was touched. Check out the commit it was made from, or "
        "take the diff and merge it by hand.",
        conflicts=[shown(path) for path in conflicts],
        said=said,
    )


# --- a tree ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWrite:
    """Files of a working tree to be written as in the tree `wanted`. `paths` also has those that are so already."""

    git: Git
    wanted: str
    changes: Sequence[TreeDifference]
    paths: tuple[str, ...]


def plan_tree(git: Git, wanted: str, *, allow_dirty: bool, refuse_untracked: bool = False) -> PlannedWrite:
    """Return how the working tree comes to match the tree `wanted` where that differs from HEAD.

    `git` is from `scratch`. With `refuse_untracked`, any untracked file makes the tree dirty, otherwise only one that
    is in the way.

    Raises:
        DirtyTree: There are uncommitted changes, and they are not allowed.
        ApplyConflict: A file is in the way.
        WorktreeError: Git fails.
    """
    head = git.text("rev-parse", "--verify", "HEAD^{tree}")
    changes = git.differences(head, wanted)
    refuse_repositories(change.path for change in changes if change.is_submodule)
    missing = _not_there_yet(git, head, wanted, changes, allow_dirty=allow_dirty, refuse_untracked=refuse_untracked)
    return PlannedWrite(git=git, wanted=wanted, changes=missing, paths=tuple(change.path for change in changes))


def plan_exchange(git: Git, now: str, wanted: str) -> PlannedWrite:
    """Return how a working tree is changed from the tree `now` to the tree `wanted`. Files that are in neither are not
    overwritten.

    `git` has a separate index, and the caller holds `one_at_a_time`.

    Raises:
        ApplyConflict: A file is in the way.
    """
    changes = git.differences(now, wanted)
    conflicts = _obstacles(git.work_tree, changes)
    if conflicts.reasons:
        raise conflicts.error(git.work_tree)
    return PlannedWrite(git=git, wanted=wanted, changes=changes, paths=tuple(change.path for change in changes))


def refuse_repositories(paths: Iterable[str]) -> None:
    """Refuse submodules and other repositories: a patch does not carry their commits."""
    if repositories := named(paths):
        raise WorktreeError(
            f"{repositories}: git repositories of their own, whose changes cannot be brought over with these files. Nothing "
            "was touched. Bring them over by hand, and put them back as they were."
        )


def _not_there_yet(
    git: Git, head: str, wanted: str, changes: Sequence[TreeDifference], *, allow_dirty: bool, refuse_untracked: bool
) -> list[TreeDifference]:
    """Return the missing changes, after checking that no uncommitted work is in their way."""
    conflicts = _obstacles(git.work_tree, changes)
    paths = [change.path for change in changes if change.path not in conflicts.reasons]
    # The user's own index, which may have staged changes.
    own = replace(git, index=None, objects=None)
    git.run("read-tree", head)
    index_files(git, {*paths} - left_out_by_sparse_checkout(own))
    # Now the separate index is HEAD with these files as they are on disk.
    changed_here = _differing(git, head)
    still_to_do = _differing(git, wanted) | conflicts.reasons.keys()
    # What happens inside a submodule is the submodule's.
    status = own.names("status", "--porcelain=v1", "-z", "--untracked-files=no", "--no-renames")
    tracked = {entry[3:] for entry in status}
    untracked = {*own.names("ls-files", "-z", "--others", "--exclude-standard")} if refuse_untracked else set()
    # Files that are changed to what is wanted already are no uncommitted work.
    unexpected = sorted((tracked | untracked) - ({change.path for change in changes} - still_to_do))
    if unexpected and not allow_dirty:
        raise DirtyTree(
            f"The working tree {git.work_tree} has uncommitted changes: {named(unexpected)}. Nothing was touched. Commit or "
            "stash them, or allow a dirty tree.",
            files=[shown(path) for path in unexpected],
        )
    for path in still_to_do.intersection(paths) & (changed_here | tracked):
        conflicts.reasons[path] = (
            "uncommitted changes in it" if path in tracked else "an untracked file is in its place"
        )
    if conflicts.reasons:
        raise conflicts.error(git.work_tree)
    return [change for change in changes if change.path in still_to_do]


def _obstacles(root: Path, changes: Sequence[TreeDifference]) -> Conflicts:
    """Return the obstacles to writing: a file in place of a directory, or a directory that has other files."""
    going = {change.path for change in changes if change.is_deletion}
    conflicts = Conflicts()
    for path in (change.path for change in changes if not change.is_deletion):
        for folder in list(PurePosixPath(path).parents)[:-1]:
            if str(folder) not in going and os.path.lexists(root / folder) and not _is_folder(root / folder):
                conflicts.reasons[path] = f"{shown(str(folder))} is not a directory"
        others = (inside for inside in (root / path).rglob("*") if not _is_folder(inside))
        if _is_folder(root / path) and any(inside.relative_to(root).as_posix() not in going for inside in others):
            conflicts.reasons[path] = "a directory with other files is in its place"
    return conflicts


def left_out_by_sparse_checkout(git: Git) -> set[str]:
    """Files that are not in the working tree on purpose: they are as HEAD has them."""
    if git.ask("config", "--bool", "core.sparseCheckout") != "true":
        return set()
    # `S` means skip-worktree.
    return {entry[2:] for entry in git.names("ls-files", "-t", "-z") if entry.startswith("S ")}


def _differing(git: Git, tree: str) -> set[str]:
    return {*git.names("diff-index", "--cached", "--no-renames", "--name-only", "-z", "--ignore-submodules=none", tree)}


# --- writing ---------------------------------------------------------------------------------------------------------

# The new files and the files that they replace are copied to a journal first. A process that is killed in the middle leaves
# the journal, and the next process restores everything. Each file is replaced atomically, so it is the old one, the new one,
# or one that was changed since by another program, which is left alone. Several working trees that are written together
# share a journal: each repository has a mark that names it. Marks are written before the journal and removed after it, by
# those that have locked the repository.


def write(planned: Sequence[PlannedWrite]) -> None:
    """Write the files of one or more working trees: all of them, or none.

    The caller holds `one_at_a_time` of each.

    Raises:
        WorktreeError: A file cannot be written. Everything was restored.
    """
    planned = [one for one in planned if one.changes]
    if not planned:
        return
    place = planned[0].git.place
    roots = {one.git.work_tree: {change.path: change.is_deletion for change in one.changes} for one in planned}
    journal = _Journal(place / f"{_FOLDER}{uuid.uuid4().hex}", roots)
    marks = [_mark_of(one.git) for one in planned]
    try:
        for mark in marks:
            replace_file(mark, journal.folder.name)
        journal.old.mkdir(parents=True)
        for number, one in enumerate(planned):
            new = journal.new / str(number)
            new.mkdir(parents=True)
            written = [change.path for change in one.changes if not change.is_deletion]
            one.git.run("read-tree", one.wanted)
            # Where no file is, git reads in the index how the others are to be written.
            replace(one.git, work_tree=new).run(
                "checkout-index", "--force", "-z", "--stdin", stdin=nul_separated(written)
            )
        for file, old, _ in journal.files():
            if is_file(file):
                shutil.copy2(file, old, follow_symlinks=False)
        journal.begin()
        journal.bring()
    except BaseException as error:
        kept = journal.put_back() if journal.is_begun else None
        if isinstance(error, OSError):
            found = "All is as it was" if kept is None else f"What could not be put back is in {kept}"
            raise WorktreeError(
                f"{journal.where} cannot be written: {error}. {found}. Make it writable, or make room."
            ) from error
        raise
    finally:
        journal.remove()
        for mark in marks:
            mark.unlink(missing_ok=True)


def settle_writes(state_dir: Path) -> None:
    """Put back what processes that were killed have half written into working trees. Blocks."""
    for mark in state_dir.glob(f"{_JOURNAL}*"):
        held = take_lock(_lock_file(state_dir, mark.name.removeprefix(_JOURNAL)))
        if held is not None:
            try:
                _settle(mark)
            finally:
                release_lock(held)


def _settle(mark: Path) -> None:
    """Finish the work of a killed process: undo it unless it was complete. The caller holds its lock.

    A journal of several repositories is settled for all of them. No living process writes them: it would hold this lock.
    """
    if not mark.exists():
        return
    with file_lock(mark.with_name(_SETTLING), timeout=_LOCK_SECONDS):
        folder = mark.with_name(mark.read_text(encoding="ascii"))
        journal = _Journal.begun(folder)
        if journal is not None and not journal.is_done():
            log.warning("a process was killed while it wrote into %s: all is put back", journal.where)
            journal.put_back()
        shutil.rmtree(folder, ignore_errors=True)
        mark.unlink()


@dataclass(frozen=True, slots=True)
class _Journal:
    """Directory with the old and the new version of files that are about to be written."""

    folder: Path
    roots: Mapping[Path, Mapping[str, bool]]
    """Written paths of each working tree, each with whether it is a deletion."""

    @classmethod
    def begun(cls, folder: Path) -> _Journal | None:
        """Return the journal of another process, or None if it wrote none."""
        try:
            told = json.loads((folder / _BEGUN).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return cls(folder, {Path(root): paths for root, paths in told.items()})

    @property
    def where(self) -> str:
        return ", ".join(map(str, self.roots))

    @property
    def old(self) -> Path:
        return self.folder / "old"

    @property
    def new(self) -> Path:
        return self.folder / "new"

    @property
    def is_begun(self) -> bool:
        return (self.folder / _BEGUN).exists()

    def begin(self) -> None:
        told = {os.fspath(root): paths for root, paths in self.roots.items()}
        replace_file(self.folder / _BEGUN, json.dumps(told))

    def bring(self) -> None:
        """Replace the old files with the new ones."""
        # Removed first: a new file may need the place of an old directory, and the other way round.
        for place, _, new in self.files():
            if not is_file(new):
                self._remove(place)
        for place, _, new in self.files():
            if is_file(new):
                self._put(new, place)

    def is_done(self) -> bool:
        return all(self._has(place, new) for place, _, new in self.files())

    def put_back(self) -> Path | None:
        """Restore the previous files. A file that cannot be restored is logged, and the others are still restored.

        In that case the journal stays, and its path is returned.
        """
        # A process that is killed in `_put` leaves this file.
        for place, _, _ in self.files():
            with suppress(OSError):
                self._beside(place).unlink()
        written = [(place, old) for place, old, new in self.files() if self._has(place, new)]
        for place, old in written:
            if not is_file(old):
                with _failure_logged(place):
                    self._remove(place)
        for place, old in written:
            if is_file(old):
                with _failure_logged(place):
                    self._put(old, place)
        if not any(self._has(place, new) for place, _, new in self.files()):
            return None
        aside = self.folder.rename(self.folder.with_name(f"{_NOT_PUT_BACK}{self.folder.name}-{time.time_ns()}"))
        log.error("what could not be put back into %s is in %s", self.where, aside)
        return aside

    def remove(self) -> None:
        (self.folder / _BEGUN).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def files(self) -> Iterator[tuple[Path, Path, Path]]:
        """Yield each file's path, its old version and its new one. One of the two may not exist."""
        number = itertools.count()
        for part, (root, paths) in enumerate(self.roots.items()):
            for path, is_deletion in paths.items():
                new = self._nothing if is_deletion else self.new / str(part) / path
                yield root / path, self.old / str(next(number)), new

    @property
    def _nothing(self) -> Path:
        return self.folder / "nothing"

    def _has(self, place: Path, version: Path) -> bool:
        """Return whether the file has this version. A file behind a link does not count."""
        return same_file(self._nothing if _link_before(self._root_of(place), place) else place, version)

    def _beside(self, place: Path) -> Path:
        return place.with_name(f".{self.folder.name}")

    def _put(self, version: Path, place: Path) -> None:
        root = self._root_of(place)
        put_file(root, place.relative_to(root), version, beside=self._beside(place).name, like=self.new)

    def _remove(self, place: Path) -> None:
        root = self._root_of(place)
        remove_file(root, place.relative_to(root))

    def _root_of(self, place: Path) -> Path:
        # A repository may be inside another one.
        return max((root for root in self.roots if place.is_relative_to(root)), key=lambda root: len(root.parts))


def _link_before(root: Path, place: Path) -> Path | None:
    for folder in itertools.takewhile(lambda one: one != root, place.parents):
        if folder.is_symlink():
            return folder
    return None


@contextmanager
def _failure_logged(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        log.exception("%s could not be put back as it was", shown(str(place)))


def is_file(path: Path) -> bool:
    """Return whether the path is a file or a link, even a broken one."""
    return path.is_symlink() or path.is_file()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def same_file(one: Path, other: Path, *, mode: int = ~0) -> bool:
    """Return whether both are the same link, or files with equal content and these mode bits; or neither exists."""
    if not (is_file(one) and is_file(other)):
        return is_file(one) == is_file(other)
    modes = one.lstat().st_mode ^ other.lstat().st_mode
    if stat.S_IFMT(modes) or modes & mode:
        return False
    return one.readlink() == other.readlink() if one.is_symlink() else filecmp.cmp(one, other, shallow=False)


# --- words -----------------------------------------------------------------------------------------------------------


def shown(path: str) -> str:
    """Return a path as text that can be sent anywhere: a file's name need not be valid UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def named(paths: Iterable[str]) -> str:
    return listed(map(shown, paths), _NAMED_FILES)
