"""Snapshots of a working tree before and after each turn, for rewinding.

A snapshot is a git tree of all tracked and untracked files, including staged and unstaged changes; ignored files are
not part of it. Its objects are in the repository, kept by references to trees outside branches and tags
(`refs/helmsman/snapshots/…`), so no log shows them. HEAD, the index and the working tree are only read. Each working
tree has a private index in the state directory, which caches file states, so a snapshot reads only files that changed
since the last one.

Files above a limit (`_LIMITS`) are not read. Snapshots name them, and a rewind does not touch them.

One file in the state directory records the snapshots of a session. References are created before the record is written
and deleted after it is removed, so a crash can leave an extra reference but never lose one. All functions block; call
them in threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base import caller_context
from helmsman.base.files import file_lock, replace_file
from helmsman.base.json_values import json_object_in
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.errors import WorktreeError
from helmsman.git.command import SUBMODULE, Git, find_git, repository_root
from helmsman.git.patches import is_file, left_out_by_sparse_checkout, one_at_a_time, plan_exchange, shown, write
from helmsman.git.snapshot import SizeLimits, Snapshot, index_files, nul_separated, odd_files, scratch
from helmsman.git.tree_changes import TreeDiff, compare
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


# --- Detect changes in a working tree without starting git ------------------------------------------------------------

# A mark is a hash of everything that determines a snapshot: every file with its times, and git's index, configuration
# and ignore files. Equal marks mean that nothing has changed. A mark costs less than one start of git for up to
# `MOST_FILES` files. There is no mark for larger trees and for trees with nested repositories.

MOST_FILES: Final = 1000
_SETTLED_NS: Final = 2_000_000_000
"""Files changed more recently may change again unnoticed, if the file system counts in seconds."""


def mark_of(git: Git, leave_out: Collection[str], excludes: Sequence[str], *, settled: bool = False) -> str | None:
    """Return the mark of a working tree; None without one, or if it must be `settled` and is not.

    `excludes` lists ignore files outside the tree.
    """
    home = caller_context.environment().get("HOME", "")
    named = [path.replace("~", home, 1) if path.startswith("~/") else path for path in excludes]
    found = _files(git.work_tree) if all(map(os.path.isabs, named)) else None
    if found is None:
        return None
    beside = [(path, _about(path)) for path in (*_settings(git, home), *named)]
    if settled:
        newest = max((max(about[-2:]) for _, about in (*found, *beside) if about is not None), default=0)
        if newest > time.time_ns() - _SETTLED_NS:
            return None
    told = repr((sorted(found), beside, sorted(leave_out)))
    return hashlib.sha256(os.fsencode(told)).hexdigest()


def _files(root: Path) -> list[tuple[str, tuple[int, ...] | None]] | None:
    """Return all entries of a tree with their stat values; None if there are too many, or a nested repository."""
    top = os.fspath(root)
    found: list[tuple[str, tuple[int, ...] | None]] = []
    folders = [top]
    try:
        while folders:
            folder = folders.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name == ".git":
                        if folder != top:
                            return None
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                        found.append((entry.path, None))
                    else:
                        found.append((entry.path, _shown_by(entry.stat(follow_symlinks=False))))
            if len(found) > MOST_FILES:
                return None
    except OSError:
        return None
    return found


def _settings(git: Git, home: str) -> Iterator[str]:
    """Yield configuration and ignore files that git uses in this tree."""
    yield os.fspath(git.git_dir / "index")
    for folder in {git.git_dir: None, git.common_dir: None}:
        for name in ("config", "config.worktree", "info/exclude", "info/sparse-checkout"):
            yield os.fspath(folder / name)
    env = caller_context.environment()
    yield env.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig")
    yield env.get("GIT_CONFIG_GLOBAL", f"{home}/.gitconfig")
    for name in ("config", "ignore"):
        yield f"{env.get('XDG_CONFIG_HOME') or f'{home}/.config'}/git/{name}"


def _about(path: str) -> tuple[int, ...] | None:
    try:
        return _shown_by(os.stat(path))  # noqa: PTH116 - strings throughout, because Path objects are slow
    except (OSError, ValueError):
        return None


def _shown_by(found: os.stat_result) -> tuple[int, ...]:
    return found.st_mode, found.st_size, found.st_ino, found.st_dev, found.st_mtime_ns, found.st_ctime_ns


MOST_TURNS: Final = 50
"""Snapshots kept per session."""
_LIMITS: Final = SizeLimits(largest=16 * 1024 * 1024, most=128 * 1024 * 1024, takes="a snapshot takes")
"""Limits for changes since the last snapshot; larger changes are generated files or data sets."""
_UNUSED: Final = timedelta(days=30)
_FOLDER: Final = "snapshots"
_MARK: Final = "mark.json"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REFERENCES: Final = "refs/helmsman/snapshots"
_LOCK_SECONDS: Final = 60.0
_SETTINGS: Final = {
    "core.logAllRefUpdates": "false",
    "core.fsyncMethod": "batch",  # one flush for all files
}


class TurnSnapshot(Value, frozen=True, kw_only=True):
    """Tree before a turn, and after it if known. `head` is the commit that was checked out."""

    task_id: str
    before: Snapshot
    head: str | None
    taken_at: datetime
    after: str | None = None


class Undo(Value, frozen=True, kw_only=True):
    """State for undoing a rewind: the previous tree, and the session with the conversation, as far as known.

    `wanted` is the target tree; `is_done` distinguishes a completed rewind from an interrupted one.
    """

    taken_at: datetime
    before: Snapshot | None = None
    wanted: str | None = None
    conversation: str | None = None
    is_done: bool = False


class SessionSnapshots(Value, frozen=True, kw_only=True):
    """Snapshots of a session by turn, oldest first, and their location.

    A session in several repositories has a record for each. All but the first have the name of the worktree (`tree`).
    """

    session_id: str
    work_tree: Path
    git_dir: Path
    tree: str = ""
    turns: tuple[TurnSnapshot, ...] = ()
    undo: Undo | None = None

    def of_task(self, task_id: str | None) -> TurnSnapshot | None:
        return next((turn for turn in self.turns if turn.task_id == task_id), None)

    @property
    def trees(self) -> set[str]:
        """Trees that references must keep."""
        undo = self.undo
        kept = () if undo is None else (undo.before.tree if undo.before else None, undo.wanted)
        found = (*(turn.before.tree for turn in self.turns), *(turn.after for turn in self.turns), *kept)
        return {tree for tree in found if tree is not None}


# --- location --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """Working tree of a session, with the `tree` of its record there.

    Its paths begin with `prefix` where they are shown. `leave_out` are files that are not work of the session.
    """

    git: Git
    session_id: str
    tree: str = ""
    prefix: str = ""
    leave_out: tuple[str, ...] = ()

    @property
    def known(self) -> SessionSnapshots | None:
        """The record. One of another repository that was at this place does not count."""
        known = read_snapshots(self.git.place, self.session_id, self.tree)
        return known if known is not None and known.git_dir == self.git.git_dir else None


def git_of(directory: Path, state_dir: Path, known: SessionSnapshots | None = None) -> Git | None:
    """Return the working tree around a directory; None outside a repository.

    The `known` git directory takes precedence: a session may have written another `.git` into its tree since.

    Raises:
        WorktreeError: Git refuses to use it.
    """
    root = repository_root(directory)
    if root is None:
        return None
    if known is not None and root == known.work_tree and known.git_dir.is_dir():
        return Git(work_tree=known.work_tree, git_dir=known.git_dir, place=state_dir)
    return find_git(directory, state_dir)


# --- taking ----------------------------------------------------------------------------------------------------------


def take_before(place: SnapshotPlace, task_id: str, *, is_in_time: Callable[[], bool] = lambda: True) -> None:
    """Record the content of a working tree before a turn.

    `is_in_time` is called after all files were read, and returns whether the turn had not begun yet; if it had, nothing
    is recorded. Files may change after that call.

    Raises:
        WorktreeError: The changes are too large, or git cannot read the tree.
    """
    taken_at, git = datetime.now(UTC), place.git
    with _read(git, place.leave_out) as (seen, before):
        head = _quick_head(git)
        if not is_in_time():
            return
        head = head or seen.commit("HEAD")
        known = read_snapshots(git.place, place.session_id, place.tree)
        if known is None:
            _forget_unused(git.place)
        if known is None or known.git_dir != git.git_dir or known.work_tree != git.work_tree:
            _forget(git.place, known)
            known = _empty_record(place)
        turn = TurnSnapshot(task_id=task_id, before=before, head=head, taken_at=taken_at)
        others = (one for one in known.turns if one.task_id != task_id)
        _keep(seen, known, replace(known, turns=(*others, turn)[-MOST_TURNS:]))


def _empty_record(place: SnapshotPlace) -> SessionSnapshots:
    git = place.git
    return SessionSnapshots(session_id=place.session_id, work_tree=git.work_tree, git_dir=git.git_dir, tree=place.tree)


def take_after(place: SnapshotPlace, task_id: str) -> None:
    """Record the content of a working tree after a turn, if the snapshot before it exists.

    Raises:
        WorktreeError: The changes are too large, or git cannot read the tree.
    """
    with _read(place.git, place.leave_out, marks=True) as (seen, after):
        known = place.known
        if known is None or known.of_task(task_id) is None:
            return
        turns = (replace(turn, after=after.tree) if turn.task_id == task_id else turn for turn in known.turns)
        _keep(seen, known, replace(known, turns=tuple(turns)))


@contextmanager
def state_now(git: Git, leave_out: Collection[str] = ()) -> Iterator[tuple[Git, Snapshot, Path]]:
    """Yield git with a view, the current state of a working tree, and its private index, under a lock.

    Raises:
        WorktreeError: The changes are too large, or git cannot read the tree.
    """
    with _alone(git) as folder, _viewed(git, folder) as seen:
        yield seen, _tree_of(seen, folder, leave_out), folder / "index"


@contextmanager
def _read(git: Git, leave_out: Collection[str], *, marks: bool = False) -> Iterator[tuple[Git, Snapshot]]:
    """Yield git and the state of the working tree; without running git if nothing has changed since the last read.

    `marks` takes a little longer and stores a mark, which allows the next call to detect changes.
    """
    with _alone(git) as folder, ExitStack() as stack:
        marked = json_object_in(folder / _MARK) or {}
        is_same = marked and marked.get("mark") == mark_of(git, leave_out, marked.get("excludes") or ())
        if is_same and _is_there(git, marked["tree"]):
            yield git.with_settings(_SETTINGS), Snapshot(tree=marked["tree"], left_out=marked["left_out"])
            return
        seen = stack.enter_context(_viewed(git, folder))
        excludes = None if seen.view is None else seen.view.excludes
        mark = mark_of(git, leave_out, excludes, settled=True) if marks and excludes is not None else None
        state = _tree_of(seen, folder, leave_out)
        if mark is None:
            (folder / _MARK).unlink(missing_ok=True)  # a stale mark would hide changes
        else:
            about = {"mark": mark, "excludes": excludes, "tree": state.tree, "left_out": state.left_out}
            replace_file(folder / _MARK, json.dumps(about), durable=False)
        yield seen, state


@contextmanager
def _viewed(git: Git, folder: Path) -> Iterator[Git]:
    with git.with_settings(_SETTINGS).viewed() as seen:
        (folder / "index.lock").unlink(missing_ok=True)  # left by a killed git
        yield seen


@contextmanager
def _alone(git: Git) -> Iterator[Path]:
    """Yield the cache directory of a working tree, under a lock."""
    try:
        folder = _folder(git.place) / f"tree-{_short(os.fspath(git.git_dir))}"
        folder.mkdir(mode=0o700, exist_ok=True)
        with file_lock(folder / "lock", timeout=_LOCK_SECONDS):
            yield folder
    except TimeoutError as error:
        raise WorktreeError(
            f"Another snapshot of {git.work_tree} takes very long. Try again when it is done."
        ) from error
    except OSError as error:
        raise WorktreeError(
            f"A snapshot of {git.work_tree} cannot be written: {error}. Make room, or set snapshots = false."
        ) from error


def _tree_of(seen: Git, folder: Path, leave_out: Collection[str]) -> Snapshot:
    """Write the content of the working tree as a tree, using the private index as a cache."""
    git = replace(seen, index=folder / "index")
    about = json_object_in(folder / "about.json") or {}
    now, tree = _index_version(git), about.get("tree")
    is_known = about.get("index") == now and (folder / "index").exists()
    is_fresh = not is_known or not isinstance(tree, str) or not _is_there(git, tree)
    listed = _list_changes(git, fresh=is_fresh)
    if not is_fresh and any(path.rpartition("/")[2] == ".gitignore" for path in listed):
        listed, is_fresh = _list_changes(git, fresh=True), True  # new files may be ignored now
    nested = [path for path in listed if path.endswith("/")]
    paths = {*listed} - {*nested} - {*leave_out}
    odd = odd_files(git.work_tree, paths, _LIMITS)
    paths.difference_update(odd)
    if paths or is_fresh or tree is None:
        # First, or a hub that is killed in here leaves an index with the tree of an earlier one.
        (folder / "about.json").unlink(missing_ok=True)
        index_files(git, paths)
        if is_fresh and leave_out:
            git.run("update-index", "-z", "--force-remove", "--stdin", stdin=nul_separated(leave_out))
        tree = git.text("write-tree")
        (folder / "index").chmod(0o600)  # git uses the umask
        replace_file(folder / "about.json", json.dumps({"index": now, "tree": tree}), durable=False)
    return Snapshot(tree=tree, left_out=odd, nested=tuple(path.rstrip("/") for path in nested))


def _is_there(git: Git, tree: str) -> bool:
    """Return whether git still has a tree. Garbage collection removes trees without a reference."""
    loose = git.common_dir / "objects" / tree[:2] / tree[2:]
    return loose.exists() or git.has(f"{tree}^{{tree}}")


def _list_changes(git: Git, *, fresh: bool) -> list[str]:
    """List paths that differ from the private index; `fresh` first copies the repository's index."""
    assert git.index is not None
    if fresh:
        git.index.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # no file was ever added
            # Keep the time stamp: git uses it to find files that may have changed unnoticed since.
            shutil.copy2(git.git_dir / "index", git.index)
    with ThreadPoolExecutor(1) as beside:  # both commands read every file of a large tree
        new = beside.submit(copy_context().run, git.names, "ls-files", "-z", "--others", "--exclude-standard")
        changed = git.names("diff-files", "-z", "--name-only")
        return list(dict.fromkeys((*changed, *new.result())))


