"""One writer at a time among several processes: a lock on a file, released by the system when its holder dies."""

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
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + timeout
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{path} is held by another process")
            time.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)  # which gives the lock back


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
