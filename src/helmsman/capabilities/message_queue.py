"""Messages that wait for the end of a session's turn: take one back, or send it earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.errors import InvalidInput
from helmsman.model.events import MessageQueued, MessageUnqueued

if TYPE_CHECKING:
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import QueuedMessage
    from helmsman.steering.core import Steering

_TAKEN_BACK = "It was taken back before it was sent."


class MessageQueue:
    """The queues of all sessions. Made by `helmsman.capabilities.Extras`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    async def drop(self, session_id: str, task_id: str) -> None:
        """Take a queued message back. Its task is then canceled.

        Raises:
            InvalidInput: It does not wait there: it was sent or taken back.
        """
        session, _ = await self._find(session_id, task_id)
        self._helm.task_writer.cancel(task_id, _TAKEN_BACK)
        session.apply(MessageUnqueued(session_id=session.id, task_id=task_id))

    async def move(self, session_id: str, task_id: str, place: int) -> None:
        """Put a queued message at this place of the queue, counted from 1.

        Raises:
            InvalidInput: It does not wait there, or there is no such place.
        """
        session, message = await self._find(session_id, task_id)
        others = [one for one in session.queue if one.task_id != task_id]
        if not 1 <= place <= len(others) + 1:
            raise InvalidInput(f"There is no place {place} in a queue of {len(others) + 1}.", parameter="place")
        ordered = [*others[: place - 1], message, *others[place - 1 :]]
        for one in ordered:  # each goes to the end
            session.apply(
                MessageQueued(session_id=session.id, task_id=one.task_id, text=one.text, not_before=one.not_before)
            )

    async def _find(self, session_id: str, task_id: str) -> tuple[Session, QueuedMessage]:
        await self._helm.require_own(session_id, "change its queue")
        session = await self._helm.session_with_queue(session_id)
        session.require_here()
        found = next((one for one in session.queue if one.task_id == task_id), None)
        if found is None:
            raise InvalidInput(f"Message {task_id} does not wait in session {session.id}.", parameter="task_id")
        return session, found
