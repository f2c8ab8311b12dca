"""Differences of a working tree, as one patch and per file."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path  # noqa: TC003 - hubs read the types of values that they send
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypeAlias

from helmsman.base.structs import Value, replace
from helmsman.errors import DiffChanged, InvalidInput, WorktreeError
from helmsman.git.command import Git, find_git
from helmsman.git.diff import FileDiff, FileKind, FileStat, file_patches, files_of, read_diff, stat_of
from helmsman.git.patches import (
    Conflicts,
    PlannedWrite,
    diff_digest,
    is_file,
    one_at_a_time,
    plan_exchange,
    plan_tree,
    refuse_repositories,
    same_file,
    shown,
    write,
)
from helmsman.git.snapshot import Snapshot, private_index, scratch, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from helmsman.git.worktree import Worktree

Selection: TypeAlias = Mapping[str, Collection[int] | None]
"""Hunks of each file, counted from 0; None is the whole file."""
_KINDS: Final[dict[str, FileKind]] = {"A": "added", "D": "deleted", "R": "renamed", "C": "copied"}
_STAT_WIDTH: Final = 100

_PLAINLY: Final = ("-r", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--ignore-submodules=none")
"""Ignore the repository's configuration and attributes: no program named there may run."""
_MOVE: Final = re.compile(rb'^((?:rename|copy) (?:from|to) "?)', re.MULTILINE)
"""Lines of a patch whose paths git writes without a prefix. No line of content begins so."""


class TreeDiff(Value, frozen=True, kw_only=True):
    """Difference of two trees. `patch` is for `git apply`, byte for byte; `stat` is git's overview.

    `nested` names git repositories inside the tree, which are not part of the patch. `left_out` names other entries
    that cannot be included, with the reason.
    """

    patch: bytes
    files: tuple[FileStat, ...]
    stat: str
    nested: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def of_text(cls, diff: str) -> Self:
        """Return the difference that a diff of an agent describes."""
        files = files_of(diff)
        # Bytes that are no UTF-8 arrived as surrogates. They become the same bytes again.
        return cls(patch=diff.encode("utf-8", "surrogateescape"), files=files, stat=stat_of(files))

    @property
    def digest(self) -> str:
        """SHA-256 of the patch."""
        return diff_digest(self.patch)

    @property
    def text(self) -> str:
        """Patch as text, with invalid UTF-8 replaced."""
        return self.patch.decode("utf-8", "replace")


