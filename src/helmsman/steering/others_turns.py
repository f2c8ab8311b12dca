"""Turns that nobody here asked for: Codex's own, towards a goal, or those a person begins in its own terminal program.

In an engine of ours each is a task like any other. In a person's own engine it is theirs, and only followed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from helmsman.model.events import TurnEnded, UserMessage
from helmsman.tasks.drafts import draft_task

if TYPE_CHECKING:
    from typing import Any

    from helmsman.model.events import ItemStarted
    from helmsman.model.options import TurnLimits
    from helmsman.sessions.session import Session
    from helmsman.steering.shared import Shared
    from helmsman.tasks.ledger import Ledger


def is_theirs(session: Session, ledger: Ledger) -> bool:
    """Whether what runs in a session was begun by a person in an engine of theirs."""
    engine = session.engine
    return engine is not None and engine.is_of_a_person and ledger.running_task(session.id) is None


class OthersTurns(ABC):
    """Part of `helmsman.steering.turns.Turns`."""

    _shared: Shared
    _ledger: Ledger

    @abstractmethod
    def terms(self, limits: TurnLimits | None = None, *, is_message: bool = True) -> dict[str, Any]:
        """What holds for a turn that is begun here, for the registry."""

    def hear_prompt(self, session: Session, event: ItemStarted) -> None:
        """A message has come to the agent: where it has begun a turn, and none of ours, that is a task."""
        if not isinstance(event.item, UserMessage) or event.agent_id is not None or is_theirs(session, self._ledger):
            return
        if session.state.is_running:
            self.register_turn(session, event.item.text)

    def register_turn(self, session: Session, text: str) -> None:
        """Have a turn that has begun be a task, if it is none."""
        if self._ledger.running_task(session.id) is None and session.id not in self._shared.registering:
            self._shared.registering.add(session.id)
            self._shared.tasks.start_soon(partial(self._register, session, text))

    async def _register(self, session: Session, text: str) -> None:
        try:
            task_id, draft = draft_task(text, session.options, session_id=session.id, terms=self.terms(session.limits))
            await self._ledger.enter(draft)
        finally:
            self._shared.registering.discard(session.id)
        if self._ledger.running_task(session.id) is not None:  # the next turn has begun meanwhile, and has a task
            self._ledger.cancel(task_id, "The turn was over before it was registered.")
            return
        session.task_ids.append(task_id)
        self._ledger.begin(task_id, session, engine=None if session.engine is None else session.engine.id)
        if not session.state.is_running:  # so quick that its end came before
            self._ledger.on_event(session, TurnEnded(session_id=session.id, outcome="completed"))
