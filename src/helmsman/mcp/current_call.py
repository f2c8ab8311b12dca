"""Identity of the current call from a pipe, for code that must recognize repeated calls.

Set during a request that came through the hub's socket; otherwise empty.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from helmsman.base.structs import Value
from helmsman.tasks.calls import CallId, CallLog


class NumberedCall(Value, frozen=True):
    """Request with the number that its pipe gave it.

    The number stays the same when another hub gets the request again.
    """

    id: CallId
    calls: CallLog
    take: Callable[[], None]
    """Tells the pipe that a tool is at work: a hub that ends now may have ended of it."""
    rest: Callable[[], None]
    """Tells the pipe that the call only waits: a hub that ends now has not ended of it."""


ATTACH: Final = "helmsman/attach"
"""Internal request for a pipe from an earlier hub. It repeats the questions that were shown there."""

current_call: Final[ContextVar[NumberedCall | None]] = ContextVar("current_call", default=None)
current_form: Final[ContextVar[str | None]] = ContextVar("current_form", default=None)
"""Name of the form that is about to be shown. A new hub finds the form again by this name."""
