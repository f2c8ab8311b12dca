"""Find and end the hub of a test."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from helmsman.hub.launch import LOCK

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS = 10.0
_GENTLE_SECONDS = 1.0
_POLL = 0.005


def hub_pid(state_dir: Path) -> int | None:
    """Return the process id of a state directory's hub. It holds the lock; a starting hub has not written its id yet."""
    if sys.platform == "win32":
        return None
    import fcntl

    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            lock = os.open(state_dir / LOCK, os.O_RDWR)
        except OSError:
            return None
        try:
            # A lock that can be taken means that no hub runs.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The holder writes its id into the file after it has the lock.
            said = os.pread(lock, 100, 0).split()
        else:
            return None
        finally:
            os.close(lock)
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid = int(said[1])
            # The id may be of a hub that has just ended.
            os.kill(pid, 0)
            return pid
        if time.monotonic() > deadline:
            raise TimeoutError(f"Somebody holds {state_dir / LOCK} and does not say who it is.")
        time.sleep(_POLL)


def end_hub(state_dir: Path) -> None:
    """End the hub of a state directory and wait for its exit; kill it if it does not end."""
    began = time.monotonic()
    pid = hub_pid(state_dir)
    while pid is not None and (taken := time.monotonic() - began) < _SECONDS:
        with contextlib.suppress(OSError):
            # A hub that hangs must not hang the tests.
            os.kill(pid, signal.SIGTERM if taken < _GENTLE_SECONDS else getattr(signal, "SIGKILL", signal.SIGTERM))
        time.sleep(_POLL)
        pid = hub_pid(state_dir)
