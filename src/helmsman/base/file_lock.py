"""One holder at a time among several processes: a lock on a file, released by the system when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RETRY_SECONDS: Final = 0.01


@contextmanager
def file_lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold the lock for the length of the block.

    Raises:
        TimeoutError: Another process kept it for longer than `timeout` seconds.
        OSError: The file cannot be made.
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
    """Take the lock until it is released, or until this process ends; None while somebody else has it.

    Raises:
        OSError: The file cannot be made.
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
