"""End an agent whose worker has lost its lease.

A worker of a fleet may work as long as it renews its lease. When it hangs, is stopped, or loses the database, other
workers take over its tasks, and its agents must be gone by then. So the worker reports each renewal to the supervisors
of its agents through a pipe. A supervisor kills its agent, with all descendants, when no renewal has come for too long,
or when the pipe is closed. Time includes the time the machine sleeps.

The supervisor watches the pipe in a separate thread, so that nothing else delays it. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import struct
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_STAMP: Final = struct.Struct("<d")
_LOOK_SECONDS: Final = 0.25
"""Seconds between checks of the clock, because a wait does not count the time that the machine slept."""
_READ_BYTES: Final = 8192 * _STAMP.size


def lease_time() -> float:
    """Return the seconds since the machine started, including those it slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ProcessLease:
    """Worker's end, for any number of supervisors. Their agents end when it is closed, or when this process ends.

    `seconds` is the validity of a renewal: the lease, less the time it takes to end the agents.
    """

    def __init__(self, seconds: float, *, renewed_at: float | None = None) -> None:
        self.id = secrets.token_hex(8)
        self.seconds = seconds
        self._lock = threading.Lock()
        self._renewed_at = lease_time() if renewed_at is None else renewed_at
        self._ends: set[int] | None = set()

    def renew(self, at: float) -> None:
        """Report a renewal. `at` is when it was requested (`lease_time`), not when the answer came."""
        with self._lock:
            self._renewed_at = max(self._renewed_at, at)
            for end in tuple(self._ends or ()):
                try:
                    os.write(end, _STAMP.pack(self._renewed_at))
                except BlockingIOError:  # the supervisor is stopped, and has enough to read
                    continue
                except OSError:  # it has ended
                    self._drop(end)

    @contextmanager
    def shared(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the descriptor that a new supervisor has to inherit, and the part of its order about it."""
        ours, theirs = os.pipe()[::-1]
        # A supervisor that is stopped must not block the worker's renewals.
        os.set_blocking(ours, False)
        try:
            with self._lock:
                if self._ends is None:
                    os.close(ours)  # the new agent ends immediately
                else:
                    self._ends.add(ours)
                renewed_at = self._renewed_at
            yield theirs, {"descriptor": theirs, "seconds": self.seconds, "renewed_at": renewed_at}
        finally:
            os.close(theirs)

    def close(self) -> None:
        """End all agents. May be called more than once."""
        with self._lock:
            for end in tuple(self._ends or ()):
                self._drop(end)
            self._ends = None

    def _drop(self, end: int) -> None:
        assert self._ends is not None
        self._ends.discard(end)
        with contextlib.suppress(OSError):
            os.close(end)


class LeaseWatchdog:
    """Supervisor's end of a `ProcessLease`."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._descriptor = int(said["descriptor"])
        self._seconds = float(said["seconds"])
        self._renewed_at = float(said["renewed_at"])
        # The agent must not hold the pipe open, or the end of the worker would go unnoticed.
        os.set_inheritable(self._descriptor, False)

    def watch(self, when_lost: Callable[[str], None]) -> None:
        """Call `when_lost` from a thread, with the reason, as soon as the lease is lost."""
        threading.Thread(target=lambda: when_lost(self._until_lost()), name="lease watchdog", daemon=True).start()

    def _until_lost(self) -> str:
        wait = 0.0  # read what has come before looking at the time
        while True:
            if select.select([self._descriptor], [], [], wait)[0]:
                said = os.read(self._descriptor, _READ_BYTES)
                if not said:
                    return "its holder has ended"
                for (at,) in _STAMP.iter_unpack(said):
                    # A time in the future would extend the lease, for example after a damaged write.
                    self._renewed_at = max(self._renewed_at, min(at, lease_time()))
            left = self._renewed_at + self._seconds - lease_time()
            if left <= 0:
                return f"its lease was not renewed for {self._seconds:g} s"
            wait = min(left, _LOOK_SECONDS)
