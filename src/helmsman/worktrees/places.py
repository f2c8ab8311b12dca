"""Map directories to the repository they belong to, including those of deleted worktrees.

The path of a worktree differs for every session and means nothing to a person. Its record names the repository. When a
worktree is discarded, one line in a file of the state directory keeps that mapping.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.repositories import enclosing_roots
from helmsman.base.user_directories import home_directory
from helmsman.settings import WORKTREES, ensure_state_dir
from helmsman.worktrees.records import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helmsman.model.worktree import Worktree

PAST_WORKTREES: Final = "past-worktrees.jsonl"


def remember_place(tree: Worktree) -> None:
    """Record the repository of a worktree. Write errors are ignored, so that the worktree can still be removed."""
    line = json.dumps({"name": tree.name, "repository": str(tree.repository)}) + "\n"
    with contextlib.suppress(OSError):
        path = ensure_state_dir(tree.state_dir) / PAST_WORKTREES
        path.touch(mode=0o600)
        with path.open("ab", buffering=0) as file:  # one write, so that lines of two processes never mix
            file.write(line.encode("ascii"))


def places(state_dir: Path) -> Callable[[str | None], str | None]:
    """Return a function that maps a directory in a worktree to its repository. Reads files; blocks."""
    repositories, roots = _repositories(state_dir), _roots(state_dir)

    def place(directory: str | None) -> str | None:
        for root in roots:
            if directory is not None and directory.startswith(root + os.sep):
                name, _, inside = directory[len(root) + 1 :].partition(os.sep)
                repository = repositories.get(name)
                return directory if repository is None else os.path.join(repository, inside).rstrip(os.sep)  # noqa: PTH118
        return directory

    return place


def directories_of(directory: str, state_dir: Path) -> frozenset[str]:
    """Return every directory that belongs to this one, including its counterparts in worktrees and deleted worktrees.

    Reads files; blocks.
    """
    real = os.path.realpath(directory)
    found = {directory, real}
    for name, repository in _repositories(state_dir).items():
        if real == repository or real.startswith(repository + os.sep):
            found |= {f"{root}/{name}{real[len(repository) :]}" for root in _roots(state_dir)}
    return frozenset(found)


def _repositories(state_dir: Path) -> dict[str, str]:
    """Return the repository of each worktree, by name."""
    live = {tree.name: str(tree.repository) for tree in read_records(state_dir)}
    return dict(_past(state_dir / PAST_WORKTREES)) | live


def _roots(state_dir: Path) -> set[str]:
    return {str(state_dir / WORKTREES), str(state_dir.resolve() / WORKTREES)}


def projects(state_dir: Path) -> Callable[[str | None], str | None]:
    """Return a function that maps a directory to its project. Reads files; blocks.

    The project is the outermost repository, resolved through links, subdirectories, submodules and worktrees; outside a
    repository it is the directory itself. The outermost one is used because an agent can create a repository inside the
    directories it may write, but none around them.
    """
    place = places(state_dir)
    home = user_home()
    known: dict[str | None, str | None] = {None: None}

    def project(directory: str | None) -> str | None:
        if directory not in known:
            known[directory] = _project_of(os.path.realpath(place(directory) or ""), home)
        return known[directory]

    return project


def user_home() -> str:
    """Return the real path of the user's home directory."""
    return os.path.realpath(home_directory(os.environ))


def _project_of(directory: str, home: str) -> str:
    seen: set[str] = set()
    while directory not in seen:
        seen.add(directory)
        roots = enclosing_roots(directory, home)
        main = next((main for root in roots if (main := _main_tree(root)) is not None), None)
        if main is None:
            return roots[-1] if roots else directory
        directory = main
    return directory


def _main_tree(root: str) -> str | None:
    """Return the main working tree of a worktree; None for everything else.

    The worktree must be registered inside the repository's git directory. Otherwise an agent could write a `.git` file
    and a git directory to have its work counted for another project.
    """
    mark = os.path.join(root, ".git")  # noqa: PTH118
    try:
        if not Path(mark).is_file():
            return None
        named = Path(mark).read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        git_dir = Path(os.path.realpath(Path(root) / named))
        back = os.path.realpath(git_dir / (git_dir / "gitdir").read_text(encoding="utf-8").strip())
        common = Path(os.path.realpath(git_dir / (git_dir / "commondir").read_text(encoding="utf-8").strip()))
    except (OSError, ValueError):
        return None
    is_registered = back == mark and git_dir.parent == common / "worktrees" and common.name == ".git"
    return str(common.parent) if is_registered else None


def _past(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
            entry = json.loads(line)
            yield str(entry["name"]), str(entry["repository"])
