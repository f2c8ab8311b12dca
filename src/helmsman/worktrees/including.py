"""Ignored files that a worktree needs all the same, `.env` for one: `.worktreeinclude` of the repository names them.

The file has gitignore's syntax. Copied is what it names and git ignores in the main tree: never what git tracks or would
show as new, nothing from outside of the repository, no link and nothing behind one, and only so much. Git itself says what
a pattern means. What was copied is written down with the worktree, and is no change of the session's, whatever becomes of
`.gitignore`.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from helmsman.base.shown_text import named
from helmsman.base.snapshot import nul_separated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from helmsman.worktrees.records import Worktree

INCLUDE_FILE: Final = ".worktreeinclude"
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_FILES: Final = 2000
"""Enough for configuration, not for dependencies: a set-up command is for those."""
_PATTERNS_BYTES: Final = 64 * 1024
_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Included:
    """What was copied, and in a sentence or two what was and what was not; None where nothing was named."""

    files: tuple[str, ...] = ()
    note: str | None = None


def include(tree: Worktree) -> Included:
    """Copy what `.worktreeinclude` of the main tree names into a new worktree. Blocks.

    Raises:
        WorktreeError: Git says no.
    """
    patterns = tree.repository / INCLUDE_FILE
    if patterns.is_symlink() or not patterns.is_file():
        return Included()
    try:
        if patterns.stat().st_size > _PATTERNS_BYTES:
            return Included(note=f"{INCLUDE_FILE} is larger than {_PATTERNS_BYTES} bytes, so nothing was copied.")
        paths = _named_and_ignored(tree)
    except OSError as error:
        return Included(note=f"{INCLUDE_FILE} cannot be read ({error.strerror}), so nothing was copied.")
    copied: list[str] = []
    left: dict[str, list[str]] = {}
    room = _MOST_BYTES
    for path in paths:
        try:
            reason, size = _copy(tree.repository / path, tree, path, room, len(copied))
        except OSError as error:
            reason, size = error.strerror or "it cannot be read", 0
        room -= size
        if reason is None:
            copied.append(path)
        else:
            left.setdefault(reason, []).append(path)
    return Included(files=tuple(copied), note=_note(copied, left))


def _named_and_ignored(tree: Worktree) -> list[str]:
    git = tree.main_git
    others = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={tree.repository / INCLUDE_FILE}")
    with git.viewed() as seen:
        found = [path for path in seen.names(*others) if not path.endswith("/")]
        if not found:
            return []
        answer = seen.run("check-ignore", "-z", "--stdin", stdin=nul_separated(found), accept=(0, 1))
    ignored = {os.fsdecode(path) for path in answer.output.split(b"\0") if path}
    return [path for path in found if path in ignored]


def _copy(source: Path, tree: Worktree, path: str, room: int, files: int) -> tuple[str | None, int]:
    """Copy one file: the reason why it was not, and how many bytes."""
    target = tree.path / path
    if _behind_a_link(tree.repository, path) or _behind_a_link(tree.path, path):
        return "links are not followed", 0
    if os.path.lexists(target):
        return "it is in the last commit", 0
    opened = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(opened, "rb") as content:
        status = os.fstat(content.fileno())
        if not stat.S_ISREG(status.st_mode):
            return "it is no ordinary file", 0
        if status.st_size > room or files >= _MOST_FILES:
            return f"more than {_MOST_BYTES // 1024 // 1024} MB or {_MOST_FILES} files are not copied", 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as copy:
            shutil.copyfileobj(content, copy)
        target.chmod(stat.S_IMODE(status.st_mode) & 0o777)
    return None, status.st_size


def _behind_a_link(root: Path, path: str) -> bool:
    parts = PurePosixPath(path).parts
    return any((root / Path(*parts[:count])).is_symlink() for count in range(1, len(parts) + 1))


def _note(copied: Sequence[str], left: dict[str, list[str]]) -> str | None:
    told: list[str] = []
    if copied:
        told.append(f"Copied into the worktree, as {INCLUDE_FILE} says: {_some(copied)}.")
    told += [f"Not copied: {_some(paths)} ({reason})." for reason, paths in left.items()]
    return " ".join(told) or None


def _some(paths: Iterable[str]) -> str:
    every = [named(path) for path in paths]
    more = len(every) - _NAMED
    return ", ".join(every[:_NAMED]) + (f" and {more} more" if more > 0 else "")
