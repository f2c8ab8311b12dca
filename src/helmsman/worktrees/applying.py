"""A worktree's changes into the main tree: all of them, or nothing.

Where the main tree has moved on, both are merged among git's objects, before a file is touched; how what comes out is
written is the same for all changes (`helmsman.base.patches`).
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
    from helmsman.worktrees.records import Worktree


_OLDEST_GIT: Final = (2, 38)
"""The first that can merge without a working tree."""

_HUNKS: Final = 10
_HUNK_LENGTH: Final = 2000
"""So much of a conflict is shown: enough to see what it is about, not a whole generated file."""

_CONFLICT: Final = re.compile(rb"^<{7} .*?^>{7} .*?$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was brought over. `three-way`: the main tree had moved on since the worktree was made, so both were merged.

    `files` are those of the main tree that are different for it; `diff` is what had been changed in the worktree.
    """

    files: tuple[FileStat, ...]
    how: Literal["clean", "three-way"]
    diff: TreeDiff


def apply(tree: Worktree, *, allow_dirty: bool = False, check: Callable[[TreeDiff], None] | None = None) -> Applied:
    """Bring all that was changed in a worktree into the main tree. Blocks; call it in a thread.

    The worktree stays as it is.

    Args:
        tree: The worktree.
        allow_dirty: Go on where the main tree has uncommitted changes, as long as they are in other files.
        check: Given the very changes that are about to be brought over, whatever happens in the worktree meanwhile. What
            it raises refuses them.

    Raises:
        DirtyTree: The main tree has uncommitted changes. Untracked files do not count unless they are in the way.
        ApplyConflict: The changes do not fit. Nothing was touched.
        WorktreeError: Git cannot do it, or a file cannot be written. Nothing was touched, or all was put back.
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
    """The tree that has the changes from `base` to `theirs` on top of `ours`. `git` is from `scratch`.

    Raises:
        ApplyConflict: They touch the same lines, or one removes what the other changes.
        WorktreeError: Git cannot do it.
    """
    _check_version(git)
    git = git.without_merge_programs()
    # The commits exist for this merge alone. Where the branches really parted does not matter, only what was changed.
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
    """`mode id stage TAB path` for each version of each file, an empty field, then messages: a count, so many paths, the
    kind, the words."""

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
        # Where a file and a directory want one name, git gives the file another, with the name of its side at the end.
        name = os.fsdecode(path).removesuffix(f"~{sides[0]}").removesuffix(f"~{sides[1]}")
        conflicts.reasons[name] = reason
        blob = git.run("cat-file", "--batch", "-z", stdin=f"{tree}:".encode() + path + b"\0").output.partition(b"\n")[2]
        if hunks := _CONFLICT.findall(blob)[:_HUNKS]:
            conflicts.hunks[name] = [with_names(hunk)[:_HUNK_LENGTH] for hunk in hunks]
    return conflicts
