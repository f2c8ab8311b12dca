"""What the main tree would hold with a worktree's changes in it, worked out among git's objects before a file is touched."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from helmsman.base.git import shown
from helmsman.errors import ApplyConflict, WorktreeError

if TYPE_CHECKING:
    from helmsman.base.git import Git

_OLDEST_GIT: Final = (2, 38)
"""The first that can merge without a working tree."""

_NAMED_FILES: Final = 10
_HUNKS: Final = 10
_HUNK_LENGTH: Final = 2000
"""So much of a conflict is shown: enough to see what it is about, not a whole generated file."""

_CONFLICT: Final = re.compile(rb"^<{7} .*?^>{7} .*?$", re.MULTILINE | re.DOTALL)
_OURS, _THEIRS = b"main tree", b"worktree"


@dataclass(slots=True)
class Conflicts:
    """Files that cannot be brought over, with the reason and, where lines clash, the lines."""

    reasons: dict[bytes, str] = field(default_factory=dict)
    hunks: dict[bytes, list[str]] = field(default_factory=dict)

    def error(self) -> ApplyConflict:
        paths = sorted(self.reasons)
        first = "; ".join(f"{shown(path)} ({self.reasons[path]})" for path in paths[:_NAMED_FILES])
        more = f" and {len(paths) - _NAMED_FILES} more" if len(paths) > _NAMED_FILES else ""
        return ApplyConflict(
            f"The changes do not fit the main tree: {first}{more}. Nothing was touched. Commit or move away what is in "
            "the way, or merge the worktree's branch by hand.",
            conflicts=[shown(path) for path in paths],
            reasons={shown(path): reason for path, reason in self.reasons.items()},
            hunks={shown(path): hunks for path, hunks in self.hunks.items()},
        )


def merge(git: Git, base: str, ours: str, theirs: str) -> str:
    """The tree that has the changes from `base` to `theirs` on top of `ours`. `git` is from `scratch`.

    Raises:
        ApplyConflict: They touch the same lines, or one removes what the other changes.
        WorktreeError: Git cannot do it.
    """
    _check_version(git)
    git = git.with_settings(_no_merge_programs(git))
    # The commits exist for this merge alone. Where the branches really parted does not matter, only what was changed.
    root = _commit(git, base)
    sides = (_commit(git, ours, root), _commit(git, theirs, root))
    answer = git.run("merge-tree", "--write-tree", "-z", "--messages", *sides, accept=(0, 1))
    tree, _, rest = answer.output.partition(b"\0")
    if answer.code:
        raise _read_conflicts(git, tree.decode(), rest, sides).error()
    return tree.decode()


def _commit(git: Git, tree: str, *parents: str) -> str:
    named = {"user.name": "Helmsman", "user.email": "helmsman@localhost", "commit.gpgSign": "false"}
    arguments = [word for parent in parents for word in ("-p", parent)]
    return git.with_settings(named).text("commit-tree", "-m", "worktree", *arguments, tree)


def _no_merge_programs(git: Git) -> dict[str, str]:
    """Merge programs that attributes may choose are not run: a file that needs one is a conflict."""
    configured = git.run("config", "-z", "--name-only", "--get-regexp", r"^merge\..*\.driver$", accept=(0, 1)).output
    return {name.decode("utf-8", "surrogateescape"): "false" for name in configured.split(b"\0") if name}


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
    fields = iter(rest.split(b"\0")[:-1])
    conflicts = Conflicts()
    while version := next(fields, b""):
        conflicts.reasons[version.partition(b"\t")[2]] = "changed on both sides"
    for count in fields:
        paths = [next(fields) for _ in range(int(count))]
        kind, words = next(fields).decode("utf-8", "replace"), next(fields)
        if kind.startswith("CONFLICT"):
            reason = shown(_with_names(words, sides)).strip()
            conflicts.reasons |= dict.fromkeys(paths, reason)
    for path in conflicts.reasons:
        hunks = _hunks(_with_names(_blob(git, tree, path), sides))
        if hunks:
            conflicts.hunks[path] = hunks
    return Conflicts(
        reasons={_own_name(path, sides): reason for path, reason in conflicts.reasons.items()},
        hunks={_own_name(path, sides): hunks for path, hunks in conflicts.hunks.items()},
    )


def _own_name(path: bytes, sides: tuple[str, str]) -> bytes:
    """Where a file and a directory want one name, git gives the file another, with the name of its side at the end."""
    return path.removesuffix(f"~{sides[0]}".encode()).removesuffix(f"~{sides[1]}".encode())


def _with_names(content: bytes, sides: tuple[str, str]) -> bytes:
    return content.replace(sides[0].encode(), _OURS).replace(sides[1].encode(), _THEIRS)


def _blob(git: Git, tree: str, path: bytes) -> bytes:
    asked = git.run("cat-file", "--batch", "-z", stdin=f"{tree}:".encode() + path + b"\0").output
    return asked.partition(b"\n")[2]


def _hunks(content: bytes) -> list[str]:
    found = _CONFLICT.findall(content)[:_HUNKS]
    return [hunk.decode("utf-8", "replace")[:_HUNK_LENGTH] for hunk in found]
