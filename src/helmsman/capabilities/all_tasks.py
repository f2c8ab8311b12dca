"""Find local and cloud tasks by id or alias, with their current state.

The router, its primitives, MCP tasks and `helmsman tasks` all use this module.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Unpack

import anyio
import anyio.to_thread

from helmsman.base.files import is_inside, refuse_outside
from helmsman.capabilities.cloud_tasks import CloudTasks
from helmsman.capabilities.shown_diffs import ShownDiffs
from helmsman.errors import CloudError, CloudTaskNotFound, HelmsmanError, RegistryUnavailable, TaskNotFound, TaskNotOurs
from helmsman.git.worktree import directories_of, places
from helmsman.model.cloud import CloudResults
from helmsman.model.events import CommandExecution, MessageUnqueued
from helmsman.model.inputs import searched_directory, takes_work_options
from helmsman.model.nature import ACTS, READS, STARTS, verb
from helmsman.model.options import PathLike, TurnLimits, WorkOptions
from helmsman.tasks.call_key import CallKey, call_key, done_before
from helmsman.tasks.model import Task
from helmsman.tasks.outcome import TaskOutcome, changed_files, outcome_of
from helmsman.tasks.prices import Prices
from helmsman.tasks.registry import REGISTRY_NAME

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from helmsman.model.cloud import CloudListed
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import TaskOrigin, TaskStatus

# --- Local tasks: turns of sessions on this machine, of any process ---------------------------------------------------

# This process knows the live state of its own tasks. For others the registry has the last known state, which is
# checked before it is returned (`helmsman.steering.turn_recovery`).

FIRST_EVENT_SECONDS: Final = 60.0
INACTIVITY_SECONDS: Final = 600.0
"""Task without an attending user ends after this silence, unless the settings say otherwise."""

_WATCH_SECONDS: Final = 0.5
"""Seconds between looks at the registry for a task of another process."""

_START_SECONDS: Final = 0.05
NOT_RUNNING: Final = "nothing: it was no longer running"
NOT_BEGUN: Final = "nothing: it had not begun"
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

    @verb(STARTS)
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

    @verb(STARTS)
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
        # A key of the caller takes the place of the call's own, so that `say` finds the turn that it has begun.
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
        await self._helm.task_writer.registry(lambda registry: registry.database.version())
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
        # The caller waits only until the task is registered. The agent starts in the background.
        await start.entered.wait()
        if start.task_id is None:
            assert start.error is not None
            raise start.error
        # A start that is over would not remove its entry any longer.
        if not start.over.is_set():
            self._starting[start.task_id] = start
        return start.task_id

    # --- look --------------------------------------------------------------------------------------------------------

    @verb(READS)
    async def now(self, task: Task) -> Task:
        """Return the current state of the task.

        Raises:
            InvalidInput: It works outside the allowed roots.
        """
        now = await self._helm.recovery.now(task)
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

    @verb(READS)
    async def follow(self, task: Task) -> Session | None:
        """Return the session of a task that runs here, or None."""
        # Its session is known only when the start is over.
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
                # Taken before the state is read: a change in between must not be missed.
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

    @verb(ACTS)
    async def cancel(self, task: Task, reason: str | None) -> tuple[Task, str]:
        """Stop a running task. Return its new state, and the stopped work.

        Raises:
            TaskNotOurs: Only the process that runs it can stop it.
        """
        while task.session_id is None and self._helm.task_writer.is_starting(task.id):
            await anyio.sleep(_START_SECONDS)  # for another client, or for one that is gone
            task = await self.now(task)
        if (job := self._helm.task_writer.jobs.get(task.id)) is not None:
            # Set first, because the job takes its note from this as it is cancelled.
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
                return task, NOT_RUNNING
            raise TaskNotOurs(f"Task {task.id} is run by {task.runner}. Stop it there.")
        # Before the interrupt, because the end of the turn takes its note from this.
        if reason:
            self._helm.task_writer.explain(session.id, if_stopped=cancelled(reason))
        # Counted first: the interrupt ends them.
        commands = sum(isinstance(item, CommandExecution) and _is_running(item) for item in session.items)
        await self._helm.interrupt(session.id)
        task = await self.now(task)
        # The turn may have ended just before the interrupt.
        if task.status != "canceled":
            return task, NOT_RUNNING
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
        return _NOT_AT_WORK if begun else NOT_BEGUN


def cancelled(reason: str | None) -> str:
    """Return the note for a cancelled task."""
    return f"It was cancelled: {reason}" if reason else "It was cancelled."


def _is_running(command: CommandExecution) -> bool:
    return command.status in ("started", "in_progress") and not command.announced


# ----------------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

_REGISTERED: Final = 1000
"""Number of newest cloud tasks that are matched with the cloud's list."""
CANDIDATES: Final = 50
"""Number of newest tasks that a request without an id may mean."""


