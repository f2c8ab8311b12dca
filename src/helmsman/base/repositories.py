"""Where a git repository begins, seen from a directory inside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def repository_root(directory: Path) -> Path | None:
    """The root of the repository around a directory, or None outside of any. Never raises.

    A `.git` counts when it is a file (a worktree, a submodule) or has a HEAD: sandboxes leave empty ones behind.
    """
    for candidate in (directory, *directory.parents):
        mark = os.path.join(candidate, ".git")  # noqa: PTH118 - os.path does not raise where one may not look
        if os.path.isfile(mark) or os.path.exists(os.path.join(mark, "HEAD")):  # noqa: PTH110, PTH113, PTH118
            return candidate
    return None
