"""A leash: a child may go on only while whoever holds its other end goes on saying so.

A worker of a fleet works for as long as its lease is renewed. When it hangs, is stopped, or loses the database, others take
its tasks over, and what it has started must be gone by then. So the keeper of such a child is told of each renewal through a
pipe, and kills the child, with all that is below it, when none has come for too long, or when the pipe is closed: at once,
however the holder ended. Time is counted as the machine does that sleeps meanwhile.

The keeper looks at it in a thread of its own: nothing that it does otherwise can delay that. Standard library only.
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
"""A machine that slept is noticed so soon: waiting does not count the time it slept."""
_READ_BYTES: Final = 8192 * _STAMP.size


def leash_time() -> float:
    """Now, in seconds since the machine started, also of those it slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Leash:
    """The holder's end, for any number of keepers. What is on it ends when it is closed, or when this process ends.

    `seconds` is how long a renewal is good for: a lease less what its end takes.
    """

    def __init__(self, seconds: float, *, renewed_at: float | None = None) -> None:
        self.id = secrets.token_hex(8)
        self.seconds = seconds
        self._lock = threading.Lock()
        self._renewed_at = leash_time() if renewed_at is None else renewed_at
        self._ends: set[int] | None = set()

    def renew(self, at: float) -> None:
        """The lease was renewed. `at` is when that was asked for (`leash_time`), not when the answer came."""
        with self._lock:
            self._renewed_at = max(self._renewed_at, at)
            for end in tuple(self._ends or ()):
                try:
                    os.write(end, _STAMP.pack(self._renewed_at))
                except BlockingIOError:  # the keeper has been stopped, and has more than enough to read
                    continue
                except OSError:  # it has ended
                    self._drop(end)

    @contextmanager
    def tied(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """For a keeper that is about to be started: the descriptor it has to inherit, and what its order says of it."""
        ours, theirs = os.pipe()[::-1]
        os.set_blocking(ours, False)
        try:
            with self._lock:
                if self._ends is None:
                    os.close(ours)  # what is started now ends at once
                else:
                    self._ends.add(ours)
                renewed_at = self._renewed_at
            yield theirs, {"descriptor": theirs, "seconds": self.seconds, "renewed_at": renewed_at}
        finally:
            os.close(theirs)

    def close(self) -> None:
        """Let all that is on it end. Doing so twice is as good as once."""
        with self._lock:
            for end in tuple(self._ends or ()):
                self._drop(end)
            self._ends = None

    def _drop(self, end: int) -> None:
        assert self._ends is not None
        self._ends.discard(end)
        with contextlib.suppress(OSError):
            os.close(end)


class OnLeash:
    """The keeper's end."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._descriptor = int(said["descriptor"])
        self._seconds = float(said["seconds"])
        self._renewed_at = float(said["renewed_at"])
        os.set_inheritable(self._descriptor, False)

    def watch(self, when_cut: Callable[[str], None]) -> None:
        """Call this, from a thread, as soon as the child may not go on, with the reason."""
        threading.Thread(target=lambda: when_cut(self._until_cut()), name="leash", daemon=True).start()

    def _until_cut(self) -> str:
        wait = 0.0  # what has come already counts before the time does
        while True:
            if select.select([self._descriptor], [], [], wait)[0]:
                said = os.read(self._descriptor, _READ_BYTES)
                if not said:
                    return "its holder has ended"
                for (at,) in _STAMP.iter_unpack(said):
                    self._renewed_at = max(self._renewed_at, min(at, leash_time()))
            left = self._renewed_at + self._seconds - leash_time()
            if left <= 0:
                return f"its lease was not renewed for {self._seconds:g} s"
            wait = min(left, _LOOK_SECONDS)
