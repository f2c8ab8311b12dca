"""Identity of the client call that the current work is for, if it is carried out only once (`helmsman.tasks.calls`)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from helmsman.tasks.model import Task


class CallKey:
    """Idempotency key of the first task that a call creates; later ones have none.

    `name` identifies the call. `done_before` is the task that an earlier hub created for the same call; `is_repeated`
    says that an earlier hub began the call.
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
        """Return the id of the call's next request to another machine.

        It is the same if a later hub repeats the call.
        """
        self._asked_elsewhere += 1
        return f"for {self.name}", self._asked_elsewhere


call_key: Final[ContextVar[CallKey | None]] = ContextVar("call_key", default=None)


def call_name() -> str | None:
    """Return the key of the current call."""
    called = call_key.get()
    return None if called is None else called.name


def done_before() -> Task | None:
    """Return the task that this call has created already on an earlier hub."""
    called = call_key.get()
    return None if called is None else called.done_before


def is_repeated() -> bool:
    """Return whether an earlier hub, now gone, had begun this call."""
    called = call_key.get()
    return called is not None and called.is_repeated
