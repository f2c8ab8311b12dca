"""Find out what became of a turn whose hub, process or engine is gone, so that each turn has exactly one end.

A turn that an agent may have received (`TurnRecovery`) is in one of three states:

- Its agent never received it. The hub had recorded its intent with the amount of input that the agent had received
  (`Engine.input_position`), and that amount is unchanged. The task waits again (`requeue`).
- Its engine still runs it. The service attaches to the engine, which continues from the committed output (`attach`); its
  questions keep their deadlines.
- It has ended, and no hub has received its end. A Codex that exits closes the connection when its last turn is over, often
  before it has reported the end, and a usage limit may end a turn while there is no hub. The agent's record has both.

`reconcile` draws the conclusion about a task that no process follows, from the remaining evidence: the detached engine, the
agent's record, and the time since the last event. Nothing stays `working` for ever, and nothing is called `failed` that may
still come to an end. What cannot be decided is `unknown`, and is not repeated.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.to_thread

from helmsman.agents.protocol import EngineHangs
from helmsman.base.structs import replace
from helmsman.errors import EngineLost, HelmsmanError
from helmsman.model.events import (
    USAGE_LIMIT,
    AgentMessage,
    Event,
    Failure,
    ItemEnded,
    MessageQueued,
    TurnAdopted,
    TurnEnded,
    TurnRequested,
    TurnStarted,
    Usage,
    UsageReported,
)
from helmsman.sessions.history import SpentTurn, spent_in_turn, spent_so_far
from helmsman.sessions.session import Verbs
from helmsman.steering.opening import note_opened
from helmsman.steering.turn_errors import ended_by_limit
from helmsman.tasks.agent_records import CLOCK_SKEW
from helmsman.tasks.model import TaskChanges
from helmsman.tasks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from helmsman.agents.protocol import Engine, RecordedTurn
    from helmsman.agents.registry import Agents, EngineHolder
    from helmsman.model.events import EngineGone
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import StateView
    from helmsman.settings import Settings
    from helmsman.steering.shared import Shared
    from helmsman.store.log import StoredEvents
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

_ASKED_AGAIN_SECONDS: Final = 5.0
"""Seconds for an engine to repeat its open question to us, before the session is shown without one."""
_RECORD_SECONDS: Final = 5.0
"""Seconds for an engine that closed the connection, but still runs, to record the end of its last turn."""
_RECORD_POLL: Final = 0.05
WAITS: Final = timedelta(days=7)
"""Longest time that a task waits for a client that can run it."""
GRACE: Final = timedelta(seconds=10)
"""Grace period: a Codex whose parent has died records the end of its turn a moment later; some versions finish the turn
first.
"""

RECEIVED: Final[TaskChanges] = {"input_position": None}
"""Agent has received the input that was recorded as an intent."""
SENT: Final[TaskChanges] = {"spec": None, **RECEIVED}
"""Agent has received the request of a task, or may have: the task must not run again."""
WAITING: Final = (
    "It was acknowledged by a hub that ended before it began. It begins by itself when a client connects that has the "
    "same environment and settings as the one that asked for it; cancel it if it is no longer wanted."
)
_NO_END: Final = "The outcome of the last turn is unknown. Send the session a message to continue."
UNKNOWN_END: Final = Failure(
    code="engine_lost",
    message="The process that ran this turn has ended, and the turn with it. Send the session a message to continue.",
    retryable=True,
)


# --- a turn ----------------------------------------------------------------------------------------------------------


class TurnService(Verbs, Protocol):
    """Service that follows recovered turns."""

    settings: Settings
    agents: Agents

    @property
    def engines(self) -> EngineHolder: ...

    def attach(self, session: Session, engine: Engine) -> None:
        """Receive the events of a session from an engine."""
        ...

    def apply_policy(self, session: Session, task: Task) -> None:
        """Apply the stored policy of a turn that this service now follows."""
        ...

    def handle_event(self, session: Session, event: Event) -> None:
        """Apply an event of an engine to its session, and do what follows from it."""
        ...

    def check_spending(self, session: Session) -> None:
        """Stop the turn of a session if it has spent too much."""
        ...

    def watch(self, session: Session) -> None:
        """Watch the running turn for silence."""
        ...

    async def spent_by(self, session_id: str) -> Sequence[SpentTurn]:
        """Return the usage of each turn of a session and of its sub-agents."""
        ...


class TurnRecovery:
    """Recovery of turns for one service."""

    def __init__(self, shared: Shared, service: TurnService) -> None:
        self._shared = shared
        self._service = service
        self._writer = shared.task_writer

    # --- the state of a task -----------------------------------------------------------------------------------------

    async def now(self, task: Task) -> Task:
        """Return the actual state of the task. If an earlier hub or a dead process left it, find its outcome and record it.

        Raises:
            RegistryUnavailable: It cannot be read.
        """
        writer = self._writer
        await writer.write()
        known = await writer.registry(lambda registry: registry.get(task.id)) or task
        if known.has_ended or known.origin == "cloud" or writer.has(known.id):
            return known
        if not known.has_living_owner:
            known = await writer.claim(known)
            siblings = await writer.registry(lambda registry: registry.tasks_of_session(known.session_id or ""))
            evidence = await self._shared.agent_records.evidence(known, siblings)
            title = self._shared.agents.title(known.agent)
            changes = reconcile(known, evidence.turn, datetime.now(UTC), title, engine_alive=evidence.engine_alive)
            if changes is not None:
                return await writer.conclude(known, changes)
        return replace(known, note=known.note or writer.who_runs(known)) if writer.is_elsewhere(known) else known

    # --- turns that the agent never received -------------------------------------------------------------------------

    async def requeue(self, task: Task) -> Task | None:
        """Requeue a task that its agent never received. Return None if it may have received it.

        A task without a stored request fails, and says that it can be sent again.

        Raises:
            RegistryUnavailable: It cannot be written.
        """
        if task.input_position is None or task.engine is None:
            return None
        engine = await self._service.engines.reach(task.agent, task.engine)
        session_id = task.session_id or task.opened_session
        # Only an unchanged position proves that the agent did not get it. In doubt it is not sent again.
        if engine is None or engine.input_position(str(session_id)) != task.input_position:
            self._writer.update(task.id, SENT)
            return None
        if task.spec is None:
            title = self._service.agents.title(task.agent)
            self._writer.fail(
                task.id,
                EngineLost(f"The hub ended before {title} received this, so nothing was done. Send it again."),
            )
            await self._writer.write()
            return await self._writer.registry(partial(Registry.get, task_id=task.id))
        if task.used_before != Usage():
            self._writer.spent_before(task.id, task.used_before)
        again = partial(
            Registry.update,
            task_id=task.id,
            status="pending",
            spec=task.spec,
            engine=None,
            # A session that was opened for this turn alone has none yet, so another one is opened.
            session_id=None if task.opened_session else task.session_id,
            input_position=None,
            asked_at=None,
            opened_session=None,
        )
        return await self._writer.registry(again)

    # --- turns that continue -----------------------------------------------------------------------------------------

    async def attach(self, session: Session, task: Task, spent: Sequence[SpentTurn]) -> bool:
        """Attach to the engine in which an earlier hub left the session's newest turn; False if it does not run there."""
        service, records = self._service, self._shared.agent_records
        if not self._shared.is_open or task.engine is None or self._writer.is_elsewhere(task):
            return False
        engine = await service.engines.reach(task.agent, task.engine)
        ended = await records.turn(session.id, task.turn_id)
        if ended is not None and may_go_on(task, ended):
            session.fold(spent_so_far(session.id, spent))
            self._apply_recorded_limit(session, task, ended)
            return True
        try:
            if engine is None or session.id not in await engine.running_sessions():
                return False
            opened = await engine.adopt(session.id, session.options)
        except HelmsmanError as error:
            log.info("session %s could not be attached to: %s", session.id, error)
            return False
        turn_id = opened.turn_id or task.turn_id
        recorded = None if turn_id is None else await records.turn(session.id, turn_id)
        self._writer.begin(task.id, session, engine=engine.id, taken_over=task, recorded=recorded)
        service.apply_policy(session, task)
        session.apply(TurnAdopted(session_id=session.id, turn_id=turn_id))
        note_opened(session, opened)
        if not session.state.has_turn:  # or the agent's own news of it would begin to count anew
            session.apply(TurnStarted(session_id=session.id, turn_id=turn_id))
        is_counted = recorded is not None and recorded.usage is not None
        session.fold(
            spent_in_turn(session.id, spent, recorded)
            if is_counted and recorded is not None
            else spent_so_far(session.id, spent)
        )
        # After the state is complete: attaching delivers the open questions.
        service.attach(session, engine)
        service.check_spending(session)
        service.watch(session)
        # The earlier hub logged the request. Whether the agent got it is not known.
        if session.state.is_interrupting:
            self._shared.tasks.start_soon(self._finish_interrupt, session)
        with anyio.move_on_after(_ASKED_AGAIN_SECONDS if task.input_required or opened.is_asking else 0):
            while session.state.is_running and not session.questions:
                await session.feed.changed()
        return True

    async def _finish_interrupt(self, session: Session) -> None:
        """Stop a turn that an earlier hub was about to stop. An agent that is stopping already ignores it."""
        try:
            await session.interrupt()
        except HelmsmanError as error:
            log.warning("the turn of session %s could not be stopped: %s", session.id, error)

    def _apply_recorded_limit(self, session: Session, task: Task, turn: RecordedTurn) -> None:
        """End the session's newest turn by the usage limit that ended it while no hub ran."""
        self._writer.begin(task.id, session, engine=task.engine, taken_over=task, recorded=turn)
        self._service.apply_policy(session, task)
        if not session.state.is_running:
            session.apply(TurnRequested(session_id=session.id, text=task.instruction))
        session.verbs.on_event(session, ended_by_limit(session.id, turn))

    # --- turns whose engine is gone ----------------------------------------------------------------------------------

    def looks_up_end(self, session: Session, gone: EngineGone) -> bool:
        """Return whether the end of the running turn is read from the agent's record, before the session hears that its
        engine is gone.
        """
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
                self._apply_end(session, gone, turn_id, None)
            raise
        self._apply_end(session, gone, turn_id, turn)

    def _apply_end(self, session: Session, gone: EngineGone, turn_id: str | None, turn: RecordedTurn | None) -> None:
        # The task is no evidence: it may be registered only now, and a task that resumes has several turns.
        if session.state.turn_id != turn_id or not session.state.is_running:
            return  # it was ended in the meantime, and another one may run in another engine
        for event in () if turn is None else unreported(session.state, recorded_events(session.id, turn)):
            self._service.handle_event(session, event)
        self._service.handle_event(session, gone)

    async def _recorded(self, session: Session, turn_id: str | None) -> RecordedTurn | None:
        """Return the running turn of a session, if its end is recorded, or is while its engine is still there."""
        deadline = anyio.current_time() + _RECORD_SECONDS
        while True:
            may_write = await self._is_there(session.engine, session.options.agent)  # before the read of its last write
            turn = await self._shared.agent_records.turn(session.id, turn_id)
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
        is_alive = self._service.agents[agent].engine_is_alive
        return await anyio.to_thread.run_sync(is_alive, self._service.settings, engine.id)


