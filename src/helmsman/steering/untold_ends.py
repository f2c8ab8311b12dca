"""Ends of turns that nobody was told of: what the agent has recorded counts.

A Codex that ends hangs up when its last turn is over, often before it has told of that, and a usage limit may end a turn
while there is no hub. The session's file says both.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.agents.protocol import EngineHangs
from helmsman.model.events import AgentMessage, ItemEnded, TurnEnded, TurnRequested, UsageReported
from helmsman.steering.turn_errors import ended_by_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helmsman.agents.protocol import Engine, RecordedTurn
    from helmsman.agents.registry import Agents
    from helmsman.model.events import EngineGone, Event
    from helmsman.sessions.session import Session
    from helmsman.settings import Settings
    from helmsman.steering.shared import Shared
    from helmsman.tasks.ledger import Ledger
    from helmsman.tasks.model import Task
    from helmsman.tasks.truth import TaskTruth

log = logging.getLogger(__name__)

_RECORD_SECONDS: Final = 5.0
"""How long an engine that has hung up, and is still there, may take to write down how its last turn has ended."""
_RECORD_POLL: Final = 0.05


class UntoldEnds(ABC):
    """Part of `helmsman.steering.turns.Turns`."""

    settings: Settings
    agents: Agents
    truth: TaskTruth
    _shared: Shared
    _ledger: Ledger

    @abstractmethod
    def take(self, session: Session, event: Event) -> None:
        """Take in what has happened in a session."""

    @abstractmethod
    def _hold_to_terms(self, session: Session, task: Task) -> None:
        """What held for a turn when it was begun holds for us who follow it now."""

    def looks_for_end(self, session: Session, gone: EngineGone) -> bool:
        """Whether it is looked first how the running turn of a session has ended whose engine is gone, and told then."""
        if not session.state.is_running or session.state.turn_id is None or not self._shared.is_at_work:
            return False
        if session.own_question is not None:
            return False  # its end is known, and somebody is asked how it goes on
        if session.questions:
            return False  # a turn that asks has not ended, and nobody is there any more to hear the answer
        if session.engine is not None and isinstance(session.engine.lost, EngineHangs):
            return False  # whoever gave it up has waited already
        self._shared.tasks.start_soon(self._apply_recorded_end, session, gone)
        return True

    async def _apply_recorded_end(self, session: Session, gone: EngineGone) -> None:
        turn_id = session.state.turn_id
        try:
            turn = await self._recorded(session, turn_id)
        except Exception:  # or nobody would be told at all
            log.exception("how the last turn of session %s has ended is not known", session.id)
            turn = None
        except anyio.get_cancelled_exc_class():
            if self._shared.fence is None:  # else the next hub looks
                self._take_end(session, gone, turn_id, None)
            raise
        self._take_end(session, gone, turn_id, turn)

    def _take_end(self, session: Session, gone: EngineGone, turn_id: str | None, turn: RecordedTurn | None) -> None:
        # Its task tells nothing: it may have become one only now, and one that goes on has several turns.
        if session.state.turn_id != turn_id or not session.state.is_running:
            return  # it was ended meanwhile, and another one may run in another engine
        for event in () if turn is None else _end_of(session, turn):
            self.take(session, event)
        self.take(session, gone)

    async def _recorded(self, session: Session, turn_id: str | None) -> RecordedTurn | None:
        """The running turn of a session, if its end is recorded, or is while its engine is still there."""
        deadline = anyio.current_time() + _RECORD_SECONDS
        while True:
            may_write = await self._is_there(session.engine, session.options.agent)  # what it writes last is read, too
            turn = await self.truth.turn(session.id, turn_id)
            if turn is not None and turn.turn_id == turn_id and turn.outcome != "open":
                return turn
            if not may_write or anyio.current_time() > deadline:
                return None
            await anyio.sleep(_RECORD_POLL)

    async def _is_there(self, engine: Engine | None, agent: str) -> bool:
        """Whether an engine that we have lost still runs; one that ends with us has ended.

        Of one that is not lost, it is the session's own process that has ended.
        """
        if engine is None or engine.id is None or engine.lost is None:
            return False
        return await anyio.to_thread.run_sync(self.agents[agent].engine_is_alive, self.settings, engine.id)

    def _apply_recorded_limit(self, session: Session, task: Task, turn: RecordedTurn) -> None:
        """Hear what no hub has heard: that a usage limit has ended the session's newest turn."""
        self._ledger.begin(task.id, session, engine=task.engine, taken_over=task, recorded=turn)
        self._hold_to_terms(session, task)
        if not session.state.is_running:
            session.apply(TurnRequested(session_id=session.id, text=task.instruction))
        session.verbs.on_event(session, ended_by_limit(session.id, turn))


def _end_of(session: Session, turn: RecordedTurn) -> Iterator[Event]:
    """What was not told any more of a turn."""
    assert turn.outcome != "open"
    told = (item.text for item in session.items if isinstance(item, AgentMessage))
    if turn.message is not None and turn.message not in told:
        item = AgentMessage(id="final", text=turn.message, phase="final_answer")
        yield ItemEnded(session_id=session.id, turn_id=turn.turn_id, item=item)
    if turn.usage is not None:
        yield UsageReported(session_id=session.id, turn_id=turn.turn_id, turn=turn.usage)
    yield TurnEnded(session_id=session.id, turn_id=turn.turn_id, outcome=turn.outcome, failure=turn.error)