def _quick_head(git: Git) -> str | None:
    """Return the commit of HEAD if it is in the usual files; None otherwise."""
    with suppress(OSError, ValueError):
        head = (git.git_dir / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: refs/heads/"):
            head = (git.common_dir / head.removeprefix("ref: ")).read_text(encoding="utf-8").strip()
        return head if _COMMIT.fullmatch(head) else None
    return None


def _index_version(git: Git) -> list[int] | None:
    try:
        found = (git.git_dir / "index").stat()
    except FileNotFoundError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino]


# --- records ---------------------------------------------------------------------------------------------------------


def read_snapshots(state_dir: Path, session_id: str, tree: str = "") -> SessionSnapshots | None:
    """Return the record of a session's snapshots in one working tree, if there is one."""
    known = _read_record(_record(state_dir, session_id, tree))
    return known if known is not None and known.session_id == session_id else None


def all_snapshots(state_dir: Path, session_id: str) -> list[SessionSnapshots]:
    """Return the records of a session in all its repositories."""
    found = map(_read_record, sorted((state_dir / _FOLDER).glob(_record(state_dir, session_id, "*").name)))
    others = [one for one in found if one is not None and one.session_id == session_id]
    first = read_snapshots(state_dir, session_id)
    return others if first is None else [first, *others]


