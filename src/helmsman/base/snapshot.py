"""All that is in a working tree, as a git tree: committed, staged, changed, new, with what .gitignore names left out.

Nothing is disturbed by it: the tree's own index is only read (a copy is brought up to date), and objects go to a
directory that is gone afterwards.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.base.temporary import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from helmsman.base.git import Git


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`nested` are repositories that lie in the tree without being part of it; git cannot look into them."""

    tree: str
    nested: tuple[str, ...]


@contextmanager
def scratch(git: Git, objects: Path | None = None) -> Iterator[Git]:
    """The same working tree with an index and an object store beside the repository's, both gone after the block.

    They are in the state directory, where nothing that runs in Codex's sandbox can change them. With `objects`, that store
    is used: two working trees of a repository can then share what they make.
    """
    with (
        git.viewed() as seen,
        temporary_directory(git.place, "git-objects") as name,
    ):
        folder = Path(name)
        (folder / "objects").mkdir()
        yield replace(seen, index=folder / "index", objects=objects or folder / "objects")


def take_snapshot(
    git: Git, leave_out: Collection[str] = (), check: Callable[[Collection[str]], None] | None = None
) -> Snapshot:
    """The content of the working tree, but for what is to be left out. `git` is from `scratch`.

    `check` is given the files that are about to be read, changed or new, and may refuse them.

    Raises:
        WorktreeError: Something in the tree cannot be read.
    """
    assert git.index is not None
    with suppress(FileNotFoundError):  # nothing was ever added
        # With its time: by that git knows which files may have changed since without showing it.
        shutil.copy2(git.git_dir / "index", git.index)
    listed = git.names("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard")
    nested = [path for path in dict.fromkeys(listed) if path.endswith("/")]
    changed = {*listed} - {*nested} - {*leave_out}
    if check is not None:
        check(changed)
    index_files(git, changed)
    if leave_out:  # somebody may have added it to the index, or have committed it
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=nul_separated(leave_out))
    return Snapshot(tree=git.text("write-tree"), nested=tuple(path.rstrip("/") for path in nested))


def index_files(git: Git, paths: Iterable[str]) -> None:
    """Bring an index of our own up to date with what the working tree has at these paths."""
    root = os.fspath(git.work_tree)

    @cache
    def leads_elsewhere(folder: str) -> bool:
        return folder != "" and (os.path.islink(f"{root}/{folder}") or leads_elsewhere(os.path.dirname(folder)))  # noqa: PTH114, PTH120

    def is_gone(path: str) -> bool:
        """Files may still be seen behind a directory that became a link, and directories where a file was."""
        here = f"{root}/{path}"
        is_folder = os.path.isdir(here) and not os.path.islink(here)  # noqa: PTH112, PTH114
        became_folder = is_folder and not os.path.lexists(f"{here}/.git")
        return became_folder or leads_elsewhere(os.path.dirname(path))  # noqa: PTH120

    gone = {path for path in paths if is_gone(path)}
    for options, which in (("--force-remove",), gone), (("--add", "--remove", "--replace"), {*paths} - gone):
        if which:
            git.run("update-index", "-z", *options, "--stdin", stdin=nul_separated(which))


def nul_separated(paths: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)
