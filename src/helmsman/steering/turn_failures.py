"""When a turn does not come to be: the error, and what its session is told."""

from __future__ import annotations

from helmsman.errors import HelmsmanError, SessionBusy
from helmsman.model.events import Failure, TurnEnded


def known_error(error: Exception) -> HelmsmanError:
    """The error as one of ours; anything else is a mistake of Helmsman's own."""
    return (
        error if isinstance(error, HelmsmanError) else HelmsmanError(f"Helmsman itself failed: {error!r}. Report it.")
    )


def failed_turn(session_id: str, error: Exception) -> TurnEnded:
    """The turn of a session ended by this error."""
    known = known_error(error)
    failure = Failure(code=known.code, message=known.message, retryable=known.retryable)
    return TurnEnded(session_id=session_id, outcome="failed", failure=failure)


def busy(session_id: str) -> SessionBusy:
    """A turn is running already."""
    return SessionBusy(
        f"A turn is running in session {session_id}. Wait for it, steer it, queue the message, or interrupt it."
    )