def keep_undo(place: SnapshotPlace, git: Git, undo: Undo | None) -> None:
    """Record how to undo a rewind. `git` is from `state_now`, and the call must be inside its block."""
    known = read_snapshots(git.place, place.session_id, place.tree)
    _keep(git, known, replace(known or _empty_record(place), undo=undo))


def change_undo(place: SnapshotPlace, undo: Undo | None, *, heir: str | None = None) -> None:
    """Record how to undo a rewind, outside a `state_now` block.

    `heir` is a session that continues the conversation; it receives the snapshots. In a directory without git there are
    no snapshots, and the git directory need not exist.
    """
    git = place.git
    with _alone(git):
        keep_undo(place, git, undo)
        known = read_snapshots(git.place, place.session_id, place.tree)
        if heir is not None and known is not None:
            _keep(git, read_snapshots(git.place, heir, place.tree), replace(known, session_id=heir, undo=None))


def forget_snapshots(state_dir: Path, session_id: str) -> None:
    """Remove a session's snapshots. Git's garbage collection removes their objects later."""
    for known in all_snapshots(state_dir, session_id):
        _forget(state_dir, known)


def _keep(git: Git, known: SessionSnapshots | None, wanted: SessionSnapshots) -> None:
    before = known.trees if known is not None else set[str]()
    _change_references(git, wanted.session_id, "update", wanted.trees - before)
    path = _record(git.place, wanted.session_id, wanted.tree)
    replace_file(path, json.dumps(pack(wanted)), durable=False)
    _change_references(git, wanted.session_id, "delete", before - wanted.trees)


