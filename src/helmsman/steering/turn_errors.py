"""Errors of turns that do not start, as a HelmsmanError and as an event of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError, SessionBusy
from helmsman.model.events import Failure, TurnEnded

if TYPE_CHECKING:
    from helmsman.agents.protocol import RecordedTurn


def known_error(error: Exception) -> HelmsmanError:
    """Return the error if it is a HelmsmanError, else wrap it as an internal error of Helmsman."""
    return (
        error if isinstance(error, HelmsmanError) else HelmsmanError(f"Helmsman itself failed: {error!r}. Report it.")
    )


def failed_turn(session_id: str, known: HelmsmanError) -> TurnEnded:
    """Return the event for a turn that ended with this error."""
    failure = Failure(code=known.code, message=known.message, retryable=known.retryable)
    return TurnEnded(session_id=session_id, outcome="failed", failure=failure)


def ended_by_limit(session_id: str, turn: RecordedTurn) -> TurnEnded:
    """Return the event for a turn that reached a usage limit, from its agent's record."""
    failure = None if turn.error is None else replace(turn.error, at=turn.ended_at)
    return TurnEnded(session_id=session_id, turn_id=turn.turn_id, outcome="failed", failure=failure)


def refuse_if_running(session_id: str, turn_id: str | None) -> None:
    if turn_id is not None:  # another program began it, and it continues
        raise busy(session_id)


def busy(session_id: str) -> SessionBusy:
    """Return the error for a session with a running turn."""
    return SessionBusy(
        f"A turn is running in session {session_id}. Wait for it, steer it, queue the message, or interrupt it."
    )
