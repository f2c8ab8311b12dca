"""How long a question may still be answered: one clock for a question, whichever process and door it is open in.

The clock stands still while the question is on screen: in a foreground prompt, on a visible page, in an open form. Who shows
it says so with a lease that is soon over, so that a killed tab or a closed laptop stops counting by itself. However often it
is shown, it ends 24 hours after it was asked.

Several processes may have the same question open (a server that runs the session, a dashboard, `helmsman watch`), so the
clock is a small file in the state directory: `TimeLeft`, by the system's monotonic clock, which is the same for all of them
and stands still while the machine sleeps. A question that every process has left (its engine goes on without them) is not
denied by who comes back: its time begins anew, within the 24 hours. Who answers writes there who it was, for the others to
tell. Where the file cannot be used each process keeps time for itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.base.concurrency import background_tasks
from helmsman.base.files import file_lock, replace_file
from helmsman.base.redaction import redact
from helmsman.errors import HelmsmanError
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from helmsman.model.questions import Question

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15.0
LONGEST_SECONDS: Final = 24 * 3600.0
_RENEW_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
_LOCK_SECONDS: Final = 1.0
_DIRECTORY: Final = "questions"
_CLOSED_KEPT_SECONDS: Final = 60.0
"""How long the others have to read who answered."""
_ABANDONED_SECONDS: Final = 10.0
"""A clock that nobody has looked at for so long is kept by no process: who finds the question then has the whole time."""
_VIEWERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """`left` seconds at the time `at`, less from the moment on at which nobody has a lease, nothing at the time `end`.

    All times are monotonic. Every change first comes up to date (`at_time`), so that all leases began before `at`.
    """

    left: float
    at: float
    end: float
    leases: Mapping[str, float]
    timeout: float | None = None
    """How much there was at first; older processes do not say."""

    @classmethod
    def new(cls, timeout: float, now: float) -> TimeLeft:
        return cls(left=timeout, at=now, end=now + LONGEST_SECONDS, leases={}, timeout=timeout)

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

    def hidden(self, viewer: str, now: float) -> TimeLeft:
        fresh = self.at_time(now)
        return replace(fresh, leases={one: until for one, until in fresh.leases.items() if one != viewer})


@dataclass(frozen=True, slots=True)
class Closing:
    """How a question was closed, as the process that did it tells the others."""

    answer: str
    by: str
    door: str | None
    reason: str | None


def closing_of(state_dir: Path, session_id: str, question_id: str) -> Closing | None:
    """How a question was closed, or was about to be by a process that is gone. Blocks."""
    return _closing_in(_file_of(state_dir, session_id, question_id))


def _closing_in(path: Path) -> Closing | None:
    told = _read(path).get("closed")
    if not isinstance(told, dict) or not all(isinstance(told.get(key), str) for key in ("answer", "by")):
        return None
    return Closing(told["answer"], told["by"], told.get("door"), told.get("reason"))


def _file_of(state_dir: Path, session_id: str, question_id: str) -> Path:
    return state_dir / _DIRECTORY / f"{hashlib.sha256(f'{session_id}/{question_id}'.encode()).hexdigest()[:32]}.json"


class Deadline:
    """The time one question has left, and whoever shows it.

    Args:
        state_dir: Where the clock is shared.
        question: What is asked.
        timeout: How many seconds it has when nobody shows it. Who opened it first in any process decides.
        clock: The monotonic clock.
    """

    def __init__(
        self, state_dir: Path, question: Question, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state_dir = state_dir
        self._path = _file_of(state_dir, question.session_id, question.id)
        self.clock = clock
        self._time = TimeLeft.new(timeout, clock())
        self._changed = anyio.Event()
        self._viewer = secrets.token_hex(4)
        self._showing = 0
        self.is_being_answered = False
        """An answer is on its way to Codex: too late to say no for want of one."""
        self._take_over()  # who looks at the question at once sees the time it has

    # --- what is true ------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        return self._time.seconds(self.clock())

    @property
    def is_paused(self) -> bool:
        return self._time.is_paused(self.clock())

    def as_dict(self) -> dict[str, Any]:
        """What is left of it, as every door shows it."""
        return {"secondsLeft": round(self.seconds), "paused": self.is_paused}

    def why_over(self) -> str:
        """Why the time is up, in words."""
        most = LONGEST_SECONDS if self.clock() >= self._time.end else self._time.timeout
        return "nobody answered in " + ("time" if most is None else in_words(min(most, LONGEST_SECONDS)))

    async def passed(self) -> None:
        """Return when the time is up."""
        while True:
            self._read_again()
            left = self._time.runs_out() - self.clock()
            if left <= 0:
                return
            with anyio.move_on_after(min(left, _LOOK_SECONDS)):  # another process may show it
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
            with anyio.CancelScope(shield=True):
                await self._change(lambda known: known.hidden(viewer, self.clock()))

    async def lease(self, viewer: str, seconds: float = LEASE_SECONDS) -> None:
        """It is on screen now; who shows it for longer says so again."""
        await self._change(lambda known: known.shown(viewer, self.clock(), seconds))

    async def release(self, viewer: str) -> None:
        """It is not on that screen any more."""
        await self._change(lambda known: known.hidden(viewer, self.clock()))

    async def _keep_shown(self, viewer: str, is_visible: Callable[[], bool]) -> None:
        until = 0.0
        while True:
            now = self.clock()
            if not is_visible():
                if until:
                    await self.release(viewer)
                until = 0.0
            elif until - now < LEASE_SECONDS - _RENEW_SECONDS:
                await self.lease(viewer)
                until = now + LEASE_SECONDS
            await anyio.sleep(_LOOK_SECONDS)

    # --- the file ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take over the clock of another process, or start it."""
        await anyio.to_thread.run_sync(self._open)
        self._notify()

    def _open(self) -> None:
        try:
            ensure_state_dir(self._state_dir)
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            with self._locked():
                self._sweep()
                self._take_over()
                self._write(_as_json(self._time))
        except (OSError, HelmsmanError) as error:
            log.info("the time of a question is not shared with other processes: %s", error)

    def _take_over(self) -> None:
        known = _read(self._path)
        shared = _time(known) if "closed" not in known else None
        if shared is None or shared.at > self.clock() + 1:  # none, or of before the last boot
            return
        with suppress(OSError):
            is_kept = time.time() - self._path.stat().st_mtime < _ABANDONED_SECONDS
            self._time = shared if is_kept else replace(self._time, end=shared.end)

    async def close(self, closing: Closing) -> bool:
        """Tell other processes who closes it, before the answer is given: they hear of that at once.

        Returns False where another process was faster.
        """
        return await anyio.to_thread.run_sync(self._close, closing)

    def _close(self, closing: Closing) -> bool:
        with suppress(OSError), self._locked():
            known = _read(self._path)
            if "closed" in known:
                return False
            if known:
                closed = {key: redact(text) for key, text in asdict(closing).items() if text}
                self._write({**known, "closed": closed})
        return True

    async def reopen(self) -> None:
        """The answer did not fit: nothing was closed."""
        await anyio.to_thread.run_sync(self._reopen)

    def _reopen(self) -> None:
        with suppress(OSError), self._locked():
            known = _read(self._path)
            if known.pop("closed", None) is not None:
                self._write(known)

    def leave(self) -> None:
        """This process keeps the clock no more."""
        with suppress(OSError):
            now = time.time()
            os.utime(self._path, (now, now - _ABANDONED_SECONDS))

    async def forget(self) -> None:
        """It is over, and nobody has answered: there is nothing to tell the others."""
        await anyio.to_thread.run_sync(self._forget)

    def _forget(self) -> None:
        with suppress(OSError), self._locked():
            if "closed" not in _read(self._path):
                self._path.unlink(missing_ok=True)

    def closing(self) -> Closing | None:
        """How it was closed, as the process that did it says. Blocks for no longer than it takes to read a line."""
        return _closing_in(self._path)

    async def _change(self, change: Callable[[TimeLeft], TimeLeft]) -> None:
        await anyio.to_thread.run_sync(self._change_file, change)
        self._notify()

    def _change_file(self, change: Callable[[TimeLeft], TimeLeft]) -> None:
        try:
            with self._locked():
                known = _read(self._path)
                self._time = change(_time(known) or self._time)
                if known and "closed" not in known:  # never a file for a question that is gone
                    self._write(_as_json(self._time))
        except OSError:
            self._time = change(self._time)

    def _read_again(self) -> None:
        with suppress(OSError):
            os.utime(self._path)  # somebody keeps this clock
        self._time = _time(_read(self._path)) or self._time

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _write(self, content: Mapping[str, Any]) -> None:
        replace_file(self._path, json.dumps(content), durable=False)  # after a restart of the machine it means nothing

    def _locked(self) -> Any:
        return file_lock(self._path.parent / "lock", timeout=_LOCK_SECONDS)

    def _sweep(self) -> None:
        """Remove what nobody needs any more."""
        now = time.time()
        for path in self._path.parent.glob("*.json"):
            with suppress(OSError):
                age = now - path.stat().st_mtime
                if age > (_CLOSED_KEPT_SECONDS if "closed" in _read(path) else LONGEST_SECONDS + _CLOSED_KEPT_SECONDS):
                    path.unlink()


def countdown(seconds: float, *, paused: bool) -> str:
    """The time left as a sentence for people."""
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


def _as_json(known: TimeLeft) -> dict[str, Any]:
    return {key: value for key, value in asdict(known).items() if value is not None}


def _time(known: Mapping[str, Any]) -> TimeLeft | None:
    try:
        leases = {str(viewer): float(until) for viewer, until in dict(known["leases"]).items()}
        timeout = float(known["timeout"]) if "timeout" in known else None
        left, at, end = (float(known[key]) for key in ("left", "at", "end"))
        return TimeLeft(left=left, at=at, end=end, leases=leases, timeout=timeout)
    except (KeyError, TypeError, ValueError):
        return None


def _read(path: Path) -> dict[str, Any]:
    """What the file says; nothing where there is none that can be read."""
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
