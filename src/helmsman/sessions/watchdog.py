"""Limits on silence: a turn in which nothing happens is interrupted, and its status says why.

Two limits: until the model shows its first sign of life, and between two signs. The clock stops while a question waits for
an answer, because the model cannot continue then. Messages of Codex about itself (it retries, it waits for the network) are
no sign of life.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import anyio

from helmsman.errors import HelmsmanError, TurnTimedOut
from helmsman.model.events import (
    DiffUpdated,
    Event,
    Failure,
    InterruptRequested,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    QuestionAsked,
    QuestionClosed,
    TurnEnded,
    UsageReported,
    UserMessage,
)

if TYPE_CHECKING:
    from helmsman.model.options import TurnLimits
    from helmsman.sessions.session import Session

log = logging.getLogger(__name__)


def shows_life(event: Event) -> bool:
    """Return whether the event is an action of the model. Remarks of Codex about itself do not count."""
    match event:
        case ItemStarted(item=item) | ItemUpdated(item=item) | ItemEnded(item=item):
            return not isinstance(item, UserMessage)
        case ItemDelta() | QuestionAsked() | QuestionClosed() | DiffUpdated() | UsageReported():
            return True
        case _:
            return False


async def watch_turn(session: Session, limits: TurnLimits) -> None:
    """Watch the running turn, and end it if it stays silent for too long. Never raises."""
    failure = await _silence(session, limits)
    if failure is None:
        return
    log.warning("session %s: %s", session.id, failure.message)
    # First, so that the end of the turn is recorded as this failure and not as an interruption.
    session.apply(InterruptRequested(session_id=session.id, failure=failure))
    try:
        await session.interrupt()
    except HelmsmanError as error:
        log.warning("the silent turn of session %s could not be stopped: %s", session.id, error)
    if session.state.is_running:  # it cannot even be stopped: no client must wait for it
        session.apply(TurnEnded(session_id=session.id, outcome="failed", failure=failure))


async def _silence(session: Session, limits: TurnLimits) -> Failure | None:
    """Wait for the end of the turn, or until it has been silent for too long."""
    limit, silence = limits.first_event, "no sign of life"
    deadline = anyio.current_time() + limit
    turn = session.turn_count
    # From the cursor of the turn, since its first events may have come before this started.
    with session.feed.read(since=session.turn_cursor) as reader:
        while session.state.is_running and session.turn_count == turn:
            with anyio.CancelScope(deadline=math.inf if session.state.questions else deadline) as scope:
                event = await reader.next()
                if event is None:
                    return None
                if shows_life(event):
                    limit, silence = limits.inactivity, "nothing more"
                    deadline = anyio.current_time() + limit
            if scope.cancelled_caught:
                error = TurnTimedOut(
                    f"There was {silence} from the model within {limit:g} s, so the turn was interrupted. Send the session "
                    "a message to continue, or raise the limit."
                )
                return Failure(code=error.code, message=error.message, retryable=error.retryable)
    return None
