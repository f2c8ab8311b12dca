"""Time limit for answering a question.

The clock is paused while the question is on screen: in a foreground prompt, on a visible page or in an open form. A
viewer holds a short lease and renews it, so a killed tab or a closed laptop stops counting. A question expires at the
latest 24 hours after it was asked, however often it is shown. A question with an infinite timeout never expires.

The process that runs the service keeps the clock. A program's copy of a session has a copy of the clock and reports
what it shows. The next hub counts from the time the question was asked. The time on screen is not stored, so the next
hub leaves at least a minute.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from helmsman.base.concurrency import background_tasks
from helmsman.base.structs import Value, replace

LEASE_SECONDS: Final = 15.0
LONGEST_SECONDS: Final = 24 * 3600.0
_LEAST_SECONDS: Final = 60.0
"""Minimum after a restart of the hub: viewers need time to reconnect and renew their leases."""
_RENEW_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
_VIEWERS: Final = 100


class TimeLeft(Value, frozen=True, kw_only=True):
    """Remaining time: `left` seconds at time `at`, running while no lease is valid, and zero at time `end`.

    All times are monotonic. Every change first updates the value (`at_time`), so all leases began before `at`.
    """

    left: float
    at: float
    end: float
    leases: Mapping[str, float]
    timeout: float
    """Initial number of seconds."""

    @classmethod
    def new(cls, timeout: float, now: float, asked_ago: float = 0.0) -> TimeLeft:
        """Start the clock of a question that was asked `asked_ago` seconds ago, by another hub. `math.inf` never
        expires.
        """
        # A question that was just found again must not expire before viewers can reconnect.
        left = max(timeout - asked_ago, min(timeout, _LEAST_SECONDS))
        end = now - asked_ago + LONGEST_SECONDS if timeout < math.inf else math.inf
        return cls(left=left, at=now, end=end, leases={}, timeout=timeout)

    @property
    def _shown_until(self) -> float:
        return max(self.leases.values(), default=self.at)

    def seconds(self, now: float) -> float:
        """Return the seconds left."""
        # While a lease is valid the time does not run; after its end it runs from there.
        ran = max(0.0, now - max(self.at, self._shown_until))
        return max(0.0, min(self.left - ran, self.end - now))

    def is_paused(self, now: float) -> bool:
        return now < min(self._shown_until, self.end)

    def runs_out(self) -> float:
        """Return the time of expiry, if no lease is added."""
        return min(max(self.at, self._shown_until) + self.left, self.end)

    def at_time(self, now: float) -> TimeLeft:
        # Expired leases have stopped the clock up to their end, which the seconds above account for.
        leases = {viewer: until for viewer, until in self.leases.items() if until > now}
        ran = max(0.0, now - max(self.at, self._shown_until))
        return replace(self, left=max(0.0, self.left - ran), at=max(now, self.at), leases=leases)

    def shown(self, viewer: str, now: float, seconds: float = LEASE_SECONDS) -> TimeLeft:
        """Add or extend a lease."""
        fresh = self.at_time(now)
        # A client that invents viewers must not fill the memory.
        if len(fresh.leases) >= _VIEWERS and viewer not in fresh.leases:
            return fresh
        return replace(fresh, leases={**fresh.leases, viewer: now + seconds})

    def shifted(self, by: float) -> TimeLeft:
        """Convert to a clock that is ahead by `by` seconds, as on another machine."""
        leases = {viewer: until + by for viewer, until in self.leases.items()}
        # Monotonic clocks of two machines differ, so times are shifted and not copied.
        return replace(self, at=self.at + by, end=self.end + by, leases=leases)

    def hidden(self, viewer: str, now: float) -> TimeLeft:
        fresh = self.at_time(now)
        return replace(fresh, leases={one: until for one, until in fresh.leases.items() if one != viewer})


class Deadline:
    """Clock of one question, and its viewers.

    Args:
        time_left: The remaining time.
        clock: The monotonic clock, which all processes of a machine share.
        pass_on: Receives viewer and lease seconds; for a copy of a clock that another process keeps.
    """

    def __init__(
        self,
        time_left: TimeLeft,
        *,
        clock: Callable[[], float] = time.monotonic,
        pass_on: Callable[[str, float], None] = lambda _viewer, _seconds: None,
    ) -> None:
        self.time_left = time_left
        self.clock = clock
        self.watchers: dict[object, Callable[[], None]] = {}
        """Callbacks for changes of the leases or the remaining time."""
        self._pass_on = pass_on
        self._changed = anyio.Event()
        self._viewer = secrets.token_hex(4)
        self._showing = 0
        self.is_being_answered = False
        """Set while an answer is sent to the agent, so that the deadline does not deny the question."""

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        return self.time_left.seconds(self.clock())

    @property
    def is_paused(self) -> bool:
        return self.time_left.is_paused(self.clock())

    @property
    def has_end(self) -> bool:
        """Return whether the question expires."""
        return self.time_left.end < math.inf

    def as_dict(self) -> dict[str, Any] | None:
        """Return the remaining time for clients; None if the question does not expire."""
        return {"secondsLeft": round(self.seconds), "paused": self.is_paused} if self.has_end else None

    def why_over(self) -> str:
        """Return the reason for the expiry."""
        most = LONGEST_SECONDS if self.clock() >= self.time_left.end else self.time_left.timeout
        return f"no answer in {in_words(min(most, LONGEST_SECONDS))}"

    async def passed(self) -> None:
        """Wait until the time is up."""
        while (left := self.time_left.runs_out() - self.clock()) > 0:
            # Any change of the leases moves the end, so look again after it.
            with anyio.move_on_after(left):
                await self._changed.wait()

    # --- viewers -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def shown(self, is_visible: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
        """Hold a lease for the length of the block, while `is_visible` returns true."""
        self._showing += 1
        viewer = f"{self._viewer}.{self._showing}"
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(self._keep_shown, viewer, is_visible)
                yield
        finally:
            self.release(viewer)

    def lease(self, viewer: str, seconds: float = LEASE_SECONDS) -> None:
        """Pause the clock for `seconds`; viewers renew the lease."""
        self.change(self.time_left.shown(viewer, self.clock(), seconds))
        self._pass_on(viewer, seconds)

    def release(self, viewer: str) -> None:
        """End the lease of a viewer."""
        self.change(self.time_left.hidden(viewer, self.clock()))
        self._pass_on(viewer, 0.0)

    def change(self, time_left: TimeLeft) -> None:
        """Replace the remaining time and notify waiters and watchers."""
        self.time_left = time_left
        # Wake those who wait, and give later ones a new event.
        self._changed.set()
        self._changed = anyio.Event()
        for tell in self.watchers.values():
            tell()

    async def _keep_shown(self, viewer: str, is_visible: Callable[[], bool]) -> None:
        until = 0.0
        while True:
            now = self.clock()
            if not is_visible():
                if until:
                    self.release(viewer)
                until = 0.0
            # Renewed well before its end, so that a slow moment does not end the lease.
            elif until - now < LEASE_SECONDS - _RENEW_SECONDS:
                self.lease(viewer)
                until = now + LEASE_SECONDS
            await anyio.sleep(_LOOK_SECONDS)


def countdown(seconds: float, *, paused: bool) -> str:
    """Return the remaining time as a sentence."""
    if seconds == math.inf:
        return "Waits until it is answered."
    left = in_words(seconds)
    return f"{left} left to answer, paused while it is on screen." if paused else f"Denied in {left} unless answered."


def in_words(seconds: float) -> str:
    """Format a duration, for example `4 min 30 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
