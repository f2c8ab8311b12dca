"""Write and remove files below a directory without following links.

A process that an agent left behind may replace a directory with a link between a check and a write, so that we would
write outside. So each directory on the path is opened without following links, and all operations use the open
directory.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePath

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def put_file(root: Path, path: PurePath, version: Path, *, beside: str, like: Path) -> None:
    """Put a file or link in place atomically; `beside` is its temporary name.

    Missing directories are created with the permissions that they have below `like`. An empty directory at the path is
    removed.

    Raises:
        OSError: It cannot be written, or part of the path is not a directory of this tree.
    """
    with _opened(root, path.parent, like) as folders:
        at = folders[-1]
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=at)
        _copy(version, beside, at)
        if stat.S_ISDIR(_mode(path.name, at)):
            _remove_empty(path.name, at)
        os.replace(beside, path.name, src_dir_fd=at, dst_dir_fd=at)


def remove_file(root: Path, path: PurePath) -> None:
    """Remove a file or link, and the directories that become empty.

    Raises:
        OSError: It cannot be removed, or part of the path is not a directory of this tree.
    """
    with suppress(FileNotFoundError), _opened(root, path.parent) as folders:
        mode = _mode(path.name, folders[-1])
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            os.unlink(path.name, dir_fd=folders[-1])
        for name, above in zip(reversed(path.parent.parts), folders[-2::-1], strict=True):
            try:
                os.rmdir(name, dir_fd=above)
            except OSError:
                return


@contextmanager
def _opened(root: Path, inside: PurePath, like: Path | None = None) -> Iterator[list[int]]:
    """Yield the directories from the root to one inside, opened; with `like` those that are missing are made."""
    with ExitStack() as stack:
        folders: list[int] = []

        def step(folder: int) -> None:
            stack.callback(os.close, folder)
            folders.append(folder)

        step(os.open(root, _FOLDER & ~os.O_NOFOLLOW))
        for name in inside.parts:
            like = None if like is None else like / name
            try:
                step(os.open(name, _FOLDER, dir_fd=folders[-1]))
            except FileNotFoundError:
                if like is None:
                    raise
                os.mkdir(name, dir_fd=folders[-1])
                step(os.open(name, _FOLDER, dir_fd=folders[-1]))
                if like.is_dir():
                    os.fchmod(folders[-1], stat.S_IMODE(like.stat().st_mode))
            except OSError as error:
                raise OSError(f"{name!r} on the way to it is no directory, or leads elsewhere ({error})") from error
        yield folders


def _copy(version: Path, name: str, at: int) -> None:
    if version.is_symlink():
        os.symlink(version.readlink(), name, dir_fd=at)
        return
    new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at)
    with version.open("rb") as source, os.fdopen(new, "wb") as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        about = os.fstat(source.fileno())
        os.fchmod(copy.fileno(), stat.S_IMODE(about.st_mode))
        os.utime(copy.fileno(), ns=(about.st_atime_ns, about.st_mtime_ns))
        with suppress(OSError, AttributeError):  # not available on every system and file system
            for attribute in os.listxattr(source.fileno()):
                os.setxattr(copy.fileno(), attribute, os.getxattr(source.fileno(), attribute))


def _mode(name: str, at: int) -> int:
    """Return the file type, or 0 if there is no file."""
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _remove_empty(name: str, at: int) -> None:
    """Remove a directory that contains only directories."""
    folder = os.open(name, _FOLDER, dir_fd=at)
    try:
        for inside in os.listdir(folder):  # noqa: PTH208 - a path may be another directory by now
            _remove_empty(inside, folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=at)
