"""The call of a client that the current work is for, as far as it is done once (`helmsman.tasks.calls`)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from helmsman.tasks.model import Task


class CallKey:
    """The idempotency key of the first task that a call enters; what else it enters has none.

    `name` tells calls apart. `done_before` is the task that an earlier hub entered for the same call; `is_repeated` says
    that one had begun the call.
    """

    def __init__(self, key: str, done_before: Task | None = None, *, is_repeated: bool = False) -> None:
        self._key: str | None = key
        self.name = key
        self._asked_elsewhere = 0
        self.done_before = done_before
        self.is_repeated = is_repeated

    def take(self) -> str | None:
        key, self._key = self._key, None
        return key

    def next_elsewhere(self) -> tuple[str, int]:
        """The id of what the call asks next of another machine's hub: the same when the call is asked again of a later
        hub here."""
        self._asked_elsewhere += 1
        return f"for {self.name}", self._asked_elsewhere


call_key: Final[ContextVar[CallKey | None]] = ContextVar("call_key", default=None)


def done_before() -> Task | None:
    """The task that this very call has begun already, when it was asked of an earlier hub."""
    called = call_key.get()
    return None if called is None else called.done_before


def is_repeated() -> bool:
    """Return whether an earlier hub, now gone, had begun this call."""
    called = call_key.get()
    return called is not None and called.is_repeated
