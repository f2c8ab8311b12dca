"""Git worktrees for sessions: several work on one repository without meeting, and what they did is shown, brought over or
dropped as a whole.

All of it is plain functions on git that block; call them in threads.
"""

from helmsman.worktrees.applying import Applied, apply
from helmsman.worktrees.changes import FileStat, TreeDiff, diff, diff_of_directory
from helmsman.worktrees.lifecycle import Discarded, Leftover, assign, create, discard, leftovers, prune
from helmsman.worktrees.records import Worktree, adopt, worktree_of
from helmsman.worktrees.unsaved import Unsaved, unsaved

__all__ = [
    "Applied",
    "Discarded",
    "FileStat",
    "Leftover",
    "TreeDiff",
    "Unsaved",
    "Worktree",
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