def _change_references(git: Git, session_id: str, verb: str, trees: Collection[str]) -> None:
    if trees:
        name = f"{_REFERENCES}/{_short(session_id)}"
        lines = (f"{verb} {name}/{tree}" + (f" {tree}" if verb == "update" else "") for tree in sorted(trees))
        git.with_settings(_SETTINGS).run("update-ref", "--stdin", stdin="".join(f"{line}\n" for line in lines).encode())


def _forget(state_dir: Path, known: SessionSnapshots | None) -> None:
    if known is None:
        return
    git = Git(work_tree=known.work_tree, git_dir=known.git_dir, place=state_dir)
    if not known.git_dir.is_dir():  # the worktree is gone; the references are in the repository
        shared = known.git_dir.parent.parent
        git = replace(git, git_dir=shared, work_tree=shared) if known.git_dir.parent.name == "worktrees" else git
    if git.git_dir.is_dir():
        with suppress(WorktreeError), git.viewed() as seen:  # a damaged repository keeps them
            _change_references(seen, known.session_id, "delete", known.trees)
    _record(state_dir, known.session_id, known.tree).unlink(missing_ok=True)


def _forget_unused(state_dir: Path) -> None:
    """Remove records of sessions and caches of working trees that were not used for long."""
    since = time.time() - _UNUSED.total_seconds()
    for path in list(_folder(state_dir).iterdir()):
        with suppress(OSError):
            if path.suffix == ".json" and path.stat().st_mtime < since:
                _forget(state_dir, _read_record(path))
                path.unlink(missing_ok=True)
            elif path.is_dir() and (path / "about.json").stat().st_mtime < since:
                shutil.rmtree(path, ignore_errors=True)


