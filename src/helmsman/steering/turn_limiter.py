"""Limit the number of concurrent turns, and start queued ones when a turn ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from helmsman.base.sanitize import one_line
from helmsman.errors import ClientAway, HelmsmanError, TooManySessions
from helmsman.model.events import MessageUnqueued

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.sessions.session import Session
    from helmsman.steering.session_registry import SessionRegistry

log = logging.getLogger(__name__)

_LISTED: Final = 20
_ABOUT_CHARS: Final = 60


class TurnLimiter:
    """Turns that are starting, beside those that run. All clients of a process share it: `MAX_SESSIONS` counts both."""

    def __init__(self) -> None:
        self.starting = 0

    def refuse_if_full(self, running: int, most: int, shown: Sequence[Session]) -> None:
        """Make sure that one more may begin. `shown` are the running sessions that the caller may know of.

        Raises:
            TooManySessions: As many turns run, or are starting, as there may be.
        """
        if running + self.starting < most:
            return
        listed = [f"{session.id} ({one_line(session.state.about or 'no prompt')[:_ABOUT_CHARS]})" for session in shown]
        more = [f"and {len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
        lines = "".join(f"\n- {line}" for line in (*listed[:_LISTED], *more))
        raise TooManySessions(
            f"{running + self.starting} turns are running and MAX_SESSIONS is {most}. Wait for one to end, "
            f"interrupt one, or raise the limit.{' Running:' + lines if lines else ''}",
            running=[session.id for session in shown],
        )


async def run_next(session_registry: SessionRegistry) -> None:
    """Send the messages that wait for the end of a turn, or for room."""
    for session in list(session_registry.at_work.values()):
        if session.id not in session_registry.sending:
            session_registry.sending.add(session.id)
            try:
                while await _send_first(session):
                    pass
            finally:
                session_registry.sending.discard(session.id)


async def _send_first(session: Session) -> bool:
    """Send the first waiting message of an idle session. Return whether the next one may be sent."""
    if not session.queue or session.state.is_running or session.queue[0].is_early:
        return False
    task_id = session.queue[0].task_id
    queued = session.queued_turn(task_id)
    if queued is None:
        return False  # recovery, or another process, sends it
    try:
        await queued.run(session, task_id, queued)
    except (TooManySessions, ClientAway) as error:  # of the client that sent it; others may do better
        log.debug("a queued message of session %s waits: %s", session.id, error)
        return False
    except Exception as error:  # the session has the error; the other sessions continue
        is_known = isinstance(error, HelmsmanError)
        log.warning("a queued message of session %s was not sent: %s", session.id, error, exc_info=not is_known)
    if any(one.task_id == task_id for one in session.queue):
        session.apply(MessageUnqueued(session_id=session.id, task_id=task_id))
    return True
