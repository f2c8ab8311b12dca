"""Find unreported ends of turns in the agent's own record.

A Codex that exits closes the connection when its last turn is over, often before it has reported the end. A usage limit may
end a turn while there is no hub. The session's file has both.
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
    from helmsman.tasks.agent_records import AgentRecords
    from helmsman.tasks.model import Task
    from helmsman.tasks.writer import TaskWriter

log = logging.getLogger(__name__)

_RECORD_SECONDS: Final = 5.0
"""Seconds for an engine that closed the connection, but still runs, to record the end of its last turn."""
_RECORD_POLL: Final = 0.05


class UntoldEnds(ABC):
    """Part of `helmsman.steering.turns.Turns`."""

    settings: Settings
    agents: Agents
    agent_records: AgentRecords
    _shared: Shared
    _writer: TaskWriter

    @abstractmethod
    def take(self, session: Session, event: Event) -> None:
        """Take in what has happened in a session."""

    @abstractmethod
    def _apply_policy(self, session: Session, task: Task) -> None:
        """Apply the stored policy of a turn that this service now follows."""

    def looks_for_end(self, session: Session, gone: EngineGone) -> bool:
        """Return whether the recorded end of the running turn is looked up first, after the session's engine is gone."""
        if not session.state.is_running or session.state.turn_id is None or not self._shared.is_at_work:
            return False
        if session.own_question is not None:
            return False  # its end is known, and a person is asked how to continue
        if session.questions:
            return False  # a turn with a question has not ended, and the engine that would take the answer is gone
        if session.engine is not None and isinstance(session.engine.lost, EngineHangs):
            return False  # the code that gave it up has already waited
        self._shared.tasks.start_soon(self._apply_recorded_end, session, gone)
        return True

    async def _apply_recorded_end(self, session: Session, gone: EngineGone) -> None:
        turn_id = session.state.turn_id
        try:
            turn = await self._recorded(session, turn_id)
        except Exception:  # otherwise the turn would never end
            log.exception("how the last turn of session %s has ended is not known", session.id)
            turn = None
        except anyio.get_cancelled_exc_class():
            if self._shared.fence is None:  # else the next hub looks
                self._take_end(session, gone, turn_id, None)
            raise
        self._take_end(session, gone, turn_id, turn)

    def _take_end(self, session: Session, gone: EngineGone, turn_id: str | None, turn: RecordedTurn | None) -> None:
        # The task is no evidence: it may be registered only now, and a task that resumes has several turns.
        if session.state.turn_id != turn_id or not session.state.is_running:
            return  # it was ended in the meantime, and another one may run in another engine
        for event in () if turn is None else _end_of(session, turn):
            self.take(session, event)
        self.take(session, gone)

    async def _recorded(self, session: Session, turn_id: str | None) -> RecordedTurn | None:
        """The running turn of a session, if its end is recorded, or is while its engine is still there."""
        deadline = anyio.current_time() + _RECORD_SECONDS
        while True:
            may_write = await self._is_there(session.engine, session.options.agent)  # before the read of its last write
            turn = await self.agent_records.turn(session.id, turn_id)
            if turn is not None and turn.turn_id == turn_id and turn.outcome != "open":
                return turn
            if not may_write or anyio.current_time() > deadline:
                return None
            await anyio.sleep(_RECORD_POLL)

    async def _is_there(self, engine: Engine | None, agent: str) -> bool:
        """Return whether an engine that we lost still runs. An engine that ends with this process has ended.

        If the engine is not lost, the session's own process has ended.
        """
        if engine is None or engine.id is None or engine.lost is None:
            return False
        return await anyio.to_thread.run_sync(self.agents[agent].engine_is_alive, self.settings, engine.id)

    def _apply_recorded_limit(self, session: Session, task: Task, turn: RecordedTurn) -> None:
        """Hear what no hub has heard: that a usage limit has ended the session's newest turn."""
        self._writer.begin(task.id, session, engine=task.engine, taken_over=task, recorded=turn)
        self._apply_policy(session, task)
        if not session.state.is_running:
            session.apply(TurnRequested(session_id=session.id, text=task.instruction))
        session.verbs.on_event(session, ended_by_limit(session.id, turn))


def _end_of(session: Session, turn: RecordedTurn) -> Iterator[Event]:
    """Yield the events of a turn that the agent recorded but did not report."""
    assert turn.outcome != "open"
    told = (item.text for item in session.items if isinstance(item, AgentMessage))
    if turn.message is not None and turn.message not in told:
        item = AgentMessage(id="final", text=turn.message, phase="final_answer")
        yield ItemEnded(session_id=session.id, turn_id=turn.turn_id, item=item)
    if turn.usage is not None:
        yield UsageReported(session_id=session.id, turn_id=turn.turn_id, turn=turn.usage)
    yield TurnEnded(session_id=session.id, turn_id=turn.turn_id, outcome=turn.outcome, failure=turn.error)
