"""Files that others read while they are written, each whole; locks among processes; and where callers may work."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

_CREATE_SECONDS: Final = 10.0
"""Timeout for another process that is creating a file. It writes a few bytes, but the disk may be slow."""


def replace_file(
    path: Path,
    content: str | bytes,
    *,
    mode: int | None = 0o600,
    last_look: Callable[[], None] | None = None,
    durable: bool = True,
) -> None:
    """Replace a file atomically. A failure leaves no temporary file behind.

    The file is private to this user unless `mode` says otherwise; a `mode` of None uses the umask. `last_look` runs
    right before the new file replaces the old one, and keeps the old one if it raises. Without `durable`, the file is
    not synced to disk: faster, but lost if the machine crashes.

    Raises:
        OSError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    data = content.encode("utf-8") if isinstance(content, str) else content
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        if last_look is not None:
            last_look()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def create_once(path: Path, content: str) -> str:
    """Return the content of a file, after writing `content` if it is empty. Concurrent callers all get the same text.

    A file may be empty because a process was killed before it wrote.

    Raises:
        OSError: It cannot be read or written.
    """
    if not (known := _text_of(path)):
        with file_lock(path.with_name(f"{path.name}.lock"), timeout=_CREATE_SECONDS):
            if not (known := _text_of(path)):
                replace_file(path, known := content)
    return known


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


# --- locks ------------------------------------------------------------------------------------------------------------

# Mutual exclusion between processes: a lock on a file, which the system releases when the process dies.


_RETRY_SECONDS: Final = 0.01


@contextmanager
def file_lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold a file lock during the block.

    Raises:
        TimeoutError: Another process held it for longer than `timeout` seconds.
        OSError: The file cannot be created.
    """
    deadline = time.monotonic() + timeout
    while (held := take_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{path} is held by another process")
        time.sleep(_RETRY_SECONDS)
    try:
        yield
    finally:
        release_lock(held)


def take_lock(path: Path) -> int | None:
    """Lock a file until it is released or this process ends. Return None while another process holds the lock.

    Raises:
        OSError: The file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if _try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def release_lock(held: int) -> None:
    """Give back what `take_lock` gave."""
    os.close(held)


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --- allowed roots ----------------------------------------------------------------------------------------------------

# Check of paths against the allowed roots (`HELMSMAN_ALLOWED_ROOTS`), used everywhere. Links are resolved first, so a
# link inside a root that leads outside is outside.


def size_and_time(path: Path | os.DirEntry[str]) -> tuple[int, int]:
    """Return the size of a file, and when it changed, in nanoseconds; zeros where it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def is_one_of(directory: str | None, places: Collection[str] | None) -> bool:
    """Return whether a directory is one of these, also by a symbolic link. Without places, every directory is."""
    if places is None or directory in places:
        return True
    try:
        return directory is not None and os.path.realpath(directory) in places
    except (OSError, ValueError):
        return False


def changed_at(path: Path) -> datetime:
    """Return when a file was last modified, or the epoch if it is gone."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return datetime.fromtimestamp(0, UTC)


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file or directory, or, or None."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_inside(path: str | os.PathLike[str], roots: Sequence[Path]) -> bool:
    """Return whether it is one of these directories or in one of them. The roots have their links resolved already."""
    place = Path(path)
    try:
        resolved = place.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or no path at all
        return False
    return place.is_absolute() and any(map(resolved.is_relative_to, roots))


def refuse_outside(path: str | os.PathLike[str], roots: Sequence[Path], parameter: str) -> None:
    """Make sure that a place is inside the allowed roots, where there are some.

    Where `parameter` is an id, the caller did not name the place, and the error does not reveal it.

    Raises:
        InvalidInput: It is outside.
    """
    if roots and not is_inside(path, roots):
        allowed = ", ".join(map(str, roots))
        named = "What this id names" if parameter.endswith("_id") else os.fspath(path)
        raise InvalidInput(f"{named} is outside the allowed roots. Choose one inside: {allowed}.", parameter=parameter)
