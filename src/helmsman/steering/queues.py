"""Messages that wait for their session: run when its turn has ended, and there is room."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from helmsman.errors import ClientAway, HelmsmanError, TooManySessions

if TYPE_CHECKING:
    from helmsman.steering.known import Roster

log = logging.getLogger(__name__)


async def run_queued(roster: Roster) -> None:
    """A turn has ended: whatever waits for its session, or for room, may run now."""
    for session in list(roster.at_work.values()):
        if not session.queue or session.state.is_running or session.queue[0].is_early:
            continue
        queued, known = session.queue.pop(0), session.options
        session.options = queued.options
        try:
            await queued.run(session, queued)
        except Exception as error:
            session.options = known  # what no turn has taken does not hold for the next
            if isinstance(
                error, TooManySessions | ClientAway
            ):  # of the door that sent it; others may have room, or be there
                session.queue.insert(0, queued)
            else:  # the session has been told; the others go on
                is_ours = isinstance(error, HelmsmanError)
                log.warning(
                    "a queued message of session %s could not be sent: %s", session.id, error, exc_info=not is_ours
                )
