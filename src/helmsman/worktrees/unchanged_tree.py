"""Detect changes in a working tree without starting git.

A mark is a hash of everything that determines a snapshot: every file with its times, and git's index, configuration and
ignore files. Equal marks mean that nothing has changed. A mark costs less than one start of git for up to `MOST_FILES`
files. There is no mark for larger trees and for trees with nested repositories.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Final

from helmsman.base import caller_context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from helmsman.base.git import Git

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
