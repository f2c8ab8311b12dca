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
        except (TooManySessions, ClientAway):  # of the door that sent it; others may have room, or be there
            session.options = known
            session.queue.insert(0, queued)
        except HelmsmanError as error:
            session.options = known
            log.warning("a queued message of session %s could not be sent: %s", session.id, error)
        except Exception:  # the session has been told; the others go on
            log.exception("a queued message of session %s could not be sent", session.id)
