"""How long a question may still be answered.

The clock stands still while the question is on screen: in a foreground prompt, on a visible page, in an open form. Who shows
it says so with a lease that is soon over, so that a killed tab or a closed laptop stops counting by itself. However often it
is shown, it ends 24 hours after it was asked. A question that waits until somebody answers has a clock without an end.

Whoever has the service keeps the clock. A program's copy of a session has a copy of it, and passes on what it shows. The
next hub counts from when the question was asked. For how long it was on screen is not written down, so there is a minute
left at least.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.concurrency import background_tasks
from helmsman.base.structs import Value, replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LEASE_SECONDS: Final = 15.0
LONGEST_SECONDS: Final = 24 * 3600.0
_LEAST_SECONDS: Final = 60.0
"""What the next hub leaves of the time to answer: whoever shows the question has to come back to say so."""
_RENEW_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
_VIEWERS: Final = 100


class TimeLeft(Value, frozen=True, kw_only=True):
    """`left` seconds at the time `at`, less from the moment on at which nobody has a lease, nothing at the time `end`.

    All times are monotonic. Every change first comes up to date (`at_time`), so that all leases began before `at`.
    """

    left: float
    at: float
    end: float
    leases: Mapping[str, float]
    timeout: float
    """How much there was at first."""

    @classmethod
    def new(cls, timeout: float, now: float, asked_ago: float = 0.0) -> TimeLeft:
        """What is left for a question that was asked so many seconds ago, of another hub. `math.inf` waits for ever."""
        left = max(timeout - asked_ago, min(timeout, _LEAST_SECONDS))
        end = now - asked_ago + LONGEST_SECONDS if timeout < math.inf else math.inf
        return cls(left=left, at=now, end=end, leases={}, timeout=timeout)

    @property
    def _shown_until(self) -> float:
        return max(self.leases.values(), default=self.at)

    def seconds(self, now: float) -> float:
        """How much is left."""
        ran = max(0.0, now - max(self.at, self._shown_until))
        return max(0.0, min(self.left - ran, self.end - now))

    def is_paused(self, now: float) -> bool:
        return now < min(self._shown_until, self.end)

    def runs_out(self) -> float:
        """When nothing is left, unless somebody shows it meanwhile."""
        return min(max(self.at, self._shown_until) + self.left, self.end)

    def at_time(self, now: float) -> TimeLeft:
        leases = {viewer: until for viewer, until in self.leases.items() if until > now}
        ran = max(0.0, now - max(self.at, self._shown_until))
        return replace(self, left=max(0.0, self.left - ran), at=max(now, self.at), leases=leases)

    def shown(self, viewer: str, now: float, seconds: float = LEASE_SECONDS) -> TimeLeft:
        """On screen for so long from now on."""
        fresh = self.at_time(now)
        if len(fresh.leases) >= _VIEWERS and viewer not in fresh.leases:
            return fresh
        return replace(fresh, leases={**fresh.leases, viewer: now + seconds})

    def shifted(self, by: float) -> TimeLeft:
        """The same by a clock that is so much ahead: that of another machine."""
        leases = {viewer: until + by for viewer, until in self.leases.items()}
        return replace(self, at=self.at + by, end=self.end + by, leases=leases)

    def hidden(self, viewer: str, now: float) -> TimeLeft:
        fresh = self.at_time(now)
        return replace(fresh, leases={one: until for one, until in fresh.leases.items() if one != viewer})


class Deadline:
    """The time one question has left, and whoever shows it.

    Args:
        time_left: What is left of it.
        clock: The monotonic clock, which all processes of a machine share.
        pass_on: Told who shows it, and for how many seconds: of a copy, whose clock another process keeps.
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
        """Who is told when it is shown, or is not any more."""
        self._pass_on = pass_on
        self._changed = anyio.Event()
        self._viewer = secrets.token_hex(4)
        self._showing = 0
        self.is_being_answered = False
        """An answer is on its way to Codex: too late to say no for want of one."""

    # --- what is true ------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        return self.time_left.seconds(self.clock())

    @property
    def is_paused(self) -> bool:
        return self.time_left.is_paused(self.clock())

    @property
    def has_end(self) -> bool:
        """Whether the question is denied some day; else it waits until somebody answers."""
        return self.time_left.end < math.inf

    def as_dict(self) -> dict[str, Any] | None:
        """What is left of it, as every door shows it; None where it waits until somebody answers."""
        return {"secondsLeft": round(self.seconds), "paused": self.is_paused} if self.has_end else None

    def why_over(self) -> str:
        """Why the time is up, in words."""
        most = LONGEST_SECONDS if self.clock() >= self.time_left.end else self.time_left.timeout
        return f"nobody answered in {in_words(min(most, LONGEST_SECONDS))}"

    async def passed(self) -> None:
        """Return when the time is up."""
        while (left := self.time_left.runs_out() - self.clock()) > 0:
            with anyio.move_on_after(left):
                await self._changed.wait()

    # --- who shows it ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def shown(self, is_visible: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
        """It is on screen for the length of the block, whenever `is_visible`."""
        self._showing += 1
        viewer = f"{self._viewer}.{self._showing}"
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(self._keep_shown, viewer, is_visible)
                yield
        finally:
            self.release(viewer)

    def lease(self, viewer: str, seconds: float = LEASE_SECONDS) -> None:
        """It is on screen now; who shows it for longer says so again."""
        self.change(self.time_left.shown(viewer, self.clock(), seconds))
        self._pass_on(viewer, seconds)

    def release(self, viewer: str) -> None:
        """It is not on that screen any more."""
        self.change(self.time_left.hidden(viewer, self.clock()))
        self._pass_on(viewer, 0.0)

    def change(self, time_left: TimeLeft) -> None:
        """So much is left from now on."""
        self.time_left = time_left
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
            elif until - now < LEASE_SECONDS - _RENEW_SECONDS:
                self.lease(viewer)
                until = now + LEASE_SECONDS
            await anyio.sleep(_LOOK_SECONDS)


def countdown(seconds: float, *, paused: bool) -> str:
    """The time left as a sentence for people."""
    if seconds == math.inf:
        return "Waits until it is answered."
    left = in_words(seconds)
    return f"{left} left to answer, paused while it is on screen." if paused else f"Denied in {left} unless answered."


def in_words(seconds: float) -> str:
    """A time as the countdown says it: `4 min 30 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