def _folder(state_dir: Path) -> Path:
    folder = ensure_state_dir(state_dir) / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _record(state_dir: Path, session_id: str, tree: str) -> Path:
    return state_dir / _FOLDER / f"session-{_short(session_id)}{tree and f'-{tree}'}.json"


def _short(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:24]


def _read_record(path: Path) -> SessionSnapshots | None:
    return unpack_if_valid(json_object_in(path), SessionSnapshots)


# --- Plan and perform a rewind of a working tree to a snapshot --------------------------------------------------------

# Content that snapshots do not cover is left unchanged and reported: files that are too large, submodules, nested
# repositories, and paths outside a sparse checkout. A file that the snapshot contains and git now ignores is read
# again, so that undoing the rewind restores it. HEAD and the index are not changed. `helmsman.git.patches` writes the
# files, all or nothing. All functions block; call them in threads.


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindTarget:
    """State to which a working tree is to be rewound.

    `after` is the tree after the last turn, or after the rewind that is undone. `others` are the turns of other sessions in
    the same tree since then, oldest first.
    """

    place: SnapshotPlace
    wanted: Snapshot
    after: str | None
    others: Mapping[str, Sequence[TurnSnapshot]] = field(default_factory=dict[str, "Sequence[TurnSnapshot]"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRewind:
    """Planned rewind of files: from tree `now` to tree `wanted`, with the difference `diff`.

    `left` lists differing paths that are not touched. `changed_since` lists files changed after the last turn; None if
    unknown. `lost` lists files of other sessions that would lose work, by session.
    """

    now: Snapshot
    wanted: str
    diff: TreeDiff
    left: tuple[str, ...]
    changed_since: tuple[str, ...] | None
    lost: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])


