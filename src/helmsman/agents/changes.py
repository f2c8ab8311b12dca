"""File changes that agents report: with the number of changed lines, from two texts, and as questions show them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import present
from helmsman.base.structs import replace
from helmsman.git.diff import read_change
from helmsman.model.change_diff import diff_lines
from helmsman.model.events import PathChange

if TYPE_CHECKING:
    from helmsman.model.events import ChangeKind


def counted(change: PathChange) -> PathChange:
    """Return a change with the numbers of lines that its diff adds and removes."""
    read = read_change(change)
    return replace(change, added=read.added, removed=read.removed)


def change_of(path: str, kind: ChangeKind, diff: str) -> PathChange:
    """Return a change with its counts."""
    return counted(PathChange(path=path, kind=kind, diff=diff))


def update_of(path: str, old: str, new: str) -> PathChange:
    """Return the change of a file from one text to another."""
    hunks = list(difflib.unified_diff(diff_lines(old), diff_lines(new), n=3))[2:]
    return change_of(path, "update", "".join(hunks))


def as_details(change: PathChange) -> dict[str, Any]:
    """Return a change as the details of a question have it."""
    return present(
        {
            "path": change.path,
            "kind": change.kind,
            "movedTo": change.moved_to,
            "added": change.added,
            "removed": change.removed,
        }
    )
