"""Which repository the work in a worktree counts for, also when the worktree is long gone.

A worktree's path says nothing to a person, and is different for every session. Its record says which repository it is of;
when it is discarded, that much is kept, a line each, in a file of the state directory.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Final

from helmsman.settings import WORKTREES, ensure_state_dir
from helmsman.worktrees.records import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from helmsman.worktrees.records import Worktree

PAST_WORKTREES: Final = "past-worktrees.jsonl"


def remember_place(tree: Worktree) -> None:
    """Keep which repository a worktree is of. That it cannot be written is no reason to keep the worktree."""
    line = json.dumps({"name": tree.name, "repository": str(tree.repository)}) + "\n"
    with contextlib.suppress(OSError):
        path = ensure_state_dir(tree.state_dir) / PAST_WORKTREES
        path.touch(mode=0o600)
        with path.open("ab", buffering=0) as file:  # one write, so that two processes do not mix their lines
            file.write(line.encode("ascii"))


def places(state_dir: Path) -> Callable[[str | None], str | None]:
    """Where the work in a directory belongs: in a worktree's repository, else where it is. Reads files; blocks."""
    repositories = dict(_past(state_dir / PAST_WORKTREES)) | {
        tree.name: str(tree.repository) for tree in read_records(state_dir)
    }
    roots = {str(state_dir / WORKTREES), str(state_dir.resolve() / WORKTREES)}

    def place(directory: str | None) -> str | None:
        for root in roots:
            if directory is not None and directory.startswith(root + os.sep):
                name, _, inside = directory[len(root) + 1 :].partition(os.sep)
                repository = repositories.get(name)
                return directory if repository is None else os.path.join(repository, inside).rstrip(os.sep)  # noqa: PTH118
        return directory

    return place


def _past(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
            entry = json.loads(line)
            yield str(entry["name"]), str(entry["repository"])
