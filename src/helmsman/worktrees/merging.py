"""What the main tree would hold with a worktree's changes in it, worked out among git's objects before a file is touched."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from helmsman.base.patches import Conflicts
from helmsman.errors import WorktreeError

if TYPE_CHECKING:
    from helmsman.base.git import Git

_OLDEST_GIT: Final = (2, 38)
"""The first that can merge without a working tree."""

_HUNKS: Final = 10
_HUNK_LENGTH: Final = 2000
"""So much of a conflict is shown: enough to see what it is about, not a whole generated file."""

_CONFLICT: Final = re.compile(rb"^<{7} .*?^>{7} .*?$", re.MULTILINE | re.DOTALL)


def merge(git: Git, base: str, ours: str, theirs: str) -> str:
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
