"""How many turns may run at once, and what runs when one of them has ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from helmsman.base.shown_text import one_line
from helmsman.errors import ClientAway, HelmsmanError, TooManySessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.sessions.session import Session
    from helmsman.steering.known import Roster

log = logging.getLogger(__name__)

_LISTED: Final = 20
_ABOUT_CHARS: Final = 60


class Room:
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


async def run_next(roster: Roster) -> None:
    """A turn has ended: the messages that wait for their session, or for room, may run now."""
    for session in list(roster.at_work.values()):
        if not session.queue or session.state.is_running or session.queue[0].is_early:
            continue
        queued, known = session.dequeue(), session.options
        session.change_options(queued.options)
        try:
            await queued.run(session, queued)
        except Exception as error:
            session.change_options(known)  # what no turn has taken does not hold for the next
            if isinstance(error, TooManySessions | ClientAway):  # of the door that sent it; others may do better
                session.enqueue(queued, first=True)
                continue
            is_known = isinstance(error, HelmsmanError)  # the session has been told; the others go on
            log.warning("a queued message of session %s was not sent: %s", session.id, error, exc_info=not is_known)
