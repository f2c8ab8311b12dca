"""Which repository the work in a worktree counts for, also when the worktree is long gone.

A worktree's path says nothing to a person, and is different for every session. Its record says which repository it is of;
when it is discarded, that much is kept, a line each, in a file of the state directory.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.git_view import repository_root
from helmsman.settings import WORKTREES, ensure_state_dir
from helmsman.worktrees.records import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def projects(state_dir: Path) -> Callable[[str | None], str | None]:
    """Which project the work in a directory counts for: its repository, whichever link, subdirectory or worktree it is done
    in, else the directory. Reads files; blocks.
    """
    place = places(state_dir)
    known: dict[str | None, str | None] = {None: None}

    def project(directory: str | None) -> str | None:
        if directory not in known:
            real = Path(os.path.realpath(place(directory) or ""))
            root = repository_root(real)
            known[directory] = str(real if root is None else _main_tree(root))
        return known[directory]

    return project


def _main_tree(root: Path) -> Path:
    """The repository's own working tree, where this is a worktree of it. Both must say so: what a repository's files say
    alone could have the work in it count for another.
    """
    mark = root / ".git"
    try:
        if not mark.is_file():
            return root
        git_dir = Path(os.path.realpath(root / mark.read_text(encoding="utf-8").removeprefix("gitdir:").strip()))
        back = Path(os.path.realpath(git_dir / (git_dir / "gitdir").read_text(encoding="utf-8").strip()))
        common = Path(os.path.realpath(git_dir / (git_dir / "commondir").read_text(encoding="utf-8").strip()))
    except (OSError, ValueError):
        return root
    return common.parent if back == mark and common.name == ".git" else root


def _past(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
            entry = json.loads(line)
            yield str(entry["name"]), str(entry["repository"])