class TaskResults(TaskOutcome, frozen=True, kw_only=True):
    """Result of a task, beside its outcome.

    Attributes:
        task: The task; `task.result` is the end of its output.
        cost_usd: None if the price of its model is unknown.
    """

    task: Task
    cost_usd: float | None = None
    cloud: CloudResults | None = None


class Tasks:
    """Look at tasks, wait for them, stop them. `local` and `cloud` begin them."""

    def __init__(self, helm: Steering, *, env: Mapping[str, str] | None) -> None:
        self._helm = helm
        self.prices = Prices.load(helm.settings.files)
        self.local = LocalTasks(helm)
        self.shown = ShownDiffs()
        self.cloud = CloudTasks(helm, env, self.shown)

    @verb(READS)
    async def find(self, reference: str) -> Task:
        """Return a task by its id or alias, as stored in the registry.

        Raises:
            TaskNotFound: It does not exist.
            InvalidInput: It works outside the allowed roots.
        """
        # Updates are written in batches. The registry must have them before it is asked.
        await self._helm.task_writer.write()
        task = await self._helm.task_writer.registry(lambda registry: registry.find(reference))
        if task is None:
            raise TaskNotFound(f"There is no task {reference}. List the tasks to see which there are.")
        await self.local.refuse_outside(task)
        return task

    @verb(READS)
    async def get(self, reference: str) -> Task:
        """Return a task by its id or alias, in its current state.

        Raises:
            TaskNotFound: It does not exist.
            CloudError: The cloud cannot be asked.
        """
        return await self._now(await self.find(reference))

    @verb(READS)
    async def with_key(self, key: str) -> Task | None:
        """Return the task that was begun with an idempotency key, in its current state."""
        task = await self._helm.task_writer.with_key(key)
        return None if task is None else await self._now(task)

    @verb(READS)
    async def list(
        self,
        *,
        status: Collection[TaskStatus] | None = None,
        origin: TaskOrigin | None = None,
        agent: str | None = None,
        directory: str | Path | None = None,
        limit: int = CANDIDATES,
        cursor: str | None = None,
    ) -> tuple[list[Task], str | None]:
        """Tasks, newest first, and the cursor of the next page. Local ones as they truly are; the cloud is not asked."""
        await self._helm.task_writer.write()
        if status is not None:  # refresh running tasks first: the stored status may be stale
            for task in await self._helm.task_writer.registry(lambda registry: registry.running()):
                await self._helm.recovery.now(task)
        directories = None
        if directory is not None:
            state_dir = self._helm.settings.state_dir
            directories = await anyio.to_thread.run_sync(directories_of, searched_directory(directory), state_dir)
        page, following = await self._helm.task_writer.registry(
            lambda registry: registry.list(
                status=status, origin=origin, agent=agent, directories=directories, limit=limit, cursor=cursor
            )
        )
        seen = await self.local.inside(page)
        tasks = [
            task if task.origin == "cloud" or task.has_ended else await self._helm.recovery.now(task) for task in seen
        ]
        # A task may have ended since the registry selected it.
        return [task for task in tasks if status is None or task.status in status], following

    @verb(READS)
    async def of_sessions(self, session_ids: Sequence[str]) -> dict[str, tuple[Task, ...]]:
        """Return the tasks of each of these sessions, newest first, in their current state; none without a registry."""
        await self._helm.task_writer.write()
        settings = self._helm.settings
        if settings.store is None and not (settings.state_dir / REGISTRY_NAME).exists():
            return dict.fromkeys(session_ids, ())  # looking at a list makes no files
        try:
            found = await self._helm.task_writer.registry(
                lambda registry: {session_id: registry.tasks_of_session(session_id) for session_id in session_ids}
            )
        except RegistryUnavailable as error:
            log.warning("the tasks of the sessions are not known: %s", error)
            return dict.fromkeys(session_ids, ())
        return {
            session_id: tuple(
                [
                    task if not task.is_running else await self._helm.recovery.now(task)
                    for task in await self.local.inside(tasks)
                ]
            )
            for session_id, tasks in found.items()
        }

    @verb(READS)
    async def in_cloud(
        self, *, environment: str | None = None, cursor: str | None = None
    ) -> tuple[Sequence[tuple[CloudListed, Task | None]], str | None]:
        """Return the account's cloud tasks, newest first, each with the local task that submitted it, if any.

        Raises:
            CloudError: The cloud cannot be asked.
        """
        page = await self.cloud.page(environment=environment, cursor=cursor)
        registered, _ = await self._helm.task_writer.registry(
            lambda registry: registry.list(origin="cloud", limit=_REGISTERED)
        )
        ours = {task.external_id: task for task in registered}
        seen = {task.external_id for task in await self.local.inside(registered)}
        tasks = [(listed, ours.get(listed.external_id)) for listed in page.tasks]
        # A task of the account that was submitted from outside the allowed roots is left out.
        return [(listed, task) for listed, task in tasks if task is None or task.external_id in seen], page.cursor

    @verb(READS)
    async def wait(self, task: Task, *, timeout: float | None = None) -> Task:
        """Wait until the task has ended or asks something, or the time is up; the task as it is then."""
        with anyio.move_on_after(timeout):
            return await (self.cloud.wait(task) if task.origin == "cloud" else self.local.wait(task))
        return await self.find(task.id)

    @verb(ACTS)
    async def cancel(self, task: Task, *, reason: str | None = None) -> tuple[Task, str]:
        """Stop a task. Return its new state, and a sentence that names the stopped work. Cloud tasks cannot be stopped from
        here.

        Raises:
            TaskNotOurs: Only the process that runs it can stop it.
            InvalidInput: It works outside the allowed roots.
        """
        await self.local.refuse_outside(task)
        if task.origin == "cloud":
            message = await self.cloud.cannot_cancel(task, reason)
            return await self.find(task.id), message
        task, stopped = await self.local.cancel(task, reason)
        return task, f"Stopped {stopped}."

    @verb(READS)
    async def results(self, task: Task, *, attempt: int = 1) -> TaskResults:
        """Return the result of a task."""
        await self.local.refuse_outside(task)
        if task.origin == "cloud":
            return await self._cloud_results(task, attempt)
        task = await self.local.now(task)
        outcome = await self._outcome(task)
        return TaskResults(
            task=task,
            output=outcome.output or task.result,
            diff=outcome.diff,
            files=outcome.files,
            commands=outcome.commands,
            tests=outcome.tests,
            report=outcome.report,
            cost_usd=self.prices.cost(task.model, task.usage) if task.usage is not None else None,
        )

    async def _outcome(self, task: Task) -> TaskOutcome:
        """Return the outcome of a task from its session, from the store, or from its agent's record."""
        session = self._helm.sessions.get(task.session_id or "")
        # The session may be in a later turn by now.
        own = session is not None and session.task_id == task.id
        if session is not None and own and (session.state.is_running or session.state.diff is not None):
            return outcome_of(session.items, session.state.diff, session.directory)
        kept = await self._helm.task_writer.registry(lambda registry: registry.outcome(task.id))
        if kept is not None:
            return kept
        if not task.has_ended or task.turn_id is None or task.session_id is None or task.result_compacted:
            return TaskOutcome()
        return await self._recorded(task, task.session_id)

    async def _recorded(self, task: Task, session_id: str) -> TaskOutcome:
        """Return the outcome of a turn that ended unobserved, from its agent's record, and store it."""
        try:
            turns = await self._helm.history(session_id)
        except HelmsmanError as error:
            log.info("what task %s did is not known: %s", task.id, error)
            return TaskOutcome()
        turn = next((turn for turn in turns if turn.id == task.turn_id), None)
        found = TaskOutcome() if turn is None else outcome_of(turn.items, directory=task.directory)
        # Stored even if it is empty: the agent's record is read once only.
        await self._helm.task_writer.registry(lambda registry: registry.keep_outcome(task.id, found))
        return found

    async def _cloud_results(self, task: Task, attempt: int) -> TaskResults:
        task = await self._now(task)
        if task.external_id is None:  # it never came there; the task says why
            return TaskResults(task=task)
        try:
            results = await self.cloud.results(task, attempt=attempt)
        except CloudTaskNotFound:
            if task.status != "unknown":
                raise
            return TaskResults(task=task)  # it vanished, and the task says so
        return TaskResults(task=task, diff=results.diff, files=changed_files((), results.diff), cloud=results)

    async def _now(self, task: Task) -> Task:
        if task.origin != "cloud":
            return await self.local.now(task)
        try:
            return await self.cloud.now(task)
        except CloudError as error:
            if task.external_id is None:
                raise
            # Keep the type of the error, because clients tell errors apart by it.
            raise type(error)(f"{error.message} It was {task.status} when last seen.", **error.details) from error
