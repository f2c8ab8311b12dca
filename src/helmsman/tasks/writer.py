"""Write tasks: every turn of every session is one, and the events of the session update it.

A turn is registered before Codex receives it, so that a process which dies at any moment leaves a trace. Later changes come
as events. Changes of one task are batched and written a few times a second at most; an end or a question is written
immediately. If the registry cannot be written (a full disk, a read-only directory), that is logged and stops no work.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread

from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.errors import EngineStartFailed, RegistryUnavailable
from helmsman.model.answered_by import DEADLINE
from helmsman.model.events import (
    EngineGone,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    QuestionAsked,
    QuestionClosed,
    SessionFact,
    TurnEnded,
    Usage,
)
from helmsman.sessions.progress import infer_progress
from helmsman.store.log import NewEvent
from helmsman.store.upkeep import RETENTION
from helmsman.tasks.jobs import RunningJob
from helmsman.tasks.model import (
    Task,
    TaskChanges,
    TaskDraft,
    changed,
    merged_changes,
    of_agents,
    task_status_of,
)
from helmsman.tasks.outcome import outcome_of
from helmsman.tasks.registry import REGISTRY_NAME, Batch, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta
    from pathlib import Path

    from helmsman.agents.protocol import RecordedTurn
    from helmsman.errors import HelmsmanError
    from helmsman.model.events import Event
    from helmsman.sessions.session import Session
    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Fence
    from helmsman.tasks.agent_records import AgentRecords
    from helmsman.tasks.jobs import TurnGate
    from helmsman.tasks.model import TaskStatus
    from helmsman.tasks.outcome import TaskOutcome

log = logging.getLogger(__name__)

_INTERVAL: Final = 0.5
"""Seconds for which non-urgent changes wait, to be written in one batch."""
_AGAIN_SECONDS: Final = 5.0
"""Pause before failed changes are written again, if nothing else is written earlier."""
_STOPPED: Final = "It was stopped when its server ended."
_MOST_KEPT: Final = 1000
"""Maximum number of tasks with unwritten changes kept while the registry cannot be written, besides running ones."""
_MOST_EVENTS_KEPT: Final = 20_000
"""Maximum number of events kept while the store cannot be written."""
_CLOSE_SECONDS: Final = 5.0
_START_SECONDS: Final = 60.0
_START_POLL: Final = 0.05

_NOBODY: Final = Process(0, "")
"""Owner of turns that a service inside a process has left in a detached engine."""

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class RunningTask:
    """Running turn of a session, as the writer of its task needs it."""

    id: str
    session: Session
    before: Usage = field(default_factory=Usage)
    """Known usage before this turn, or before the task was taken over."""
    taken_over: Task | None = None
    """Task as the process that began it left it. Only Codex's own record has its usage before the takeover."""
    note_if_stopped: str | None = None
    note_if_over: str | None = None
    later: TaskChanges | None = None
    """Changes to write when its turn ends and the same task resumes later."""
    engine: str | None = None
    """Detached engine of its turn."""

    @property
    def used(self) -> Usage:
        """Tokens spent in its turn, without those of sub-agents."""
        return self.session.state.turn_usage

    @property
    def spent(self) -> Usage:
        """Tokens spent so far, with those of sub-agents."""
        return self.before + self.used + self.session.state.sub_agents_usage

    def progress(self) -> dict[str, Any] | None:
        """Return the progress of its turn."""
        session = self.session
        if not session.state.is_running:
            return None
        progress = infer_progress(session.items, turn_seconds=session.turn_seconds)
        shown = {**progress.to_json(), "percent": progress.percent}
        return {name: value for name, value in shown.items() if value not in (None, {}, [])}

    def ending(self) -> TaskChanges:
        """Return the changes at the end of its turn."""
        session, error, now = self.session, self.session.error, datetime.now(UTC)
        if self.later is not None:
            pausing: TaskChanges = {"turn_id": session.state.turn_id, "last_event_at": now, "usage": self.spent}
            return {**pausing, "progress": None, "input_required": False, **self.later}
        ending: TaskChanges = {
            "status": task_status_of(session.state.between_turns or session.status),
            "turn_id": session.state.turn_id,
            "model": session.model,
            "last_event_at": now,
            "completed_at": now,  # not when it is written: the session's next turn begins after this
            "result": session.result,
            "usage": self.spent,
            "progress": None,
        }
        note = self.note_if_stopped if session.status == "interrupted" else self.note_if_over
        missed = session.state.timed_out_note
        if note is not None or missed is not None:
            ending["note"] = " ".join(filter(None, (note, missed)))
        if missed is not None:
            ending["timed_out"] = tuple(session.state.timed_out)
        if error is not None:
            ending["error"] = {"code": error.code, "message": error.message, "retryable": error.retryable}
        return ending