# --- what a turn's log, task and record say together -----------------------------------------------------------------


def with_unsent_queued(logged: StoredEvents, waiting: Collection[str]) -> StoredEvents:
    """Return a log in which a turn that was requested, and whose task still waits, is a queued message.

    A hub was killed between the request and its intent to send it. The next one sends it.
    """
    events = logged.events
    place = next((at for at in reversed(range(len(events))) if isinstance(events[at], TurnRequested)), None)
    if place is None or any(isinstance(event, TurnStarted | TurnAdopted | TurnEnded) for event in events[place:]):
        return logged
    asked = events[place]
    if not isinstance(asked, TurnRequested) or asked.task_id not in waiting or asked.task_id is None:
        return logged
    queued = MessageQueued(session_id=asked.session_id, task_id=asked.task_id, text=asked.text).with_time(asked.at)
    return logged._replace(events=(*events[:place], queued, *events[place + 1 :]))


def is_unlogged(logged: StoredEvents, turn: RecordedTurn | None) -> bool:
    """Return whether an agent's own program ran this turn, its last one, after those in the log, or without a log."""
    if not any(isinstance(event, TurnRequested | TurnStarted) for event in logged.events):
        return True
    if turn is None or turn.began_at is None or logged.changed_at is None:
        return False
    return turn.began_at > logged.changed_at and all(event.turn_id != turn.turn_id for event in logged.events)


