"""Take a snapshot of a working tree as a git tree: committed, staged, changed and new files, but no ignored ones.

The repository is not modified: its index is only read (a copy is updated), and objects go to a temporary directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import field

from helmsman.base.files import temporary_directory
from helmsman.base.structs import Value, replace
from helmsman.errors import WorktreeError
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from helmsman.git.command import Git


_MB: Final = 1024 * 1024
_MOST_FILES: Final = 200_000
"""Limit on files: they are compared in memory."""
_KINDS: Final = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Snapshot(Value, frozen=True, kw_only=True):
    """Snapshot of a working tree. `nested` are repositories inside the tree, which git cannot read.

    `left_out` maps paths that cannot be part of the snapshot to the reason: pipes, sockets, devices, files that are too
    large or unreadable. The snapshot has the committed version of a tracked file among them.
    """

    tree: str
    nested: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """Limits of the new and changed files in a snapshot, in bytes: of one file, of all; and what `takes` them."""

    largest: int
    most: int
    takes: str


@contextmanager
def private_index(git: Git) -> Iterator[Git]:
    """Yield the same working tree with a temporary index. New objects go to the repository."""
    with git.viewed() as seen, temporary_directory(ensure_state_dir(git.place), "git-index") as folder:
        yield replace(seen, index=Path(folder) / "index")


@contextmanager
def scratch(git: Git, objects: Path | None = None) -> Iterator[Git]:
    """Yield the same working tree with a temporary index and object store.

    Both are in the state directory, out of reach of Codex's sandbox. Two working trees of a repository can share a
    store with `objects`.
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
    """Return the content of the working tree without the paths in `leave_out`. `git` is from `scratch`.

    `check` gets the changed and new files before they are read, and may refuse them.

    Raises:
        WorktreeError: A file cannot be read.
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
    odd = odd_files(git.work_tree, changed) | _unlisted_files(git, {*nested})
    index_files(git, changed - odd.keys())
    if leave_out:  # it may have been added to the index, or committed
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=nul_separated(leave_out))
    return Snapshot(
        tree=git.text("write-tree"),
        nested=tuple(path.rstrip("/") for path in nested),
        left_out=dict(sorted(odd.items())),
    )


_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for a file that was deleted, also where a file or a link took the place of its directory."""
COMPARED: Final = SizeLimits(largest=100 * _MB, most=1024 * _MB, takes="a comparison takes")


def odd_files(root: Path, paths: Collection[str], limits: SizeLimits | None = None) -> dict[str, str]:
    """Return the paths that git must not read, each with the reason. Only their metadata is looked at.

    Raises:
        WorktreeError: There are too many files, or they are too much together.
    """
    if len(paths) > _MOST_FILES:
        raise WorktreeError(
            f"{len(paths)} files of {root} are new or changed, and at most {_MOST_FILES} are compared. Name what is "
            "generated in .gitignore."
        )
    limits = limits or COMPARED
    odd: dict[str, str] = {}
    total = 0
    for path in paths:
        try:
            found = os.lstat(f"{root}/{path}")
        except OSError as error:
            if error.errno not in _GONE:
                odd[path] = error.strerror or "it cannot be read"
            continue
        if stat.S_ISREG(found.st_mode):
            if found.st_size > limits.largest:
                odd[path] = f"{found.st_size / _MB:,.0f} MB, more than {limits.largest // _MB} MB"
            elif not os.access(f"{root}/{path}", os.R_OK):
                odd[path] = "it cannot be read"
            else:
                total += found.st_size
        elif not stat.S_ISLNK(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            odd[path] = _KINDS.get(stat.S_IFMT(found.st_mode), "no ordinary file")
    if total > limits.most:
        raise WorktreeError(
            f"{len(paths)} new or changed files of {root} are {total // _MB} MB, and {limits.takes} {limits.most // _MB} MB "
            "at most. Add generated files to .gitignore."
        )
    return odd


def _unlisted_files(git: Git, nested: Collection[str]) -> dict[str, str]:
    """Return new pipes, sockets and devices with their types: git does not list them. Ignored ones are left out."""
    ignored = git.names("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    skipped = {".git/", *nested, *ignored}
    found: dict[str, str] = {}
    folders = [""]
    while folders:
        below = folders.pop()
        with suppress(OSError), os.scandir(f"{git.work_tree}/{below}") as entries:
            for entry in entries:
                path = f"{below}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if f"{path}/" not in skipped:
                        folders.append(f"{path}/")
                elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                    kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                    found[path] = _KINDS.get(kind, "no ordinary file")
    if found:
        asked = git.run("check-ignore", "-z", "--stdin", stdin=nul_separated(found), accept=(0, 1)).output
        for ignored_path in asked.split(b"\0"):
            found.pop(os.fsdecode(ignored_path), None)
    return found


def index_files(git: Git, paths: Iterable[str]) -> None:
    """Bring an index of our own up to date with what the working tree has at these paths."""
    root = os.fspath(git.work_tree)

    @cache
    def leads_elsewhere(folder: str) -> bool:
        return folder != "" and (os.path.islink(f"{root}/{folder}") or leads_elsewhere(os.path.dirname(folder)))  # noqa: PTH114, PTH120

    def is_gone(path: str) -> bool:
        """Return whether a path is gone.

        A path may still resolve through a directory that became a link, or be a directory now.
        """
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
