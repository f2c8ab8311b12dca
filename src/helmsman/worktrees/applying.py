"""Apply a worktree's changes to the main tree, all or nothing.

If the main tree has changed since, both are merged as git objects before any file is touched. `helmsman.base.patches`
writes the result.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from helmsman.base.patches import Conflicts, apply_tree, one_at_a_time, refuse_repositories
from helmsman.base.snapshot import scratch, take_snapshot
from helmsman.errors import WorktreeError
from helmsman.worktrees.changes import TreeDiff, check_present, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.base.git import Git
    from helmsman.model.unified_diff import FileStat
    from helmsman.model.worktree import Worktree


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


def apply(tree: Worktree, *, allow_dirty: bool = False, check: Callable[[TreeDiff], None] | None = None) -> Applied:
    """Apply all changes of a worktree to the main tree. Blocks; call it in a thread.

    The worktree is not modified.

    Args:
        tree: The worktree.
        allow_dirty: Accept uncommitted changes in the main tree, if they are in other files.
        check: Receives exactly the changes that will be applied, even if the worktree changes concurrently. An
            exception it raises cancels the apply.

    Raises:
        DirtyTree: The main tree has uncommitted changes. Untracked files count only if they are in the way.
        ApplyConflict: The changes do not fit. Nothing was touched.
        WorktreeError: Git failed, or a file cannot be written. Nothing was touched, or everything was restored.
    """
    check_present(tree)
    if not tree.repository.is_dir() or not tree.main_git.has("HEAD^{commit}"):
        raise WorktreeError(f"{tree.repository} is gone or has no commit at HEAD. Check out the branch to apply to.")
    with one_at_a_time(tree.main_git), scratch(tree.own_git) as own, scratch(tree.main_git, own.objects) as main:
        snapshot = take_snapshot(own, tree.included)
        diff = compare(own, tree.base, snapshot.tree, snapshot)
        if check is not None:
            check(diff)
        refuse_repositories(snapshot.nested)
        head, base = (main.text("rev-parse", "--verify", f"{commit}^{{tree}}") for commit in ("HEAD", tree.base))
        wanted = snapshot.tree if head == base else merged(main, base, head, snapshot.tree)
        apply_tree(main, wanted, allow_dirty=allow_dirty)
        files = diff.files if head == base else compare(main, head, wanted).files
        return Applied(files=files, how="clean" if head == base else "three-way", diff=diff)


def merged(git: Git, base: str, ours: str, theirs: str) -> str:
    """Return the tree with the changes from `base` to `theirs` on top of `ours`. `git` is from `scratch`.

    Raises:
        ApplyConflict: Both change the same lines, or one removes a file that the other changes.
        WorktreeError: Git failed.
    """
    _check_version(git)
    git = git.without_merge_programs()
    # These commits exist for this merge only. The real merge base does not matter, only the changes.
    root = _commit(git, base)
    sides = (_commit(git, ours, root), _commit(git, theirs, root))
    answer = git.run("merge-tree", "--write-tree", "-z", "--messages", *sides, accept=(0, 1))
    tree, _, rest = answer.output.partition(b"\0")
    if answer.code:
        raise _read_conflicts(git, tree.decode(), rest, sides).error(git.work_tree)
    return tree.decode()


def _commit(git: Git, tree: str, *parents: str) -> str:
    named = {"user.name": "Helmsman", "user.email": "helmsman@localhost", "commit.gpgSign": "false"}
    arguments = [word for parent in parents for word in ("-p", parent)]
    return git.with_settings(named).text("commit-tree", "-m", "worktree", *arguments, tree)


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
        blob = git.run("cat-file", "--batch", "-z", stdin=f"{tree}:".encode() + path + b"\0").output.partition(b"\n")[2]
        if hunks := _CONFLICT.findall(blob)[:_HUNKS]:
            conflicts.hunks[name] = [with_names(hunk)[:_HUNK_LENGTH] for hunk in hunks]
    return conflicts