def unreported(state: StateView, events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events of a running turn that the agent has recorded and not reported."""
    # Compared by text, since the record and the engine name a message differently.
    said = [item.text for item in state.items if isinstance(item, AgentMessage)]
    for event in events:
        is_said = isinstance(event, ItemEnded) and isinstance(event.item, AgentMessage) and event.item.text in said
        if not is_said and not isinstance(event, TurnRequested | TurnStarted):
            yield event


def events_of_last_turn(session_id: str, task: Task | None, turn: RecordedTurn | None) -> tuple[Event, ...]:
    """Return the events of a session's last turn, as far as they matter; none if its end is not known.

    Its task tells of the end if it did not complete and the agent's record has no end or no reason: an agent that was killed
    records nothing, a turn that never began is in no record, and a turn that was silent for too long is recorded as
    interrupted. Some agents do not record interrupts.
    """
    recorded = () if turn is None else recorded_events(session_id, turn)
    if task is None or task.status not in ("failed", "unknown", "canceled"):
        return recorded
    is_canceled, is_later = task.status == "canceled", False
    # A recorded turn from before the task is an earlier one.
    if turn is not None and (turn.began_at is None or turn.began_at >= task.created_at):
        is_its_own = task.turn_id is None or turn.turn_id is None or task.turn_id == turn.turn_id
        is_later = True
        if not is_its_own or turn.outcome in ("failed", "interrupted" if is_canceled else "completed"):
            return recorded
    begun: tuple[Event, ...] = (TurnRequested(session_id=session_id, text=task.instruction),)
    if is_canceled:
        ending = TurnEnded(session_id=session_id, turn_id=task.turn_id, outcome="interrupted")
        return (*((is_later and recorded[:-1]) or begun), ending)
    error = {"message": task.note or _NO_END, "retryable": True, **(task.error or {})}
    failure = Failure(
        code=str(error.get("code", "engine_lost")), message=str(error["message"]), retryable=bool(error["retryable"])
    )
    return (*begun, TurnEnded(session_id=session_id, turn_id=task.turn_id, outcome="failed", failure=failure))


def recorded_events(session_id: str, turn: RecordedTurn) -> tuple[Event, ...]:
    """Return the events of a turn that its agent has recorded; none if it has not ended."""
    if turn.outcome == "open":
        return ()
    events: list[Event] = [TurnStarted(session_id=session_id, turn_id=turn.turn_id)]
    if turn.message is not None:
        message = AgentMessage(id="final", text=turn.message, phase="final_answer")
        events.append(ItemEnded(session_id=session_id, turn_id=turn.turn_id, item=message))
    if turn.usage is not None:
        events.append(UsageReported(session_id=session_id, turn_id=turn.turn_id, turn=turn.usage))
    ending = TurnEnded(session_id=session_id, turn_id=turn.turn_id, outcome=turn.outcome, failure=turn.error)
    return (*events, ending.with_time(turn.ended_at))


# --- a task that no process follows ----------------------------------------------------------------------------------


def reconcile(
    task: Task, turn: RecordedTurn | None, now: datetime, agent: str, *, engine_alive: bool | None = None
) -> TaskChanges | None:
    """Return the changes for `Registry.update` of a task without a living owner, or None if it is correct.

    Cloud tasks are left alone: only the cloud knows about them.

    Args: task: The task. turn: The record of the turn that it names or, if one of both has no id, of the likeliest. now: The
    time. agent: The agent's name in sentences. engine_alive: Whether its detached engine runs; None if it has none.
    """
    if task.origin == "cloud" or task.has_ended:
        return None
    if task.is_waiting:
        return _of_waiting(task, now)
    turn = _own_turn(task, turn)
    if turn is not None and turn.outcome != "open":
        return None if may_go_on(task, turn) else _ended(task, turn, now, agent)
    if engine_alive and (turn is not None or task.turn_id is not None):
        return None if task.status == "working" else TaskChanges(status="working")
    # Ignore signs from the future: the clock was set back. Allow for an engine that has not recorded its input yet.
    may_be_known = engine_alive is None or (engine_alive and task.status == "working")
    if task.is_running and may_be_known and abs(now - _last_sign_of(task, turn)) < GRACE:
        return None
    if turn is not None:
        return _lost(task, agent)
    if task.status == "unknown" or (engine_alive and task.input_position is not None):
        return None  # the next hub asks the agent's supervisor how much input it received
    return TaskChanges(status="unknown", note=_what_is_known(task, agent))


def may_go_on(task: Task, turn: RecordedTurn) -> bool:
    """Return whether a usage limit ended the turn while no hub ran, and its caller wants it to resume, or to be asked.

    The next hub does that (`helmsman.capabilities.limits`).
    """
    reached = turn.outcome == "failed" and turn.error is not None and turn.error.code == USAGE_LIMIT
    return task.is_hubs and task.engine is not None and reached and task.on_limit in ("ask", "wait")


def _of_waiting(task: Task, now: datetime) -> TaskChanges | None:
    if now - (task.resumes_at or task.created_at) > WAITS:
        note = f"It never began: no client came in {WAITS.days} days with the environment it was asked from. Start it again."
        return TaskChanges(status="canceled", note=note, idempotency_key=None)
    return None if task.note is not None else TaskChanges(note=WAITING)


def _own_turn(task: Task, turn: RecordedTurn | None) -> RecordedTurn | None:
    """Return the turn if it belongs to this task. A turn without a known id must not have begun before the task."""
    if turn is None or (task.turn_id is not None and turn.turn_id is not None):
        return turn
    began = turn.began_at is not None and turn.began_at >= task.created_at - CLOCK_SKEW
    return turn if began else None


def _ended(task: Task, turn: RecordedTurn, now: datetime, agent: str) -> TaskChanges:
    changes = TaskChanges(completed_at=turn.ended_at or now)
    if turn.message is not None:
        changes["result"] = turn.message
    if turn.usage is not None:
        changes["usage"] = task.used_before + turn.usage
    if turn.model is not None:
        changes["model"] = turn.model
    if turn.turn_id is not None:
        changes["turn_id"] = turn.turn_id
    if turn.outcome == "completed":
        changes["status"] = "completed"
    elif turn.outcome == "interrupted":
        changes["status"] = "canceled"
        changes["note"] = "The turn was interrupted. Send the session a message to continue."
    else:
        error = turn.error
        changes["status"] = "failed"
        changes["error"] = {
            "code": "turn_failed" if error is None else error.code,
            "message": f"{agent} ended the turn as failed and did not say why." if error is None else error.message,
            "retryable": error is not None and error.retryable,
        }
    return changes


def _lost(task: Task, agent: str) -> TaskChanges:
    message = f"{agent} was stopped in the middle of this turn, and nothing is left that could finish it. "
    message += f"Send the session {task.session_id or ''} a message such as “continue” to continue.".replace("  ", " ")
    return TaskChanges(status="failed", error={"code": "engine_lost", "message": message, "retryable": True})


def _what_is_known(task: Task, agent: str) -> str:
    owner = "The process that followed this task has ended"
    if task.session_id is None:
        return f"{owner} before a session had begun, so it probably never ran. Start it again if it is still wanted."
    if task.turn_id is None:
        return f"{owner} before {agent} had begun the turn. Look at session {task.session_id} before starting it again."
    return f"{owner}, and {agent}'s storage has no record of its turn. Look at session {task.session_id} for what was done."


def _last_sign_of(task: Task, turn: RecordedTurn | None) -> datetime:
    written = None if turn is None else turn.last_written_at
    return max(time for time in (task.updated_at, task.last_event_at, written) if time is not None)
