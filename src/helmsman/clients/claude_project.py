"""Find the project directory that Claude Code uses as the key of a project's servers.

Observed with Claude Code 2.1: the nearest directory with a `.git` of any kind; for a worktree, its repository;
otherwise the directory itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_WORKTREE: Final = re.compile(r"gitdir: *(?P<repository>.+)[/\\]\.git[/\\]worktrees[/\\][^/\\]+\s*")


def claude_project(directory: Path) -> Path:
    """Return the project's directory. Never raises."""
    for candidate in (directory, *directory.parents):
        mark = candidate / ".git"
        try:
            if mark.is_file():
                worktree = _WORKTREE.fullmatch(mark.read_text(encoding="utf-8", errors="replace"))
                return candidate if worktree is None else Path(worktree["repository"])
            if mark.exists():
                return candidate
        except OSError:  # a directory without read access is not the project
            continue
    return directory
