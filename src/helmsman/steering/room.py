"""How many turns a door may have running at once, and what runs when one of them has ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from helmsman.errors import ClientAway, HelmsmanError, TooManySessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.steering.known import Roster

log = logging.getLogger(__name__)


class Room:
    """How much of `MAX_SESSIONS` a door uses, beside the turns that are known to run."""

    def __init__(self) -> None:
        self.starting = 0

    def refuse_if_full(self, running: Sequence[str], most: int) -> None:
        """Make sure that one more may begin.

        Raises:
            TooManySessions: These sessions, and what is starting, are as many as there may be.
        """
        if len(running) + self.starting >= most:
            raise TooManySessions(
                f"{len(running) + self.starting} turns are running and MAX_SESSIONS is {most}. Wait for one to end, "
                "interrupt one, or raise the limit.",
                running=list(running),
            )


async def run_next(roster: Roster) -> None:
    """A turn has ended: the messages that wait for their session, or for room, may run now."""
    for session in list(roster.at_work.values()):
        if not session.queue or session.state.is_running or session.queue[0].is_early:
            continue
        queued, known = session.queue.pop(0), session.options
        session.options = queued.options
        try:
            await queued.run(session, queued)
        except Exception as error:
            session.options = known  # what no turn has taken does not hold for the next
            if isinstance(error, TooManySessions | ClientAway):  # of the door that sent it; others may do better
                session.queue.insert(0, queued)
                continue
            is_known = isinstance(error, HelmsmanError)  # the session has been told; the others go on
            log.warning("a queued message of session %s was not sent: %s", session.id, error, exc_info=not is_known)
