"""Which call of which pipe is being worked on, for whoever has to know that it was asked before.

Set for the length of a request that came through the hub's socket; elsewhere there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from helmsman.base.structs import Value
from helmsman.tasks.calls import CallId, CallLog


class NumberedCall(Value, frozen=True):
    """A request by the number that its pipe gave it: the same whenever it is asked again, of whichever hub."""

    id: CallId
    calls: CallLog
    take: Callable[[], None]
    """Tells the pipe that a tool is at work: a hub that ends now may have ended of it."""
    rest: Callable[[], None]
    """Tells the pipe that the call only waits: a hub that ends now has not ended of it."""


ATTACH: Final = "helmsman/attach"
"""Our own request for a pipe that comes from an earlier hub: whoever was asked there is asked again."""

current_call: Final[ContextVar[NumberedCall | None]] = ContextVar("current_call", default=None)
current_form: Final[ContextVar[str | None]] = ContextVar("current_form", default=None)
"""The name of the form that is about to be shown; a new hub finds it again by this."""