def plan_rewind(target: RewindTarget) -> FilesRewind:
    """Return the changes that a rewind would make.

    Raises:
        WorktreeError: Git cannot read the tree.
    """
    with _planned(target) as (plan, own):
        lost = {session: _lost(own, turns, plan) for session, turns in target.others.items()}
        named = {session: _named(target.place, paths) for session, paths in lost.items() if paths}
        return replace(plan, lost=named)


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
    targets: Sequence[RewindTarget], agree: Callable[[Sequence[tuple[FilesRewind, Git]]], None]
) -> list[FilesRewind]:
    """Rewind working trees: all of them, or none.

    `agree` receives exactly the changes that will be made, each with a git that has a view; an exception it raises
    cancels the rewind.

    Raises:
        ApplyConflict: A file is in the way. Nothing was touched.
        WorktreeError: Git failed, or a file cannot be written. Nothing was touched, or everything was restored.
    """
    with ExitStack() as stack:
        for git in sorted((one.place.git for one in targets), key=lambda git: git.common_dir):  # as `apply` does
            stack.enter_context(one_at_a_time(git))
        planned = [stack.enter_context(_planned(target)) for target in targets]
        agree([(plan, replace(own, index=None)) for plan, own in planned])
        write([plan_exchange(own, plan.now.tree, plan.wanted) for plan, own in planned])
        return [plan for plan, _ in planned]


@contextmanager
def _planned(target: RewindTarget) -> Iterator[tuple[FilesRewind, Git]]:
    place, wanted = target.place, target.wanted
    with state_now(place.git, place.leave_out) as (seen, now, index), scratch(seen) as own:
        own = replace(own, objects=None)  # objects created here must persist
        assert own.index is not None
        with suppress(FileNotFoundError):  # the index does not exist
            shutil.copy2(index, own.index)
        differing = _differing(own, now.tree, wanted.tree)
        left = _left(own, differing, {*now.left_out, *wanted.left_out, *now.nested, *place.leave_out})
        ignored, large = _ignored_by_now(own.work_tree, [path for path, (old, _) in differing.items() if not old], left)
        left |= large
        if ignored:
            index_files(own, ignored)
            now = replace(now, tree=own.text("write-tree"))
        tree = _with_left(own, wanted.tree, now.tree, left)
        diff = compare(own, now.tree, tree, replace(now, left_out={}), place.prefix)
        since = None
        if target.after is not None:
            since = _named(place, {*_differing(own, target.after, now.tree)} & {*_differing(own, now.tree, tree)})
        yield FilesRewind(now=now, wanted=tree, diff=diff, left=_named(place, left), changed_since=since), own


def _named(place: SnapshotPlace, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(place.prefix + shown(path) for path in sorted(paths))


def _differing(git: Git, before: str, after: str) -> dict[str, tuple[str, str]]:
    """Return the paths on which two trees differ, with both modes; an absent file has an empty mode."""
    return {
        one.path: (one.old_mode.strip("0") and one.old_mode, one.new_mode.strip("0") and one.new_mode)
        for one in git.differences(before, after)
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
    large = {path for path in there if os.lstat(root / path).st_size > _LIMITS.largest}
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
