"""The ledger: every turn of every session is a task, and what happens in it is written into the registry.

A turn is entered before Codex hears of it, so that a process which dies at any moment leaves a trace. What happens then
comes as events; changes of one task are gathered and written a few times a second at most, an end and a question at once.
A registry that cannot be written (a full disk, a read-only directory) is told of in the log and stops no work.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread

from helmsman.base.processes import Process
from helmsman.errors import EngineStartFailed, RegistryUnavailable
from helmsman.model.answered_by import DEADLINE
from helmsman.model.events import (
    EngineGone,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    QuestionAsked,
    QuestionClosed,
    TurnEnded,
    Usage,
    UsageReported,
    UserMessage,
)
from helmsman.sessions.progress import infer_progress
from helmsman.tasks.calls import call_key
from helmsman.tasks.model import (
    ASKED,
    MAX_COST,
    OPENED,
    SCHEDULE,
    TERMS,
    TIMED_OUT,
    Task,
    TaskChanges,
    TaskDraft,
    new_task_id,
    options_to_keep,
    task_status_of,
)
from helmsman.tasks.registry import REGISTRY_NAME, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.protocol import RecordedTurn
    from helmsman.errors import HelmsmanError
    from helmsman.model.events import Event
    from helmsman.model.options import SessionOptions
    from helmsman.sessions.session import Session
    from helmsman.tasks.database import Fence
    from helmsman.tasks.model import TaskStatus
    from helmsman.tasks.truth import TaskTruth

log = logging.getLogger(__name__)

_INTERVAL: Final = 0.5
"""Between two writes of what is not urgent."""
_AGAIN_SECONDS: Final = 5.0
"""Until what could not be written is tried again, if nothing else is to be written before."""
_STOPPED: Final = "It was stopped when its server ended."
_MOST_KEPT: Final = 1000
"""So many tasks' changes are kept for a registry that cannot be written."""
_CLOSE_SECONDS: Final = 5.0
_START_SECONDS: Final = 60.0
_START_POLL: Final = 0.05
_LOOK_FOR_SESSION: Final = timedelta(minutes=1)
"""How long after a task has become `unknown` its session is still looked for. Codex writes it down within moments."""

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Running:
    """A task whose turn is running here."""

    id: str
    session: Session
    counted: Usage | None = None
    """What the session had used before this turn, once that is known."""
    used: Usage = field(default_factory=Usage)
    before: Usage = field(default_factory=Usage)
    """What it is known to have used before it was taken over."""
    taken_over: bool = False
    """Another process began it: what it used before we came is in Codex's own record only."""
    note_if_stopped: str | None = None
    note_if_over: str | None = None


