"""Which directory Claude Code takes for the project one is in: the key of a project's own servers in its file.

Observed with Claude Code 2.1: the nearest directory that has a `.git`, whatever that is; from a worktree, the repository it
belongs to; without any, the directory itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_WORKTREE: Final = re.compile(r"gitdir: *(?P<repository>.+)[/\\]\.git[/\\]worktrees[/\\][^/\\]+\s*")


def claude_project(directory: Path) -> Path:
    """The project's directory. Never raises."""
    for candidate in (directory, *directory.parents):
        mark = candidate / ".git"
        try:
            if mark.is_file():
                worktree = _WORKTREE.fullmatch(mark.read_text(encoding="utf-8", errors="replace"))
                return candidate if worktree is None else Path(worktree["repository"])
            if mark.exists():
                return candidate
        except OSError:  # a directory one may not look into is not the project one is in
            continue
    return directory