class TaskWriter:
    """Writes tasks. `run` belongs into the task group of the service; `close` writes the remaining changes.

    `fence` belongs to a hub: the next hub runs the tasks that it acknowledges. Any other process is registered as the owner
    of its tasks, and no other process touches them while it lives.
    """

    def __init__(
        self,
        state_dir: Path,
        agent_records: AgentRecords,
        fence: Fence | None = None,
        retention: timedelta = RETENTION,
        *,
        store: str | None = None,
    ) -> None:
        self._registry = Registry(state_dir / REGISTRY_NAME, address=store, fence=fence, retention=retention)
        self.database = self._registry.database
        self._retention = retention
        self._is_hubs = fence is not None
        self.me = None if self._is_hubs else Process.me()
        self._agent_records = agent_records
        self._running: dict[str, RunningTask] = {}
        self._not_begun: set[str] = set()
        """Tasks entered here of which no engine that outlives us has heard, and that have neither begun nor ended."""
        self.jobs: dict[str, RunningJob] = {}
        """Jobs that run here, by their tasks; their turns are separate tasks."""
        self._placed: set[str] = set()
        """Tasks of which such an engine may have heard, and that are not known to have begun."""
        self._batch = Batch()
        """Changes to write."""
        self._being_written: Mapping[str, list[NewEvent]] = {}
        self._uncounted: dict[str, tuple[str, str | None, Usage]] = {}
        """Tasks that ended and were taken over before, with their session and turn, and what they used besides that turn."""
        self._spent: dict[str, Usage] = {}
        """Usage of tasks before the turn with which they resume."""
        self.max_costs: dict[str, float] = {}
        """Cost limits of tasks, by their ids, if their callers set one."""
        self._leaving = False
        self._wake = anyio.Event()
        self._urgent = anyio.Event()
        self._writing = anyio.Lock(fast_acquire=True)
        self.on_trouble: Callable[[RegistryUnavailable | None], None] = lambda _: None
        """Called with the error when changes cannot be written, and with None when they can again."""
        self._is_in_trouble = False

    # --- jobs --------------------------------------------------------------------------------------------------------

    async def enter_job(self, draft: TaskDraft) -> tuple[Task, bool]:
        """Register a job that runs here from now on. Return False with the existing job if its idempotency key is in use.

        Raises:
            RegistryUnavailable: It cannot be registered. No hub could resume it, so it does not begin.
        """
        task, is_fresh = await self.registry(lambda registry: registry.add(replace(draft, owner=self.me)))
        if is_fresh:
            self.jobs[task.id] = RunningJob()
        return task, is_fresh

    async def take_job(self, task: Task) -> bool:
        """Claim a job that an earlier hub left. Return False if another process runs it, or it has ended."""
        if not await self.take(task):
            return False
        self.jobs[task.id] = RunningJob()
        self.no_longer_starts(task.id)
        return True

    async def end_job(self, task_id: str, changes: TaskChanges, outcome: TaskOutcome | None = None) -> None:
        """End a job, and store its outcome."""
        if outcome is not None:
            self.keep_outcome(task_id, outcome)
        self.update(task_id, changes)
        job = self.jobs.pop(task_id, None)
        await self.write()
        if job is not None:
            job.ended.set()
            job.notify()

    def gate(self, task_id: str) -> TurnGate | None:
        """Return the step of a job before this turn of it begins, if any."""
        return next((job.gates[task_id] for job in self.jobs.values() if task_id in job.gates), None)

    async def registry(self, do: Callable[[Registry], ResultT]) -> ResultT:
        """Do something with the registry, on a thread.

        Raises:
            RegistryUnavailable: It cannot be read or written.
        """
        return await anyio.to_thread.run_sync(do, self._registry, limiter=self.database.one_at_a_time)

    # --- turns begin -------------------------------------------------------------------------------------------------

    async def enter(self, draft: TaskDraft, *, soon: bool = False) -> tuple[str, Task | None]:
        """Register a task and return the id to run it under. If its idempotency key is in use, return the other task, with
        its session. From now on the task is held to its cost limit.

        A waiting task with the same key, which its hub did not begin, is the one to run. `soon` delays the write until the
        next one, before an agent receives it. Use it only for a task that cannot be a duplicate and that is not yet visible
        to any client.

        Raises:
            InvalidInput: The other is another agent's.
            EngineStartFailed: It is being started, and that takes too long.
        """
        task_id, known = await self._enter(replace(draft, owner=self.me), soon=soon)
        if known is None:
            self._hold_to_cost(replace(draft, id=task_id))
        return task_id, known

    async def _enter(self, draft: TaskDraft, *, soon: bool) -> tuple[str, Task | None]:
        if soon and draft.id is not None:
            self._batch.drafts[draft.id] = draft
            self._not_begun.add(draft.id)
            self.update(draft.id, {}, urgent=False)
            return draft.id, None
        try:
            # Until the task is new, or taken over, or its session is known.
            while True:
                task, fresh = await self.registry(lambda registry: registry.add(draft))
                if fresh:
                    self._not_begun.add(task.id)
                of_agents(task, draft.agent)
                if fresh or await self.take(task):
                    return task.id, None
                if (begun := await self._with_session(task)) is not None:
                    return begun.id, begun
        except RegistryUnavailable as error:
            log.warning("task %s is not registered: %s", draft.id, error)
            return draft.id or "", None

    async def with_key(self, key: str, *agents: str) -> Task | None:
        """Return the task of these agents with an idempotency key. None if the registry cannot be read."""
        await self.write()
        try:
            task = await self.registry(lambda registry: registry.with_key(key))
        except RegistryUnavailable as error:
            log.warning("whether this key is in use is not known: %s", error)
            return None
        return None if task is None else of_agents(task, *agents)

    async def take(self, task: Task) -> bool:
        """Claim a waiting task in order to run it. Return False if it is already claimed here, or waits no longer.

        Raises:
            RegistryUnavailable: It cannot be read.
        """
        if not self._is_hubs or not task.is_waiting or self.has(task.id):
            return False
        # Before the first wait, so that no other caller claims it as well.
        self._not_begun.add(task.id)
        is_ours = False
        try:
            await self.write()  # it may just have been cancelled
            now = await self.registry(lambda registry: registry.get(task.id))
            is_ours = now is not None and now.is_waiting
        finally:
            if is_ours:
                self._hold_to_cost(task)
            else:
                self._not_begun.discard(task.id)
        return is_ours

    def is_starting(self, task_id: str) -> bool:
        """Return whether a task is on its way to an agent here, or in the queue of its session."""
        return task_id in self._not_begun or task_id in self._placed

    def has(self, task_id: str) -> bool:
        """Return whether a task runs here, or is about to."""
        if self.is_starting(task_id) or task_id in self.jobs:
            return True
        return any(running.id == task_id for running in self._running.values())

    def is_elsewhere(self, task: Task) -> bool:
        """Return whether another process owns a task: only that one can steer and stop it."""
        if task.is_hubs:
            return not self._is_hubs
        return not self.has(task.id) and task.has_living_owner

    def who_runs(self, task: Task) -> str:
        """Return a sentence that says which process runs the turn of a task, and what can be done here."""
        if not self.is_elsewhere(task):
            return "No process follows this turn right now. Look again in a moment."
        who = task.runner.capitalize()
        return f"{who} runs this turn, and only it can steer, stop and answer it. Do that there, or wait for its end."

    def give_back(self, task_id: str, note: str) -> None:
        """Return a claimed task to the queue."""
        self._not_begun.discard(task_id)
        self.update(task_id, {"note": note})

    async def _with_session(self, task: Task) -> Task | None:
        """Return the task of the idempotency key, with its session; None if it failed to start and the key is free."""

        def is_starting() -> bool:
            return task.session_id is None and task.is_running and (self.has(task.id) or self.is_elsewhere(task))

        with anyio.move_on_after(_START_SECONDS):
            # Another process may be starting it, and only the store shows when it has.
            while is_starting():
                await anyio.sleep(_START_POLL)
                known = await self.registry(partial(Registry.get, task_id=task.id))
                task = known or task
        if is_starting():
            raise EngineStartFailed(
                f"Task {task.id} has been starting with this idempotency key for {_START_SECONDS:g} s. Try again, or use "
                "another key."
            )
        task = await self.claim(task)
        if task.session_id is None:
            await self.registry(lambda registry: registry.free_key(task))
            return None
        return task

    async def claim(self, task: Task) -> Task:
        """Return a claimed task of a dead process, with the session that was opened for it but not yet recorded."""
        opened = task.opened_session
        if task.session_id is not None or task.is_waiting or opened is None:
            return task
        if task.engine is None and await self._agent_records.find(opened) is None:
            return task  # the session was never created
        status: TaskStatus = "working" if task.is_running else task.status
        return await self.conclude(task, {"session_id": opened, "status": status})

    async def conclude(self, task: Task, changes: TaskChanges) -> Task:
        """Write the outcome of a task, and return it. If another process has updated it in between, that update wins."""
        concluded = changed(task, changes, datetime.now(UTC), self._retention)
        if task.is_hubs and not self._is_hubs:
            return concluded  # for a hub to write down
        try:
            told = await self.registry(lambda registry: registry.update(task.id, if_revision=task.revision, **changes))
        except RegistryUnavailable as error:
            log.warning("the outcome of task %s is not stored: %s", task.id, error)
            return concluded
        return told or concluded

    def place(self, task_id: str, engine: str | None, opened: str | None) -> None:
        """Record that an agent is about to receive a task (`write_intent`): its engine, and the session opened for it.

        Other processes look there if this one dies. An engine without an id ends with this process.
        """
        if engine is not None:
            self._not_begun.discard(task_id)
            self._placed.add(task_id)
        self.update(task_id, {"engine": engine, "opened_session": opened, "asked_at": datetime.now(UTC)}, urgent=False)

    async def write_intent(self, task_id: str) -> None:
        """Write all changes, before an agent receives this task.

        Raises:
            RegistryUnavailable: A hub cannot write them. It must not run the task, or the next hub would run it again.
        """
        await self.write()
        # Changes that are still in the batch could not be written.
        if self._is_hubs and "engine" in self._batch.changes.get(task_id, ()):
            raise RegistryUnavailable(
                f"No record can be written of task {task_id}, so it was not started. Free some disk space, then try again."
            )

    def begin(
        self,
        task_id: str,
        session: Session,
        *,
        engine: str | None,
        taken_over: Task | None = None,
        recorded: RecordedTurn | None = None,
        asked_at: datetime | None = None,
    ) -> None:
        """Make the task the running turn of this session.

        For a task that is `taken_over`, the usage that its agent has `recorded` is newer than the registered usage.
        `asked_at` is the time at which the agent got the request, if that was earlier.
        """
        goes_on = task_id in self._spent
        before = self._spent.pop(task_id, Usage()) if taken_over is None else taken_over.usage or Usage()
        if taken_over is not None and recorded is not None and recorded.usage is not None:
            before = taken_over.used_before  # the session's state has the rest
        running = RunningTask(task_id, session, before=before, taken_over=taken_over, engine=engine)
        self._running[session.id] = running
        self.no_longer_starts(task_id)
        if taken_over is None:
            self.update(task_id, {"asked_at": asked_at or datetime.now(UTC)}, urgent=False)
        else:
            self._hold_to_cost(taken_over)
        if goes_on:
            resumed: TaskChanges = {"waiting_for": None, "resumes_at": None, "limit_reached_at": None}
            self.update(task_id, {**resumed, "used_before": before, "note": None})
        self.update(
            task_id,
            {
                "status": "working",
                "session_id": session.id,
                "turn_id": session.state.turn_id,
                "directory": session.directory,
                "model": session.model,
                "engine": engine,
                "owner": self.me,
                "last_event_at": datetime.now(UTC),
                "spec": None,
            },
            urgent=taken_over is not None,  # the intent to send it is already written
        )

    def fail(self, task_id: str, error: HelmsmanError) -> None:
        """Mark a task as failed before its turn began."""
        self.no_longer_starts(task_id)
        # The key is free again, so that the same request can be tried anew.
        self.update(task_id, {"status": "failed", "error": error.as_dict(), "idempotency_key": None})

    def cancel(self, task_id: str, note: str) -> None:
        """Mark a task as cancelled before its turn began."""
        self.no_longer_starts(task_id)
        self.update(task_id, {"status": "canceled", "note": note})

    def no_longer_starts(self, task_id: str) -> None:
        self._not_begun.discard(task_id)
        self._placed.discard(task_id)

    def explain(self, session_id: str, *, if_stopped: str, if_over: str | None = None) -> None:
        """Set the reason why the running turn of a session is about to be stopped. It is recorded with the end.

        The first reason counts.

        Args: session_id: The session. if_stopped: The note if the turn ends by being stopped. if_over: The note if it ends
        in another way before that.
        """
        running = self._running.get(session_id)
        if running is not None and running.note_if_stopped is None:
            running.note_if_stopped, running.note_if_over = if_stopped, if_over

    def go_on_later(self, session_id: str, changes: TaskChanges) -> None:
        """Keep the task of the running turn open when the turn ends: it resumes with another turn, in this session."""
        running = self._running[session_id]
        running.later = {**changes, "opened_session": None}
        self._spent[running.id] = running.spent

    def goes_on(self, task_id: str) -> bool:
        """Return whether the next turn of a task resumes an earlier one."""
        return task_id in self._spent

    def spent_before(self, task_id: str, usage: Usage | None) -> None:
        """Set the usage of a task before the turn with which it resumes."""
        self._spent[task_id] = usage or Usage()

    def hold(self, task_id: str, session: Session, changes: TaskChanges) -> None:
        """Hold a task until a question in this session is answered, before it begins or resumes. The next hub asks again."""
        self.no_longer_starts(task_id)
        before = self._spent.setdefault(task_id, Usage())
        self._running[session.id] = RunningTask(task_id, session, before=before)
        self.update(task_id, {"directory": session.directory, "model": session.model, "usage": before, **changes})

    def _hold_to_cost(self, task: Task | TaskDraft) -> None:
        """Let a task be stopped at its cost limit (`helmsman.capabilities.budgets`)."""
        if task.id is not None and task.max_cost_usd is not None:
            self.max_costs[task.id] = task.max_cost_usd

    def used_before(self, task_id: str) -> Usage:
        """Return the usage so far of a task that is about to resume."""
        return self._spent.get(task_id, Usage())

    def used_by_turns(self) -> dict[str, Usage]:
        """Return the usage of the turns that run here, by their ids."""
        running = ((one.session.state.turn_id, one.used) for one in self._running.values())
        return {turn_id: used for turn_id, used in running if turn_id is not None}

    def running_task(self, session_id: str) -> str | None:
        """Return the task of a session's running turn."""
        running = self._running.get(session_id)
        return running.id if running is not None else None

    def engine_of(self, session_id: str) -> str | None:
        """Return the detached engine of a session's running turn."""
        running = self._running.get(session_id)
        return running.engine if running is not None else None

    def usage_of(self, session_id: str) -> Usage | None:
        """Return the usage of the running turn of a session."""
        running = self._running.get(session_id)
        return running.spent if running is not None else None

    # --- events of turns ---------------------------------------------------------------------------------------------

    def log_event(self, session: Session, event: Event) -> None:
        """Append what happened in a session to its log, with the next write."""
        # Never stored: the end of the item has the whole text.
        if not isinstance(event, ItemDelta):
            self._batch.events.setdefault(session.id, []).append(NewEvent.of(event, session.feed.cursor))
            self._wake.set()

    def on_event(self, session: Session, event: Event) -> None:
        """Change the task of a session's turn by what happened in the session."""
        running = self._running.get(session.id)
        if running is None or isinstance(event, ItemDelta | SessionFact):
            if isinstance(event, ItemEnded) and event.agent_id is None:
                self._after_the_end(session)
            return
        if isinstance(event, TurnEnded | EngineGone) and not session.state.has_turn:
            del self._running[session.id]
            # The session has counted here only what came after the takeover.
            if running.taken_over is not None:
                besides = running.taken_over.used_before + session.state.sub_agents_usage
                self._uncounted[running.id] = session.id, session.state.turn_id, besides
            ending = running.ending()
            if running.later is None:
                self.max_costs.pop(running.id, None)
            if self._leaving and isinstance(event, EngineGone):
                ending["note"] = " ".join(filter(None, (_STOPPED, ending.get("note"))))
            self._batch.outcomes[running.id] = outcome_of(session.items, session.state.diff, session.directory)
            self.update(running.id, ending)
            if session.is_watched:
                self._batch.seen.add(running.id)
            return
        if isinstance(event, ItemStarted | ItemEnded) and "last_event_at" in self._batch.changes.get(running.id, ()):
            return  # to be written within half a second anyway, and it would say the same
        changes: TaskChanges = {
            "turn_id": session.state.turn_id,
            "model": session.model,
            "last_event_at": datetime.now(UTC),
            "input_required": bool(session.state.questions),
        }
        # The count of an earlier process is known at the end, from the agent's record.
        if running.taken_over is None:
            changes["usage"] = running.spent
        is_urgent = isinstance(event, QuestionAsked | QuestionClosed)
        if isinstance(event, QuestionClosed) and event.by == str(DEADLINE):
            changes["note"] = session.state.timed_out_note
            changes["timed_out"] = tuple(session.state.timed_out)
        self.update(running.id, changes, urgent=is_urgent)

    def uncommitted(self, session_id: str) -> int:
        """Return how many events of a session are not in its log yet."""
        return len(self._batch.events.get(session_id, ())) + len(self._being_written.get(session_id, ()))

    async def write_intents(self) -> None:
        """Write the intents of a hub: if it dies, the next one knows what may have been done."""
        if self._is_hubs:
            await self.write()

    def _after_the_end(self, session: Session) -> None:
        """Update the outcome of an ended turn. Some versions of Codex report a command's end after its turn's."""
        if session.task_id is not None and session.task_id not in self._not_begun and not session.state.is_running:
            self._batch.outcomes[session.task_id] = outcome_of(session.items, session.state.diff, session.directory)
            self._wake.set()

    def keep_outcome(self, task_id: str, outcome: TaskOutcome) -> None:
        """Schedule the outcome of a task to be written, before its end is."""
        self._batch.outcomes[task_id] = outcome

    def update(self, task_id: str, changes: TaskChanges, *, urgent: bool = True) -> None:
        """Schedule changes to be written: immediately or, if they are not urgent, with the next ones."""
        self._batch.changes[task_id] = merged_changes(self._batch.changes.get(task_id, {}), changes)
        self._wake.set()
        if urgent:
            self._urgent.set()

    # --- writing -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write changes as they come, until cancelled."""
        while True:
            # Changes that are here at this point could not be written.
            with anyio.move_on_after(_AGAIN_SECONDS if self._batch.changes else None):
                await self._wake.wait()
            with anyio.move_on_after(_INTERVAL):
                await self._urgent.wait()
            await self.write()

    async def write(self, also: Callable[[StoreConnection], object] | None = None) -> None:
        """Write all changes so far. Waits for a concurrent write to finish first.

        `also` is written in the same transaction; if that fails, `RegistryUnavailable` is raised.
        """
        async with self._writing:
            if self._wake.is_set():  # otherwise `run` keeps waiting for the events it knows
                self._wake = anyio.Event()
            if self._urgent.is_set():
                self._urgent = anyio.Event()
            if not self._batch and also is None:
                return
            batch, self._batch = self._batch, Batch()
            self._being_written = batch.events
            # Once for each write and not for each event, since it reads the whole output of commands.
            for running in self._running.values():
                if running.id in batch.changes:
                    batch.changes[running.id]["progress"] = running.progress()
            try:
                with anyio.CancelScope(shield=True):  # accepted work must be stored
                    await self._count_whole_turns(batch.changes)
                    await self.registry(lambda registry: registry.commit(batch, also))
            except RegistryUnavailable as error:
                log.warning("the state of %d task(s) is not registered yet: %s", len(batch.changes), error)
                self._keep_for_later(batch)
                self._is_in_trouble = True
                self.on_trouble(error)
                if also is not None:
                    raise
            else:
                if self._is_in_trouble:
                    self._is_in_trouble = False
                    self.on_trouble(None)
            finally:
                self._being_written = {}

    def _keep_for_later(self, failed: Batch) -> None:
        """Keep what could not be written for the next write, as far as there is room. An end must not be lost.

        All changes of tasks that run here are kept: `write_intent` finds out from them that an intent is not written.
        """
        batch = self._batch
        for task_id, change in failed.changes.items():
            if task_id in batch.changes or self.has(task_id) or len(batch.changes) < _MOST_KEPT:
                batch.changes[task_id] = merged_changes(change, batch.changes.get(task_id, {}))
        batch.drafts |= {task_id: draft for task_id, draft in failed.drafts.items() if task_id in batch.changes}
        batch.seen |= failed.seen & batch.changes.keys()
        if len(failed.outcomes) < _MOST_KEPT:
            batch.outcomes = failed.outcomes | batch.outcomes
        room = max(0, _MOST_EVENTS_KEPT - sum(map(len, batch.events.values())))
        for session_id, events in failed.events.items():
            lost = max(0, len(events) - room)
            if lost:
                log.error("%d events of session %s are lost: they cannot be stored", lost, session_id)
            batch.events[session_id] = events[lost:] + batch.events.get(session_id, [])
            room -= len(events) - lost

    async def _count_whole_turns(self, changes: Mapping[str, TaskChanges]) -> None:
        for task_id in changes.keys() & self._uncounted.keys():
            session_id, turn_id, before = self._uncounted.pop(task_id)
            turn = await self._agent_records.turn(session_id, turn_id)
            if turn is not None and turn.usage is not None:
                changes[task_id]["usage"] = before + turn.usage

    async def leave(self) -> Sequence[Task]:
        """Return the unfinished tasks of this process, which is about to end. Engines that end from now on get that as the
        reason.
        """
        self._leaving = True
        await self.write()
        try:
            running = await self.registry(lambda registry: registry.running())
        except RegistryUnavailable as error:
            log.warning("the running tasks are not known: %s", error)
            return ()
        return [task for task in running if self.has(task.id)]

    async def close(self) -> None:
        """Write the remaining changes, and close the file."""
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            for task_id in (*(running.id for running in self._running.values()), *self._placed):
                # In an engine that outlives this process: for the next hub, or the first process that finds it.
                self.update(task_id, {"owner": None if self._is_hubs else _NOBODY})
            for task_id in () if self._is_hubs else self.jobs:  # the next hub resumes a hub's jobs
                self.update(task_id, {"status": "canceled", "note": "Helmsman was closed before it was done."})
            for task_id in self._not_begun:
                note = "Helmsman was closed before it began. Start it again if it is still wanted."
                self.update(task_id, {"status": "canceled", "note": note, "idempotency_key": None})
            await self.write()
            await anyio.to_thread.run_sync(self._registry.close)