class Ledger:
    """Writes tasks. `run` belongs into the task group of the service; `close` writes what is left.

    `fence` is a hub's: what one acknowledges, the next one runs.
    """

    def __init__(self, state_dir: Path, truth: TaskTruth, fence: Fence | None = None) -> None:
        self._registry = Registry(state_dir / REGISTRY_NAME, fence=fence)
        self._is_hubs = fence is not None
        self._truth = truth
        self._one_at_a_time = anyio.CapacityLimiter(1)
        self._running: dict[str, _Running] = {}
        self._not_begun: set[str] = set()
        """Tasks entered here of which no engine that outlives us has heard, and that have neither begun nor ended."""
        self._placed: set[str] = set()
        """Tasks of which such an engine may have heard, and that are not known to have begun."""
        self._changes: dict[str, TaskChanges] = {}
        self._uncounted: dict[str, tuple[str, str | None]] = {}
        """Tasks that ended and were taken over before, with their session and turn."""
        self._leaving = False
        self._wake = anyio.Event()
        self._urgent = anyio.Event()
        self._writing = anyio.Lock()
        self.on_trouble: Callable[[RegistryUnavailable | None], None] = lambda _: None
        """Called when what is known cannot be written, and with None when it can again."""
        self._is_in_trouble = False

    async def registry(self, do: Callable[[Registry], ResultT]) -> ResultT:
        """Do something with the registry, on a thread.

        Raises:
            RegistryUnavailable: It cannot be read or written.
        """
        return await anyio.to_thread.run_sync(do, self._registry, limiter=self._one_at_a_time)

    # --- turns begin -------------------------------------------------------------------------------------------------

    async def enter(self, draft: TaskDraft) -> tuple[str, Task | None]:
        """Enter a task: the id to run it under. Where another has its idempotency key, that one, once its session is known.

        One with the same key that waits, because its hub ended before it began, is the one to run.

        Raises:
            EngineStartFailed: The other is being started, and that takes too long.
        """
        try:
            while True:
                task, fresh = await self.registry(lambda registry: registry.add(draft))
                if fresh:
                    self._not_begun.add(task.id)
                if fresh or await self.take(task):
                    return task.id, None
                if (begun := await self._with_session(task)) is not None:
                    return begun.id, begun
        except RegistryUnavailable as error:
            log.warning("task %s is not registered: %s", draft.id, error)
            return draft.id or "", None

    async def take(self, task: Task) -> bool:
        """Be the one to run a task that waits; False where somebody is at it, or it waits no more.

        Raises:
            RegistryUnavailable: It cannot be written down.
        """
        me = Process.me()
        others = task.owner is not None and task.owner != me and task.owner.is_alive()
        if not task.is_waiting or others or task.id in self._not_begun:
            return False
        self._not_begun.add(task.id)
        taken = await self.registry(partial(_take, task, me))
        if not taken:
            self._not_begun.discard(task.id)
        return taken

    def is_starting(self, task_id: str) -> bool:
        """Whether a task is on its way to an agent here, or in the queue of its session."""
        return task_id in self._not_begun or task_id in self._placed

    def give_back(self, task_id: str, note: str) -> None:
        """A task that was taken waits again."""
        self._not_begun.discard(task_id)
        self.update(task_id, {"note": note})

    async def _with_session(self, task: Task) -> Task | None:
        """The task another caller began, perhaps in another process; None when that failed and the key is free."""
        with anyio.move_on_after(_START_SECONDS):
            while task.session_id is None:
                if not task.is_running or task.owner is None or not task.owner.is_alive():
                    task = await self.claim(task)
                    if task.session_id is None:
                        await self.registry(partial(_free_key, task))
                        return None
                    return task
                await anyio.sleep(_START_POLL)
                known = await self.registry(partial(Registry.get, task_id=task.id))
                task = known or task
            return task
        raise EngineStartFailed(
            f"Another process has been starting task {task.id} with this idempotency key for {_START_SECONDS:g} s. Try "
            "again, or use another key."
        )

    async def claim(self, task: Task) -> Task:
        """The task of a process that has died; with its session, if it had begun one and did not come to write that down."""
        gave_up = task.status == "unknown" and _now() - task.updated_at > _LOOK_FOR_SESSION
        if task.session_id is not None or gave_up or task.is_waiting:
            return task
        opened = task.metadata.get(OPENED)
        if isinstance(opened, str):
            return await self.registry(partial(_claim_opened, task, opened)) or task
        for session_id in await self._truth.lost_sessions(task):
            claimed = await self.registry(partial(_claim, task, session_id))
            if claimed is not None:
                return claimed
        return task

    async def place(self, task_id: str, engine: str | None, opened: str | None) -> None:
        """Write down that an agent is about to hear of a task: its engine, and the session that was opened for it there.

        Others look there if we die. An engine without a name ends with us.

        Raises:
            RegistryUnavailable: A hub cannot write that down; it must not be run, or the next hub would run it again.
        """
        if engine is not None:
            self._not_begun.discard(task_id)
            self._placed.add(task_id)
            asked = {OPENED: opened, ASKED: _now().isoformat()}
            self.update(task_id, {"engine": engine, "metadata": asked, "spec": None})
        elif self._is_hubs:
            self.update(task_id, {"spec": None})
        else:
            return
        await self.write_intent(task_id)

    async def write_intent(self, task_id: str) -> None:
        """Write all that is known, before an agent hears of this task.

        Raises:
            RegistryUnavailable: See `place`.
        """
        await self.write()
        if self._is_hubs and "spec" in self._changes.get(task_id, ()):
            raise RegistryUnavailable(
                f"Nothing can be written down of task {task_id}, so it is not begun. Make room on the disk, then try again."
            )

    def begin(
        self,
        task_id: str,
        session: Session,
        *,
        engine: str | None,
        taken_over: Usage | None = None,
        recorded: RecordedTurn | None = None,
        asked_at: datetime | None = None,
    ) -> None:
        """The task is the running turn of this session from now on.

        One that is `taken_over` had used this before, as far as others told; what its agent has `recorded` is newer.
        `asked_at` is when the agent was asked, where that has been before.
        """
        running = _Running(task_id, session, before=taken_over or Usage(), taken_over=taken_over is not None)
        if recorded is not None and recorded.usage is not None and recorded.spent_before is not None:
            running.counted, running.used, running.before = recorded.spent_before, recorded.usage, Usage()
        self._running[session.id] = running
        self._no_longer_starts(task_id)
        asked: dict[str, str] = {} if running.taken_over else {ASKED: (asked_at or _now()).isoformat()}
        self.update(
            task_id,
            {
                "metadata": asked,
                "status": "working",
                "session_id": session.id,
                "turn_id": session.state.turn_id,
                "directory": session.directory,
                "model": session.model,
                "engine": engine,
                "owner": Process.me(),
                "last_event_at": _now(),
                "spec": None,
            },
        )

    def fail(self, task_id: str, error: HelmsmanError) -> None:
        """The task never became a turn."""
        self._no_longer_starts(task_id)
        self.update(task_id, {"status": "failed", "error": error.as_dict(), "idempotency_key": None})

    def cancel(self, task_id: str, note: str) -> None:
        """The task was taken back before it became a turn."""
        self._no_longer_starts(task_id)
        self.update(task_id, {"status": "canceled", "note": note})

    def _no_longer_starts(self, task_id: str) -> None:
        self._not_begun.discard(task_id)
        self._placed.discard(task_id)

    def explain(self, session_id: str, *, if_stopped: str, if_over: str | None = None) -> None:
        """Say why the running turn of a session is about to be stopped. Whoever hears of its end hears why, too.

        What was said first counts.

        Args:
            session_id: The session.
            if_stopped: The note if the turn ends by being stopped.
            if_over: The note if it ends in another way before that.
        """
        running = self._running.get(session_id)
        if running is not None and running.note_if_stopped is None:
            running.note_if_stopped, running.note_if_over = if_stopped, if_over

    def running_task(self, session_id: str) -> str | None:
        """The task that is the running turn of a session."""
        running = self._running.get(session_id)
        return running.id if running is not None else None

    def usage_of(self, session_id: str) -> Usage | None:
        """What the running turn of a session has used."""
        running = self._running.get(session_id)
        return running.before + running.used if running is not None else None

    # --- turns go on -------------------------------------------------------------------------------------------------

    def on_event(self, session: Session, event: Event) -> None:
        """Take in what happened in a session."""
        running = self._running.get(session.id)
        if running is None or isinstance(event, ItemDelta):
            return
        if isinstance(event, UsageReported) and event.agent_id is None:
            _count(running, event)
        if isinstance(event, TurnEnded | EngineGone) and not session.state.is_running:
            del self._running[session.id]
            if running.taken_over:
                self._uncounted[running.id] = (session.id, session.state.turn_id)
            ending = _ending(running)
            if self._leaving and isinstance(event, EngineGone):
                ending["note"] = " ".join(filter(None, (_STOPPED, ending.get("note"))))
            self.update(running.id, ending)
            return
        if isinstance(event, ItemStarted | ItemEnded) and "last_event_at" in self._changes.get(running.id, ()):
            return  # to be written within half a second anyway, and it would say the same
        changes: TaskChanges = {
            "turn_id": session.state.turn_id,
            "model": session.model,
            "last_event_at": _now(),
            "input_required": bool(session.state.questions),
        }
        if not running.taken_over:
            changes["usage"] = running.used
        if isinstance(event, QuestionClosed) and event.by == str(DEADLINE):
            changes["note"] = session.state.timed_out_note
            changes["metadata"] = {TIMED_OUT: list(session.state.timed_out)}
        self.update(running.id, changes, urgent=isinstance(event, QuestionAsked | QuestionClosed))

    def update(self, task_id: str, changes: TaskChanges, *, urgent: bool = True) -> None:
        """Have these changes written: at once or, where they are not urgent, with the next ones."""
        waiting = self._changes.setdefault(task_id, {})
        if "metadata" in waiting and "metadata" in changes:
            changes = {**changes, "metadata": {**waiting["metadata"], **changes["metadata"]}}
        waiting.update(changes)
        self._wake.set()
        if urgent:
            self._urgent.set()

    # --- writing -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            with anyio.move_on_after(_AGAIN_SECONDS if self._changes else None):
                await self._wake.wait()
            await self.write()
            with anyio.move_on_after(_INTERVAL):
                await self._urgent.wait()

    async def write(self) -> None:
        """Write all that is known by now. What somebody else is just writing is written too when this returns."""
        async with self._writing:
            changes, self._changes = self._changes, {}
            if not changes:
                return  # and `run` goes on waiting for the event it knows
            self._wake, self._urgent = anyio.Event(), anyio.Event()
            for running in self._running.values():
                if running.id in changes:
                    changes[running.id]["progress"] = _progress(running.session)
            try:
                with anyio.CancelScope(shield=True):  # what was taken must be written
                    await self._count_whole_turns(changes)
                    await self.registry(lambda registry: _write_all(registry, changes))
            except RegistryUnavailable as error:
                log.warning("the state of %d task(s) is not registered yet: %s", len(changes), error)
                self._keep_for_later(changes)
                self._is_in_trouble = True
                self.on_trouble(error)
            else:
                if self._is_in_trouble:
                    self._is_in_trouble = False
                    self.on_trouble(None)

    def _keep_for_later(self, changes: Mapping[str, TaskChanges]) -> None:
        """What could not be written goes with what is written next, or nobody would ever hear of an end that came now."""
        for task_id, change in changes.items():
            if task_id in self._changes or len(self._changes) < _MOST_KEPT:
                self._changes[task_id] = {**change, **self._changes.get(task_id, {})}

    async def _count_whole_turns(self, changes: Mapping[str, TaskChanges]) -> None:
        for task_id in changes.keys() & self._uncounted.keys():
            turn = await self._truth.turn(*self._uncounted.pop(task_id))
            if turn is not None and turn.usage is not None:
                changes[task_id]["usage"] = turn.usage

    async def leave(self) -> Sequence[Task]:
        """What is under way in this process, which is about to end: of an engine that ends from now on, it is said why."""
        self._leaving = True
        await self.write()
        try:
            running = await self.registry(lambda registry: registry.running())
        except RegistryUnavailable as error:
            log.warning("what becomes of the running tasks is not known: %s", error)
            return ()
        return [task for task in running if task.owner == Process.me()]

    async def close(self) -> None:
        """Write what is left, and let go of the file."""
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            for task_id in (*(running.id for running in self._running.values()), *self._placed):
                self.update(task_id, {"owner": None})  # in an engine that goes on without us
            for task_id in self._not_begun:
                note = "Helmsman was closed before it began. Start it again if it is still wanted."
                self.update(task_id, {"status": "canceled", "note": note, "idempotency_key": None})
            await self.write()
            await anyio.to_thread.run_sync(self._registry.close)