def diff(tree: Worktree) -> TreeDiff:
    """Return all changes in the worktrees of a session since their creation, committed or not. Blocks; call it in a
    thread.

    Raises:
        WorktreeError: A worktree is gone, or git cannot read it.
    """

    with ExitStack() as stack:
        return joined([side.diff for side in _sides(tree, stack)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Worktree of a session with its content and its changes, whose paths begin with `prefix`. `git` has its own index."""

    prefix: str
    tree: Worktree
    git: Git
    snapshot: Snapshot
    diff: TreeDiff

    def selected(self, only: Selection) -> Selection:
        return {path.removeprefix(self.prefix): part for path, part in only.items() if path.startswith(self.prefix)}

    def patch(self) -> bytes:
        """Return the patch without the prefix."""
        return compare(self.git, self.tree.base, self.snapshot.tree).patch if self.prefix else self.diff.patch


def _sides(
    tree: Worktree, stack: ExitStack, opened: Callable[[Git], AbstractContextManager[Git]] = scratch
) -> list[_Side]:
    """Look at the worktrees of a session, each with a git that is valid until the stack is closed."""
    sides: list[_Side] = []
    for prefix, one in tree.by_prefix.items():
        check_present(one)
        git = stack.enter_context(opened(one.own_git))
        snapshot = take_snapshot(git, one.included)
        diff = compare(git, one.base, snapshot.tree, snapshot, prefix)
        sides.append(_Side(prefix=prefix, tree=one, git=git, snapshot=snapshot, diff=diff))
    return sides


def joined(diffs: Sequence[TreeDiff]) -> TreeDiff:
    """Return the changes of several repositories as one."""
    return TreeDiff(
        patch=b"".join(one.patch for one in diffs),
        files=tuple(file for one in diffs for file in one.files),
        stat="".join(one.stat for one in diffs),
        nested=tuple(name for one in diffs for name in one.nested),
        left_out=tuple(name for one in diffs for name in one.left_out),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffView:
    """How to read a change: without white space; `since` another tree of the first repository; or one file `whole`, by
    its paths.
    """

    ignore_whitespace: bool = False
    since: str | None = None
    whole: tuple[str, ...] = ()


def diff_and_view(tree: Worktree, view: DiffView) -> tuple[TreeDiff, str]:
    """Return all changes in the worktrees of a session, and the text of a view of the same content. Blocks.

    Raises:
        WorktreeError: A worktree is gone, or git cannot read it.
    """
    text = ""
    with ExitStack() as stack:
        sides = _sides(tree, stack)
        for side in sides:
            prefix = side.prefix
            options = ["-M", "-C", "--patch", "--no-commit-id"]
            if view.ignore_whitespace:
                options += ["-w", "--ignore-blank-lines"]
            inside = [path.removeprefix(prefix) for path in view.whole if path.startswith(prefix)]
            paths = [f":(literal,top){path}" for path in inside]
            if paths:
                options.append("-U1000000")
            if paths or not view.whole:
                since = view.since if side.tree is tree else None
                arguments = (*options, since or side.tree.base, side.snapshot.tree, "--", *paths)
                text += _with_moves(_diff_tree(side.git, prefix, *arguments), prefix).decode("utf-8", "replace")
        return joined([side.diff for side in sides]), text


def diff_of_directory(directory: Path, since: str | None = None, *, state_dir: Path) -> TreeDiff:
    """Return the changes in the repository around a directory since a commit, by default since HEAD. Blocks.

    Raises:
        InvalidInput: There is no working tree, or no such commit.
        WorktreeError: Git cannot read it.
    """
    found = find_git(directory, state_dir)
    if found is None:
        raise InvalidInput(
            f"{directory} is not in the working tree of a git repository, so what changed in it is not known. Name one."
        )
    with scratch(found) as git:
        snapshot = take_snapshot(git)
        return compare(git, _since(git, since), snapshot.tree, snapshot)


def compare(git: Git, before: str, after: str, around: Snapshot | None = None, prefix: str = "") -> TreeDiff:
    """Return the difference of two trees, with renames detected. `around` supplies nested repositories and omissions.

    All paths begin with `prefix`.
    """

    def diff_tree(*options: str) -> bytes:
        return _diff_tree(git, prefix, "-M", "-C", *options, before, after)

    # Rename detection is expensive, so two outputs are requested per run. An empty line ends the stat.
    stat, end, patch = diff_tree(f"--stat={_STAT_WIDTH}", "--patch", "--binary").partition(b"\n\n")
    overview = (stat + end[:1]).decode("utf-8", "replace")
    return TreeDiff(
        patch=_with_moves(patch, prefix),
        files=_prefixed(_file_stats(diff_tree("--raw", "--numstat", "-z")), prefix),
        stat=f"{prefix}\n{overview}" if prefix and overview else overview,
        nested=() if around is None else tuple(prefix + shown(name) for name in around.nested),
        left_out=()
        if around is None
        else tuple(prefix + shown(f"{path} ({why})") for path, why in around.left_out.items()),
    )


def _diff_tree(git: Git, prefix: str, *arguments: str) -> bytes:
    """Return git's comparison of two trees. `prefix` holds plain characters only."""
    sides = (f"--src-prefix=a/{prefix}", f"--dst-prefix=b/{prefix}")
    return git.run("diff-tree", *_PLAINLY, *sides, *arguments).output


def _with_moves(patch: bytes, prefix: str) -> bytes:
    """Return a patch with the prefix also in the lines on renames and copies."""
    return _MOVE.sub(rb"\g<1>" + prefix.encode(), patch) if prefix else patch


def _prefixed(files: Iterable[FileStat], prefix: str) -> tuple[FileStat, ...]:
    return tuple(
        replace(file, path=prefix + file.path, old_path=file.old_path and prefix + file.old_path) for file in files
    )


def check_present(tree: Worktree) -> None:
    if tree.path.is_symlink():  # files behind the link would be shown and applied as the session's
        raise WorktreeError(
            f"The worktree {tree.path} was replaced by a link to {tree.path.resolve()}. Remove the link, then discard it."
        )
    if not (tree.path.is_dir() and tree.git_dir.is_dir()):
        raise WorktreeError(
            f"The worktree {tree.path} is gone: it was discarded, or removed by hand. Discard it to forget it."
        )


def _since(git: Git, since: str | None) -> str:
    if since is None:
        # `mktree` without input makes the empty tree.
        return "HEAD" if git.has("HEAD^{commit}") else git.text("mktree")
    commit = git.commit(since)
    if commit is None:
        raise InvalidInput(f"There is no commit {since!r:.200} in {git.work_tree}. Name one that `git log` shows.")
    return commit


def _file_stats(output: bytes) -> Iterator[FileStat]:
    """Parse raw changes, followed by line counts.

    A change is `:old-mode new-mode old-id new-id status`, the path, and for renames and copies a second path. A count
    is `added TAB removed TAB path`, or an empty path followed by the old and the new one; `-` for a binary file.
    """
    changes: list[tuple[str, str, str | None]] = []
    counts: dict[str, tuple[int | None, int | None]] = {}
    fields = iter(output.decode("utf-8", "surrogateescape").split("\0")[:-1])
    for about in fields:
        if about.startswith(":"):
            old_path = next(fields)
            is_moved = about.rpartition(" ")[2][0] in "RC"
            changes.append((about, next(fields) if is_moved else old_path, old_path if is_moved else None))
        else:
            *lines, path = about.split("\t", 2)
            if not path:
                next(fields)
                path = next(fields)
            more, less = (None if number == "-" else int(number) for number in lines)
            counts[path] = more, less
    for about, path, moved_from in changes:
        old_mode, new_mode, old_id, new_id, status = about.removeprefix(":").split(" ")
        kind = _KINDS.get(status[0], "modified")
        if kind == "modified" and old_id == new_id and old_mode != new_mode:
            kind = "mode"
        added, removed = counts.get(path, (None, None))
        yield FileStat(
            path=shown(path),
            kind=kind,
            old_path=None if moved_from is None else shown(moved_from),
            added=added,
            removed=removed,
        )


# --- Find work that exists only in a worktree: commits on no other branch, and changes that were not applied ----------

_EXECUTABLE = 0o100


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaved:
    """Work that discarding a worktree would lose.

    `nested` lists git repositories created inside it; `unreadable` means that its content is unknown.
    """

    commits: tuple[str, ...] = ()
    files: tuple[FileStat, ...] = ()
    nested: tuple[str, ...] = ()
    unreadable: bool = False

    def __bool__(self) -> bool:
        return bool(self.commits or self.files or self.nested or self.unreadable)


def unsaved(tree: Worktree) -> Unsaved:
    """Return the work that exists only in the worktrees of a session. Blocks; call it in a thread.

    A changed file counts as saved if the main tree has the same content, by an apply or otherwise.
    """
    found = [_unsaved(one, prefix) for prefix, one in tree.by_prefix.items()]
    return Unsaved(
        commits=tuple(commit for one in found for commit in one.commits),
        files=tuple(file for one in found for file in one.files),
        nested=tuple(name for one in found for name in one.nested),
        unreadable=any(one.unreadable for one in found),
    )


def _unsaved(tree: Worktree, prefix: str) -> Unsaved:
    commits, alone = _lost_commits(tree), replace(tree, others=())
    try:
        changes = diff(alone)
    except WorktreeError:
        return Unsaved(commits=commits, unreadable=tree.path.exists())
    files = (file for file in changes.files if not _is_in_main_tree(tree, file))
    odd = (FileStat(path=name, kind="added", added=None, removed=None) for name in changes.left_out)
    nested = tuple(prefix + name for name in changes.nested)
    return Unsaved(commits=commits, files=_prefixed((*files, *odd), prefix), nested=nested)


def lost_commits(tree: Worktree) -> tuple[str, ...]:
    """Return the commits that only the worktrees of a session and their branches have, newest first."""
    return tuple(commit for one in tree.each for commit in _lost_commits(one))


def _lost_commits(tree: Worktree) -> tuple[str, ...]:
    wanted = ("HEAD", f"refs/heads/{tree.branch}")
    # `--exclude` is for the next `--branches` only.
    others = ("--not", tree.base, f"--exclude={tree.branch}", "--branches", "--tags", "--remotes")
    git = replace(tree.own_git, work_tree=tree.git_dir)  # the files may be gone already
    with suppress(WorktreeError):
        told = git.run("log", "-z", "--format=%h %s", *wanted, *others, "--").output
        return tuple(line.decode("utf-8", "replace") for line in told.split(b"\0") if line)
    return ()


def changed_files(tree: Worktree) -> tuple[FileStat, ...] | None:
    """Return the files that differ from the base of each worktree of a session; None if one cannot be read."""
    with suppress(WorktreeError):
        return diff(tree).files
    return None


def _is_in_main_tree(tree: Worktree, file: FileStat) -> bool:
    """Return whether the main tree has the same file. An unreadable file counts as missing, so that nothing is lost."""
    here = tree.repository / file.path
    try:
        if file.kind == "deleted":
            return not os.path.lexists(here)
        if file.kind == "renamed" and file.old_path is not None and os.path.lexists(tree.repository / file.old_path):
            return False
        return is_file(here) and same_file(tree.path / file.path, here, mode=_EXECUTABLE)
    except OSError:
        return False


# Apply a worktree's changes to the main tree, all or nothing.
#
# If the main tree has changed since, both are merged as git objects before any file is touched.
# `helmsman.git.patches` writes the result.


_OLDEST_GIT: Final = (2, 38)
"""First version with `merge-tree --write-tree`."""

_HUNKS: Final = 10
_HUNK_LENGTH: Final = 2000
"""Limits for shown conflicts: enough to understand them, not a whole generated file."""

_CONFLICT: Final = re.compile(rb"^<{7} .*?^>{7} .*?$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Result of an apply. `three-way`: the main tree had new commits, so both sides were merged.

    `files` are the changed files of the main tree; `diff` holds the changes of the worktree.
    """

    files: tuple[FileStat, ...]
    how: Literal["clean", "three-way"]
    diff: TreeDiff


def apply(
    tree: Worktree,
    *,
    allow_dirty: bool = False,
    check: Callable[[TreeDiff], None] | None = None,
    only: Selection | None = None,
) -> Applied:
    """Apply the changes of a session's worktrees to their main trees, by default all of them. Blocks; call it in a thread.

    The worktrees are not modified. Every main tree is checked before the first one is written, and a failure restores
    all.

    Args:
        tree: The worktree of the session, with its others.
        allow_dirty: Accept uncommitted changes in the main tree, if they are in other files.
        check: Receives exactly the changes that will be applied, even if the worktree changes concurrently. An
            exception it raises cancels the apply.
        only: The files and hunks to apply. They are merged with uncommitted changes of the main tree.

    Raises:
        InvalidInput: `only` names a file or hunk that is not there.
        DirtyTree: The main tree has uncommitted changes. Untracked files count only if they are in the way.
        ApplyConflict: The changes do not fit. Nothing was touched.
        WorktreeError: Git failed, or a file cannot be written. Nothing was touched, or everything was restored.
    """
    for one in tree.each:
        check_present(one)
        if not one.repository.is_dir() or not one.main_git.has("HEAD^{commit}"):
            raise WorktreeError(f"{one.repository} is gone or has no commit at HEAD. Check out the branch to apply to.")
    with ExitStack() as stack:
        _lock(tree, stack)
        sides = _sides(tree, stack)
        diff = joined([side.diff for side in sides])
        if check is not None:
            check(diff)
        _check_paths(tree, only)
        mains = [stack.enter_context(scratch(side.tree.main_git, side.git.objects)) for side in sides]
        planned = [_plan(side, main, allow_dirty, only) for side, main in zip(sides, mains, strict=True)]
        write([one for one, _ in planned])
        applied = [one for _, one in planned]
        how: Literal["clean", "three-way"] = "clean" if all(one.how == "clean" for one in applied) else "three-way"
        files = tuple(file for one in applied for file in one.files)
        return Applied(files=files, how=how, diff=diff if only is None else joined([one.diff for one in applied]))


def _lock(tree: Worktree, stack: ExitStack) -> None:
    """Lock the repositories of a session, in the same order in every process."""
    for one in sorted(tree.each, key=lambda one: one.main_git.common_dir):
        stack.enter_context(one_at_a_time(one.main_git))


def _check_paths(tree: Worktree, only: Selection | None) -> None:
    for path in only or ():
        if not path.startswith(tuple(tree.by_prefix)):
            raise InvalidInput(f"{path!r:.200} is not among these changes. Look at them again.", parameter="only")


def _plan(side: _Side, main: Git, allow_dirty: bool, only: Selection | None) -> tuple[PlannedWrite, Applied]:
    """Return what to write into a main tree, after checking that it fits."""
    base = main.text("rev-parse", "--verify", f"{side.tree.base}^{{tree}}")
    wanted = side.snapshot.tree
    if only is None:
        refuse_repositories(side.snapshot.nested)
    else:
        wanted = selected_tree(side.git, base, wanted, side.patch(), side.selected(only))
    if only is None and not side.tree.has_uncommitted:
        now = main.text("rev-parse", "--verify", "HEAD^{tree}")
        planned = plan_tree(main, _on_top(main, base, now, wanted), allow_dirty=allow_dirty)
    else:  # so that several parts of a file can follow each other
        now, planned = plan_on_files(main, base, wanted)
    part = side.diff if only is None else compare(main, base, wanted, prefix=side.prefix)
    files = part.files if now == base else compare(main, now, planned.wanted, prefix=side.prefix).files
    return planned, Applied(files=files, how="clean" if now == base else "three-way", diff=part)


def plan_on_files(git: Git, base: str, wanted: str) -> tuple[str, PlannedWrite]:
    """Return the tree of a working tree as it is, and how it is changed: merged with the change from `base` to `wanted`.

    `git` is from `scratch`, and the caller holds `one_at_a_time`.

    Raises:
        ApplyConflict: The change does not fit, or a file that it changes cannot be read.
        WorktreeError: Git failed.
    """
    seen = take_snapshot(git)
    planned = plan_exchange(git, seen.tree, _on_top(git, base, seen.tree, wanted))
    # The snapshot does not have the content of these files, which would be lost.
    if unread := {path: seen.left_out[path] for path in planned.paths if path in seen.left_out}:
        raise Conflicts(reasons=unread).error(git.work_tree)
    return seen.tree, planned


def _on_top(git: Git, base: str, ours: str, theirs: str) -> str:
    return theirs if ours == base else merged(git, base, ours, theirs)


def discard_part(tree: Worktree, only: Selection, *, check: Callable[[TreeDiff], None]) -> tuple[FileStat, ...]:
    """Take some changes back in a session's worktrees, as if they had not been made. Return the files that differ. Blocks.

    Commits stay; their changes are taken back in the files. `check` and the errors are as in `apply`.
    """
    with ExitStack() as stack:
        _lock(tree, stack)
        sides = _sides(tree, stack)
        check(joined([side.diff for side in sides]))
        _check_paths(tree, only)
        planned: list[PlannedWrite] = []
        files: list[FileStat] = []
        for side in sides:
            own, chosen, now, patch = side.git, side.selected(only), side.snapshot.tree, side.patch()
            selected_tree(own, side.tree.base, now, patch, chosen)  # the selection must exist
            wanted = selected_tree(own, side.tree.base, now, patch, without(patch, chosen))
            planned.append(plan_exchange(own, now, wanted))
            files += compare(own, now, wanted, prefix=side.prefix).files
        write(planned)
        return tuple(files)


def merged(git: Git, base: str, ours: str, theirs: str) -> str:
    """Return the tree with the changes from `base` to `theirs` on top of `ours`. `git` is from `scratch`.

    Raises:
        ApplyConflict: Both change the same lines, or one removes a file that the other changes.
        WorktreeError: Git failed.
    """
    _check_version(git)
    git = git.without_merge_programs()
    # These commits exist for this merge only. The real merge base does not matter, only the changes.
    root = commit_object(git, base)
    sides = (commit_object(git, ours, root), commit_object(git, theirs, root))
    answer = git.run("merge-tree", "--write-tree", "-z", "--messages", *sides, accept=(0, 1))
    tree, _, rest = answer.output.partition(b"\0")
    if answer.code:
        raise _read_conflicts(git, tree.decode(), rest, sides).error(git.work_tree)
    return tree.decode()


def commit_object(git: Git, tree: str, *parents: str, message: str = "What was in the working tree") -> str:
    """Return a commit of Helmsman, on no branch."""
    named = {"user.name": "Helmsman", "user.email": "helmsman@localhost", "commit.gpgSign": "false"}
    arguments = [word for parent in parents for word in ("-p", parent)]
    return git.with_settings(named).text("commit-tree", "-m", message, *arguments, tree)


def _check_version(git: Git) -> None:
    told = git.text("version")
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST_GIT:
        raise WorktreeError(
            f"The main tree has moved on since the worktree was made, and {told} cannot merge without touching it. Use git "
            f"{_OLDEST_GIT[0]}.{_OLDEST_GIT[1]} or newer, or merge the worktree's branch by hand."
        )


def _read_conflicts(git: Git, tree: str, rest: bytes, sides: tuple[str, str]) -> Conflicts:
    """Parse conflicts: `mode id stage TAB path` per version of a file, an empty field, then messages.

    A message is a count, that many paths, the kind and the text.
    """

    def with_names(content: bytes) -> str:
        text = content.replace(sides[0].encode(), b"main tree").replace(sides[1].encode(), b"worktree")
        return text.decode("utf-8", "replace")

    fields = iter(rest.split(b"\0")[:-1])
    reasons: dict[bytes, str] = {}
    while version := next(fields, b""):
        reasons[version.partition(b"\t")[2]] = "changed on both sides"
    for count in fields:
        paths = [next(fields) for _ in range(int(count))]
        kind, words = next(fields), next(fields)
        if kind.startswith(b"CONFLICT"):
            reasons |= dict.fromkeys(paths, with_names(words).strip())
    conflicts = Conflicts()
    for path, reason in reasons.items():
        # If a file and a directory want the same name, git renames the file with the name of its side as a suffix.
        name = os.fsdecode(path).removesuffix(f"~{sides[0]}").removesuffix(f"~{sides[1]}")
        conflicts.reasons[name] = reason
        # With `-z`, because a path may contain a newline.
        blob = git.run("cat-file", "--batch", "-z", stdin=f"{tree}:".encode() + path + b"\0").output.partition(b"\n")[2]
        if hunks := _CONFLICT.findall(blob)[:_HUNKS]:
            conflicts.hunks[name] = [with_names(hunk)[:_HUNK_LENGTH] for hunk in hunks]
    return conflicts


# Commit a session's changes, and push the commits. All functions block.
#
# Git sees the repository through a view (`helmsman.git.command`): hooks of the repository do not run, its programs
# neither, and logins come from the user's own configuration alone.


_BRANCHES: Final = "refs/heads/"
_BRANCH: Final = re.compile(r"(?!-)[\w./+-]{1,200}")
_FIRST_REMOTE: Final = "origin"
_PROTOCOLS: Final = re.compile(r"(https?|ssh|git|file)://|[\w.-]+@[\w.-]+:|/")


@dataclass(frozen=True, kw_only=True)
class CommitMade:
    """A new commit. `branch` is the branch that it is on."""

    commit: str
    branch: str
    message: str
    directory: Path

    @property
    def title(self) -> str:
        return self.message.splitlines()[0]


@dataclass(frozen=True, kw_only=True)
class PushTarget:
    """Where commits are pushed: a remote of the repository and its address, and the branch that is the base there."""

    remote: str
    url: str
    base: str


class _Ready(NamedTuple):
    """Tree to commit on a branch. `refresh` makes the index there agree with the commit."""

    git: Git
    branch: str
    tree: str
    refresh: Callable[[], object]


def commit_worktrees(tree: Worktree, message: str, *, digest: str) -> tuple[CommitMade, ...]:
    """Commit everything in the worktrees of a session, each on its branch, if its digest is still the shown one.

    Return a commit for each repository with changes; all get one, or none.

    Raises:
        DiffChanged: A worktree has changed since.
        InvalidInput: There is nothing to commit, or the message is empty.
        WorktreeError: Another branch is checked out, or git fails.
    """
    ready = list[_Ready]()
    with ExitStack() as stack:
        sides = _sides(tree, stack, private_index)
        if joined([side.diff for side in sides]).digest != digest:
            raise DiffChanged(f"The changes in {tree.path} are not those shown. Nothing was committed; look again.")
        for side in sides:
            one, wanted, seen = side.tree, side.snapshot.tree, replace(side.git, index=None)
            branch = _branch_of(seen)
            if branch != one.branch:
                raise WorktreeError(
                    f"{one.path} is on {branch or 'no branch'}, not on {one.branch}. Check that out there, or commit by "
                    "hand."
                )
            # The worktree's own index was not used. With its old content, git would show the commit as undone.
            ready.append(_Ready(seen, one.branch, wanted, partial(seen.run, "read-tree", wanted)))
        return _commit(ready, message)


def commit_files(places: Iterable[tuple[Git, Sequence[str]]], message: str) -> tuple[CommitMade, ...]:
    """Commit these files of working trees as they are, on the branch that is checked out, and nothing else.

    Return a commit for each repository with changes; all get one, or none.

    Raises:
        InvalidInput: There is nothing to commit, or the message is empty.
        WorktreeError: No branch is checked out, or git fails.
    """
    ready = list[_Ready]()
    add = ("update-index", "--add", "--remove", "-z", "--stdin")
    with ExitStack() as stack:
        for git, paths in places:
            branch = _branch_of(git)
            if branch is None:
                raise WorktreeError(f"No branch is checked out in {git.work_tree}. Check one out, and try again.")
            listed = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
            own = stack.enter_context(private_index(git))
            seen = replace(own, index=None)
            own.run("read-tree", f"{_BRANCHES}{branch}")
            own.run(*add, stdin=listed)
            # Otherwise the user's index would show the commit as undone.
            ready.append(_Ready(seen, branch, own.text("write-tree"), partial(seen.run, *add, stdin=listed)))
        return _commit(ready, message)


def is_committed(tree: Worktree) -> bool:
    """Return whether everything in the worktrees of a session is committed."""

    def is_clean(one: Worktree) -> bool:
        check_present(one)
        with private_index(one.own_git) as own:
            return take_snapshot(own, one.included).tree == own.text("rev-parse", f"{_BRANCHES}{one.branch}^{{tree}}")

    return all(map(is_clean, tree.each))


def push_target(git: Git, *, branch: str, base: str | None = None, remote: str | None = None) -> PushTarget:
    """Return where a branch is pushed: the named remote, or `origin`, or the only one.

    Raises:
        InvalidInput: There is no such remote, or its address is none that git pushes to.
        WorktreeError: Git fails.
    """
    name, url = remote_of(git, remote)
    if base is None:
        head = git.ask("symbolic-ref", "--quiet", "--short", f"refs/remotes/{name}/HEAD")
        base = (
            head.removeprefix(f"{name}/")
            if head
            else next(
                (one for one in ("main", "master") if one != branch and git.has(f"refs/remotes/{name}/{one}")), "main"
            )
        )
    return PushTarget(remote=name, url=url, base=base)


def remote_of(git: Git, remote: str | None = None) -> tuple[str, str]:
    """Return the name and the address of a remote: the named one, or `origin`, or the only one.

    Raises:
        InvalidInput: There is no such remote, or its address is none that git pushes to.
    """
    remotes = git.run("remote").output.decode("utf-8", "replace").split()
    name = remote or (_FIRST_REMOTE if _FIRST_REMOTE in remotes else remotes[0] if len(remotes) == 1 else None)
    if name is None or name not in remotes:
        known = f"There are: {', '.join(remotes)}." if remotes else "There is none: git remote add origin URL"
        raise InvalidInput(f"{git.work_tree} has no remote {name or _FIRST_REMOTE}. {known}", parameter="remote")
    # As it is configured: git itself applies the user's `insteadOf` when it pushes.
    url = git.ask("config", "--get", f"remote.{name}.pushurl") or git.ask("config", "--get", f"remote.{name}.url") or ""
    if _PROTOCOLS.match(url) is None:
        raise InvalidInput(f"Remote {name} is {url!r:.200}, which is no address to push to.", parameter="remote")
    return name, url


def push(git: Git, url: str, commit: str, branch: str, *, only_try: bool = False) -> None:
    """Push a commit to a branch of another repository, or only try whether it can be. It is never forced.

    Raises:
        InvalidInput: The branch has a name that is not pushed.
        WorktreeError: The other side refuses, or cannot be reached.
    """
    if _BRANCH.fullmatch(branch) is None or ".." in branch:
        raise InvalidInput(f"{branch!r:.100} is no name for a branch. Use letters, digits, '-', '.' and '/'.")
    options = ["--dry-run"] if only_try else []
    git.run("push", "--porcelain", "--no-verify", *options, "--", url, f"{commit}:{_BRANCHES}{branch}")


def commits_since(git: Git, base: str, branch: str) -> list[str]:
    """Return the titles of the commits of a branch that are not in `base`, oldest first."""
    listed = git.run("log", "--reverse", "--format=%s", f"{base}..{_BRANCHES}{branch}").output
    return listed.decode("utf-8", "replace").splitlines()


def head_of(git: Git, branch: str) -> str:
    """Return the commit at the end of a branch."""
    return git.text("rev-parse", "--verify", f"{_BRANCHES}{branch}^{{commit}}")


def _branch_of(git: Git) -> str | None:
    name = git.ask("symbolic-ref", "--quiet", "HEAD")
    return name.removeprefix(_BRANCHES) if name is not None and name.startswith(_BRANCHES) else None


def _commit(ready: Sequence[_Ready], message: str) -> tuple[CommitMade, ...]:
    """Commit what differs from its branch. If a branch cannot be moved, those moved before are put back."""
    text = message.strip()
    if not text:
        raise InvalidInput("The message is empty. Nothing was committed.", parameter="message")
    title = text.splitlines()[0]
    stdin = f"{text}\n".encode("utf-8", "surrogateescape")
    planned: list[tuple[_Ready, Git, str, str]] = []
    for one in ready:
        before = head_of(one.git, one.branch)
        if one.git.text("rev-parse", f"{before}^{{tree}}") != one.tree:
            author = one.git.with_variables(**_author(one.git))
            made = author.run("commit-tree", one.tree, "-p", before, "-F", "-", stdin=stdin).output.decode().strip()
            planned.append((one, author, before, made))
    if not planned:
        raise InvalidInput(f"There is nothing to commit in {', '.join(str(one.git.work_tree) for one in ready)}.")
    with ExitStack() as undo:
        for one, author, before, commit in planned:
            reference = f"{_BRANCHES}{one.branch}"
            # With `before`, git refuses if the branch has moved since.
            author.run("update-ref", "-m", f"commit: {title}"[:200], reference, commit, before)
            undo.callback(author.ask, "update-ref", "-m", "commit undone", reference, before, commit)
        undo.pop_all()
    for one, *_ in planned:
        one.refresh()
    return tuple(
        CommitMade(commit=commit, branch=one.branch, message=text, directory=one.git.work_tree)
        for one, _, _, commit in planned
    )


def _author(git: Git) -> dict[str, str]:
    """Return the person's name and address as git is configured there, as variables.

    Raises:
        WorktreeError: They are not configured.
    """
    found: dict[str, str] = {}
    for key in ("name", "email"):
        answer = git.run_unviewed("config", "--default", "", "--get", f"user.{key}")
        value = answer.output.decode("utf-8", "replace").strip()
        if not value:
            raise WorktreeError(f"Git does not know who commits. Tell it: git config --global user.{key} …")
        found |= {f"GIT_AUTHOR_{key.upper()}": value, f"GIT_COMMITTER_{key.upper()}": value}
    return found


# --- Parts of a change: some of its files, and some of the hunks of a file --------------------------------------------

# A part is computed among git's objects: the tree before the change, with the chosen files taken from the tree after
# it, and chosen hunks applied by `git apply`. No working tree is read or written here. All functions block.

_HUNK: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_HUNK_LINE: Final = re.compile(rb"^(?=@@ )", re.MULTILINE)


def selected_tree(git: Git, before: str, after: str, patch: bytes, selection: Selection) -> str:
    """Return the tree `before` with the selected parts of the change to `after`. `git` is from `scratch`.

    `patch` is the whole change, as `helmsman.git.tree_changes` makes it.

    Raises:
        InvalidInput: The change has no such file or hunk, or the file has no hunks that can be separated.
        WorktreeError: Git failed.
    """
    known = _sections(patch)
    whole: set[str] = set()
    hunks = bytearray()
    for path, chosen in selection.items():
        if path not in known:
            raise InvalidInput(f"{path!r:.200} is not among these changes. Look at them again.", parameter="only")
        sections = known[path]
        if chosen is None:
            whole |= {
                path,
                *(one.file.old_path for one in sections if one.file.kind == "renamed" and one.file.old_path),
            }
        else:
            _check_hunks(path, sections, chosen)
            hunks += _with_hunks(sections[0].patch, chosen) if chosen else b""
    git.run("read-tree", before)
    _take_files(git, before, after, whole)
    if hunks:
        git.run("apply", "--cached", "--whitespace=nowarn", stdin=bytes(hunks))
    return git.text("write-tree")


def patches_by_path(patch: bytes) -> dict[str, bytes]:
    """Return the part of a patch about each file, by the path that is shown for it."""
    return {path: b"".join(one.patch for one in sections) for path, sections in _sections(patch).items()}


def marks_of(patch: bytes) -> dict[str, str]:
    """Return a mark for each file of a change that differs once the file's change differs."""
    return {path: diff_digest(part) for path, part in patches_by_path(patch).items()}


def without(patch: bytes, selection: Selection) -> dict[str, Collection[int] | None]:
    """Return the selection of everything else in a change."""
    rest: dict[str, Collection[int] | None] = {}
    for path, sections in _sections(patch).items():
        chosen = selection.get(path, ())
        if chosen is None:
            continue
        if not chosen:
            rest[path] = None
            continue
        _check_hunks(path, sections, chosen)
        left = frozenset(range(len(_hunks(sections[0].patch)[1]))) - {*chosen}
        if left:
            rest[path] = left
    return rest


def _check_hunks(path: str, sections: list[_Section], hunks: Collection[int]) -> None:
    """Check that a file has these hunks. They are separable where the file stays, with its name and its mode."""
    count = 0
    if len(sections) == 1 and sections[0].file.kind == "modified":
        header, found = _hunks(sections[0].patch)
        count = 0 if b"\nold mode " in header else len(found)
    if not count:
        raise InvalidInput(f"{path} has no parts that can be taken alone. Take the whole file.", parameter="only")
    if not all(0 <= hunk < count for hunk in hunks):
        raise InvalidInput(f"{path} has {count} hunks. Look at the changes again.", parameter="only")


def _take_files(git: Git, before: str, after: str, paths: Collection[str]) -> None:
    """Put these files into the index as they are in the tree `after`."""
    lines, found = bytearray(), set[str]()
    for one in git.differences(before, after):
        if shown(one.path) in paths:
            lines += f"{one.new_mode} {one.new_id}\t".encode() + os.fsencode(one.path) + b"\0"
            found.add(shown(one.path))
    if missing := sorted({*paths} - found):  # its name is shown in another way than git has it
        raise InvalidInput(f"{missing[0]} cannot be taken alone. Take all changes.", parameter="only")
    if lines:
        git.run("update-index", "-z", "--replace", "--index-info", stdin=bytes(lines))


class _Section(NamedTuple):
    """Part of a patch about one file."""

    file: FileDiff
    patch: bytes


def _sections(patch: bytes) -> dict[str, list[_Section]]:
    """Return the parts of a patch by the path that is shown for them."""
    found: dict[str, list[_Section]] = {}
    for section in file_patches(patch):
        file = read_diff(section.decode("utf-8", "replace"))[0]
        found.setdefault(file.path, []).append(_Section(file, section))
    return found


def _hunks(section: bytes) -> tuple[bytes, list[bytes]]:
    """Return the header of a file and its hunks. A line of content never begins with `@@`."""
    header, *hunks = _HUNK_LINE.split(section)
    return header, hunks


def _with_hunks(section: bytes, chosen: Collection[int]) -> bytes:
    """Return the patch of a file with some of its hunks, at the lines at which they now belong."""
    header, hunks = _hunks(section)
    patch, moved = bytearray(header), 0
    for number, hunk in enumerate(hunks):
        if number not in chosen:
            continue
        found = _HUNK.match(hunk)
        if found is None:
            raise WorktreeError("A hunk of this change cannot be read. Take the whole file.")
        # A count of 1 is left out.
        begin, old, new = int(found[1]), int(found[2] or 1), int(found[4] or 1)
        # A hunk without lines on one side names the line before it there.
        at = begin + moved + (old == 0) - (new == 0)
        patch += b"@@ -%d,%d +%d,%d @@" % (begin, old, at, new) + hunk[found.end() :]
        moved += new - old
    return bytes(patch)
