"""Turns that no client of Helmsman requested: Codex's own, towards a goal, or those a person begins in the agent's program.

In an engine of Helmsman each becomes a task. In a person's own engine Helmsman only follows it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from helmsman.model.events import ItemStarted, TaskLinked, TurnEnded, TurnStarted, UserMessage
from helmsman.model.options import TurnInput
from helmsman.tasks.drafts import draft_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from helmsman.model.options import TurnLimits
    from helmsman.sessions.session import Session
    from helmsman.steering.shared import Shared
    from helmsman.tasks.writer import TaskWriter


def is_theirs(session: Session, writer: TaskWriter) -> bool:
    """Return whether a person began the running turn of a session in their own engine."""
    engine = session.engine
    return engine is not None and engine.is_of_a_person and writer.running_task(session.id) is None


def towards(goal: str) -> str:
    """Return the title of a turn towards a goal."""
    return f"Work towards the goal: {goal}"


class UnrequestedTurns:
    """Registers tasks for turns that Helmsman did not request. `policy` returns the policy of such a turn."""

    def __init__(self, shared: Shared, policy: Callable[[TurnLimits], dict[str, Any]]) -> None:
        self._shared = shared
        self._writer = shared.task_writer
        self._policy = policy

    def handle_event(self, session: Session, event: ItemStarted | TurnStarted) -> None:
        """Register a task for a turn or message that Helmsman did not send."""
        if isinstance(event, TurnStarted):
            if session.goal is not None:
                self._register_turn(session, towards(session.goal))
        elif isinstance(event.item, UserMessage) and session.state.is_running and not is_theirs(session, self._writer):
            self._register_turn(session, event.item.text)

    def _register_turn(self, session: Session, text: str) -> None:
        if self._writer.running_task(session.id) is None and session.id not in self._shared.registering:
            self._shared.registering.add(session.id)
            self._shared.tasks.start_soon(partial(self._register, session, text))

    async def _register(self, session: Session, text: str) -> None:
        try:
            request = session.request(TurnInput(text=text))
            task_id, draft = draft_task(request, session_id=session.id, policy=self._policy(session.limits))
            await self._writer.enter(draft)
        finally:
            self._shared.registering.discard(session.id)
        if self._writer.running_task(session.id) is not None:  # the next turn has begun, and has a task
            self._writer.cancel(task_id, "The turn was over before it was registered.")
            return
        session.apply(TaskLinked(session_id=session.id, task_id=task_id))
        self._writer.begin(task_id, session, engine=None if session.engine is None else session.engine.id)
        if not session.state.is_running:  # so quick that its end came before
            self._writer.on_event(session, TurnEnded(session_id=session.id, outcome="completed"))