def draft_task(
    instruction: str,
    options: SessionOptions,
    *,
    session_id: str | None = None,
    idempotency_key: str | None = None,
    terms: Mapping[str, Any] | None = None,
    max_cost_usd: float | None = None,
    schedule: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> tuple[str, TaskDraft]:
    """A turn as a task that has not begun: its id, and all that is known of it."""
    task_id = new_task_id("local")
    if idempotency_key is None and (called := call_key.get()) is not None:
        idempotency_key = called.take()
    return task_id, TaskDraft(
        id=task_id,
        agent=options.agent,
        instruction=instruction,
        directory=str(options.cwd) if options.cwd is not None else None,
        session_id=session_id,
        idempotency_key=idempotency_key,
        owner=Process.me(),
        model=options.model,
        metadata={
            "options": options_to_keep(options),
            **({} if terms is None else {TERMS: dict(terms)}),
            **({} if max_cost_usd is None else {MAX_COST: max_cost_usd}),
            **({} if schedule is None else {SCHEDULE: schedule}),
        },
        spec=spec,
    )


def _count(running: _Running, event: UsageReported) -> None:
    """Count this turn's tokens. Codex tells the sum of the whole thread, so what was there before is taken off.

    Where that is not known, the first report tells: one that comes before the model has done anything repeats what earlier
    turns spent (Codex up to 0.145 does that on resume and fork, up to 0.130 with every turn).
    """
    if event.total is None:
        running.used += event.last or Usage()
        return
    if running.counted is None:
        worked = any(not isinstance(item, UserMessage) for item in running.session.items)
        fresh = (event.last if event.last is not None else event.total) if worked else Usage()
        running.counted = event.total - fresh
    running.used = event.total - running.counted


def _ending(running: _Running) -> TaskChanges:
    session, error = running.session, running.session.error
    ending: TaskChanges = {
        "status": task_status_of(session.status),
        "turn_id": session.state.turn_id,
        "model": session.model,
        "last_event_at": _now(),
        "completed_at": _now(),  # not when it is written: the session's next turn begins after this
        "result": session.result,
        "usage": running.used,
        "progress": None,
    }
    note = running.note_if_stopped if session.status == "interrupted" else running.note_if_over
    missed = session.state.timed_out_note
    if note is not None or missed is not None:
        ending["note"] = " ".join(filter(None, (note, missed)))
    if missed is not None:
        ending["metadata"] = {TIMED_OUT: list(session.state.timed_out)}
    if error is not None:
        ending["error"] = {"code": error.code, "message": error.message, "retryable": error.retryable}
    return ending


def _progress(session: Session) -> dict[str, Any] | None:
    if not session.state.is_running:
        return None
    progress = infer_progress(session.items, turn_seconds=session.turn_seconds)
    shown = {
        "text": progress.text,
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "etaSeconds": progress.eta_seconds,
    }
    return {key: value for key, value in shown.items() if value is not None}


def _take(task: Task, me: Process, registry: Registry) -> bool:
    taken = registry.update(task.id, if_revision=task.revision, owner=me)
    return taken is not None and taken.owner == me and taken.is_waiting


def _claim_opened(task: Task, session_id: str, registry: Registry) -> Task | None:
    """Its turn was about to be asked for, in a session of its own."""
    status: TaskStatus = "working" if task.is_running else task.status
    return registry.update(task.id, if_revision=task.revision, session_id=session_id, status=status)


def _claim(task: Task, session_id: str, registry: Registry) -> Task | None:
    if registry.tasks_of_session(session_id):
        return None  # another task's
    return registry.update(task.id, if_revision=task.revision, session_id=session_id)


def _free_key(task: Task, registry: Registry) -> None:
    """Nothing came of this task: the next one with its idempotency key is a new one."""
    if task.is_running:
        note = "Its process ended before it was known to have begun."
        registry.update(task.id, status="unknown", note=note, idempotency_key=None)
    else:
        registry.update(task.id, idempotency_key=None)


def _write_all(registry: Registry, changes: Mapping[str, TaskChanges]) -> None:
    for task_id, change in changes.items():
        registry.update(task_id, **change)


def _now() -> datetime:
    return datetime.now(UTC)
