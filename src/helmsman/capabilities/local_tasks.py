"""Local tasks: turns of sessions on this machine, of any process.

This process knows the live state of its own tasks. For others the registry has the last known state, which is checked
before it is returned (`helmsman.tasks.agent_records`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Unpack

import anyio
import anyio.to_thread

from helmsman.base.files import is_inside, refuse_outside
from helmsman.errors import TaskNotOurs
from helmsman.git.worktree import places
from helmsman.model.events import CommandExecution, MessageUnqueued
from helmsman.model.inputs import takes_work_options
from helmsman.model.options import PathLike, TurnLimits, WorkOptions
from helmsman.tasks.call_key import CallKey, call_key, done_before

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task

FIRST_EVENT_SECONDS: Final = 60.0
INACTIVITY_SECONDS: Final = 600.0
"""Task without an attending user ends after this silence, unless the settings say otherwise."""

_WATCH_SECONDS: Final = 0.5
"""Seconds between looks at the registry for a task of another process."""

_START_SECONDS: Final = 0.05
_NOT_RUNNING: Final = "nothing: it was no longer running"
_NOT_BEGUN: Final = "nothing: it had not begun"
_NOT_AT_WORK: Final = "nothing: it was waiting for its usage limit"
_TAKEN_BACK: Final = "It was cancelled before it began."
_GIVEN_UP: Final = "It was cancelled while it waited for its usage limit."


@dataclass(slots=True)
class _Start:
    """Task that is about to start."""

    task_id: str | None = None
    entered: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None

    def enter(self, task_id: str) -> None:
        self.task_id = task_id
        self.entered.set()


class LocalTasks:
    """Runs, follows and stops them. Made by `helmsman.capabilities.all_tasks.Tasks`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm
        self._starting: dict[str, _Start] = {}
        self._limits_of_tasks = TurnLimits(
            helm.settings.first_event_timeout or FIRST_EVENT_SECONDS,
            helm.settings.inactivity_timeout or INACTIVITY_SECONDS,
        )

    # --- run ---------------------------------------------------------------------------------------------------------

    @takes_work_options
    async def run(
        self,
        instruction: str,
        *,
        cwd: PathLike | None = None,
        on_question: QuestionHandler | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[WorkOptions],
    ) -> str:
        """Start a task and return its id immediately. Its agent starts in the background.

        Raises:
            InvalidInput: An argument is wrong; nothing was started.
            RegistryUnavailable: It could not be registered; nothing was started.
            TooManySessions: As many turns are running as are allowed.
        """
        return await self._begin(
            lambda start: self._helm.start(
                instruction,
                cwd=cwd,
                on_question=on_question,
                idempotency_key=idempotency_key,
                on_task=start.enter,
                limits=self._limits_of_tasks,
                **options,
            )
        )

    @takes_work_options
    async def follow_up(
        self,
        session_id: str,
        message: str,
        *,
        on_question: QuestionHandler | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[WorkOptions],
    ) -> str:
        """Start the next turn of a session as a task and return its id immediately. The same `idempotency_key` returns
        the same task.

        Raises:
            SessionNotFound: There is no such session.
            SessionBusy: A turn is running in it.
        """
        session = await self._helm.session(session_id)
        known = None
        if (key := idempotency_key) is not None:
            known = await self._helm.task_writer.registry(lambda registry: registry.with_key(key))
        called = call_key.get() if key is None else CallKey(key, known, is_repeated=known is not None)
        before = call_key.set(called)
        try:
            return await self._begin(
                lambda start: self._helm.say(
                    session.id,
                    message,
                    on_question=on_question,
                    on_task=start.enter,
                    limits=self._limits_of_tasks,
                    **options,
                )
            )
        finally:
            call_key.reset(before)

    async def _begin(self, begin: Callable[[_Start], Awaitable[Session]]) -> str:
        known = done_before()
        if known is not None and (known.is_waiting or known.session_id is not None):
            return known.id  # by an earlier hub, of which the same was asked
        # A task that cannot be registered could not be followed or stopped.
        await self._helm.task_writer.registry(lambda registry: registry.version())
        start = _Start()

        async def run() -> None:
            try:
                session = await begin(start)
                if start.task_id is None:  # an idempotency key that this process has seen: nothing was begun
                    start.enter(session.task_ids[0])
            except Exception as error:  # noqa: BLE001 - raised where the caller waits; one task's trouble ends no other
                start.error = error  # where the task is entered already, the registry has it too
            finally:
                if start.task_id is not None:
                    self._starting.pop(start.task_id, None)
                start.entered.set()
                start.over.set()

        self._helm.in_background(run)
        await start.entered.wait()
        if start.task_id is None:
            assert start.error is not None
            raise start.error
        if not start.over.is_set():
            self._starting[start.task_id] = start
        return start.task_id

    # --- look --------------------------------------------------------------------------------------------------------

    async def now(self, task: Task) -> Task:
        """Return the current state of the task.

        Raises:
            InvalidInput: It works outside the allowed roots.
        """
        now = await self._helm.task_writer.now(task)
        await self.refuse_outside(now)
        return now

    async def inside(self, tasks: Iterable[Task]) -> tuple[Task, ...]:
        """Return the tasks that this client may see."""
        roots = self._helm.allowed_roots
        if not roots:
            return tuple(tasks)
        place = await anyio.to_thread.run_sync(places, self._helm.settings.state_dir)
        return tuple(task for task in tasks if (at := place(task.directory)) is None or is_inside(at, roots))

    async def refuse_outside(self, task: Task) -> None:
        """Make sure that this client may look at a task.

        Raises:
            InvalidInput: It works outside the allowed roots.
        """
        if not await self.inside([task]):
            refuse_outside(task.directory or "", self._helm.settings.allowed_roots, "task_id")

    def session_of(self, task: Task) -> Session | None:
        """Return the session in which this process runs the task now."""
        if task.session_id is None or self._helm.task_writer.running_task(task.session_id) != task.id:
            return None
        return self._helm.sessions.get(task.session_id)

    async def follow(self, task: Task) -> Session | None:
        """Return the session of a task that runs here, or None."""
        if task.id in self._starting:
            await self._starting[task.id].over.wait()
        if task.session_id is None:
            task = await self.now(task)
        if task.session_id is None or task.has_ended:
            return None
        await self._helm.session(task.session_id)
        return self.session_of(task)

    async def wait(self, task: Task) -> Task:
        """Wait, for ever if need be, until the task has ended or asks something."""
        while True:
            if task.id in self._helm.task_writer.jobs:
                changes = self._helm.task_writer.jobs[task.id].changed
                task = await self.now(task)
                if not task.is_running or task.input_required:
                    return task
                await changes.wait()
                continue
            session = await self.follow(task)
            if session is not None:
                await session.wait(until="attention")
                return await self.now(task)
            task = await self.now(task)
            if not task.is_running or task.input_required:
                return task
            await anyio.sleep(_WATCH_SECONDS)

    # --- stop --------------------------------------------------------------------------------------------------------

    async def cancel(self, task: Task, reason: str | None) -> tuple[Task, str]:
        """Stop a running task. Return its new state, and the stopped work.

        Raises:
            TaskNotOurs: Only the process that runs it can stop it.
        """
        while task.session_id is None and self._helm.task_writer.is_starting(task.id):
            await anyio.sleep(_START_SECONDS)  # for another client, or for one that is gone
            task = await self.now(task)
        if (job := self._helm.task_writer.jobs.get(task.id)) is not None:
            job.cancel_reason = cancelled(reason)
            job.scope.cancel()
            await job.ended.wait()
            return await self.now(task), f"the job and its {len(job.sessions)} session(s)"
        if task.session_id is not None and task.is_waiting:
            await self._helm.session_with_queue(task.session_id)  # a new hub may just be putting it back there
        session = await self.follow(task)
        if session is None:
            task = await self.now(task)
            queued = self._dequeue(task) or await self._take_back(task)
            if queued is not None:
                if reason:
                    self._helm.task_writer.update(task.id, {"note": cancelled(reason), "cancel_reason": reason})
                return await self.now(task), queued
            if not task.is_running:
                return task, _NOT_RUNNING
            raise TaskNotOurs(f"Task {task.id} is run by {task.runner}. Stop it there.")
        if reason:
            self._helm.task_writer.explain(session.id, if_stopped=cancelled(reason))
        commands = sum(isinstance(item, CommandExecution) and _is_running(item) for item in session.items)
        await self._helm.interrupt(session.id)
        task = await self.now(task)
        if task.status != "canceled":
            return task, _NOT_RUNNING
        if reason:
            self._helm.task_writer.update(task.id, {"cancel_reason": reason})
            task = await self.now(task)
        and_commands = f" and {commands} running command(s)" if commands else ""
        return task, f"{self._helm.agents.title(task.agent)}'s turn{and_commands}"

    def _dequeue(self, task: Task) -> str | None:
        session = self._helm.sessions.get(task.session_id or "")
        for queued in session.queue if session is not None else ():
            if session is not None and queued.task_id == task.id:
                session.apply(MessageUnqueued(session_id=session.id, task_id=queued.task_id))
                return self._never(task)
        return None

    async def _take_back(self, task: Task) -> str | None:
        """Cancel a task that waits to begin, unless it is just beginning."""
        if not task.is_waiting or not await self._helm.task_writer.take(task):
            return None
        return self._never(task)

    def _never(self, task: Task) -> str:
        """Cancel a waiting task."""
        begun = task.waiting_for is not None
        self._helm.task_writer.cancel(task.id, _GIVEN_UP if begun else _TAKEN_BACK)
        return _NOT_AT_WORK if begun else _NOT_BEGUN


def cancelled(reason: str | None) -> str:
    """Return the note for a cancelled task."""
    return f"It was cancelled: {reason}" if reason else "It was cancelled."


def _is_running(command: CommandExecution) -> bool:
    return command.status in ("started", "in_progress") and not command.announced
