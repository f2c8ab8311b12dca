"""Git worktrees for sessions: isolated working trees whose changes are shown, applied or discarded as a whole.

All functions block; call them in threads. Submodules are imported on first use: most sessions have no worktree, and
imports delay the start of every service.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from helmsman.worktrees.applying import Applied, apply
    from helmsman.worktrees.changes import TreeDiff, Unsaved, diff, diff_of_directory, unsaved
    from helmsman.worktrees.lifecycle import Discarded, Leftover, adopt, assign, create, discard, leftovers, prune
    from helmsman.worktrees.records import worktree_of

__all__ = [
    "Applied",
    "Discarded",
    "Leftover",
    "TreeDiff",
    "Unsaved",
    "adopt",
    "apply",
    "assign",
    "create",
    "diff",
    "diff_of_directory",
    "discard",
    "leftovers",
    "prune",
    "unsaved",
    "worktree_of",
]

_MODULES: Final = {
    "applying": ("Applied", "apply"),
    "changes": ("TreeDiff", "Unsaved", "diff", "diff_of_directory", "unsaved"),
    "lifecycle": ("Discarded", "Leftover", "adopt", "assign", "create", "discard", "leftovers", "prune"),
    "records": ("worktree_of",),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
