"""What is in a directory, to be compared."""

from __future__ import annotations

import os
from pathlib import Path

from helmsman.testing.repository import git

Content = dict[str, tuple[str, bytes]]


def content(root: Path) -> Content:
    """Every file and link below a directory by its path, without git's own: its kind and what is in it."""
    files = (path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    relative = ((str(path.relative_to(root)), path) for path in files)
    return {name: _one(path) for name, path in relative if name.partition("/")[0] != ".git"}


def everything(repository: Path) -> tuple[Content, bytes, str]:
    """A main tree to the byte: its files, its index, its branches and worktrees."""
    index = (repository / ".git" / "index").read_bytes()
    return content(repository), index, git(repository, "for-each-ref") + git(repository, "worktree", "list")


def _one(path: Path) -> tuple[str, bytes]:
    if path.is_symlink():
        return "link", os.fsencode(path.readlink())
    return "executable" if path.stat().st_mode & 0o100 else "file", path.read_bytes()
