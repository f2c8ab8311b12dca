"""Find local and cloud tasks by id or alias, with their current state.

The router, its primitives, MCP tasks and `helmsman tasks` all use this module.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.capabilities.cloud_tasks import CloudTasks
from helmsman.capabilities.local_tasks import LocalTasks
from helmsman.capabilities.shown_diffs import ShownDiffs
from helmsman.errors import CloudError, CloudTaskNotFound, HelmsmanError, RegistryUnavailable, TaskNotFound
from helmsman.git.worktree import directories_of
from helmsman.model.inputs import searched_directory
from helmsman.tasks.outcome import TaskOutcome, changed_files, outcome_of
from helmsman.tasks.prices import Prices
from helmsman.tasks.registry import REGISTRY_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from helmsman.model.cloud import CloudListed, CloudResults
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task, TaskOrigin, TaskStatus

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

    async def find(self, reference: str) -> Task:
        """Return a task by its id or alias, as stored in the registry.

        Raises:
            TaskNotFound: It does not exist.
            InvalidInput: It works outside the allowed roots.
        """
        await self._helm.task_writer.write()
        task = await self._helm.task_writer.registry(lambda registry: registry.find(reference))
        if task is None:
            raise TaskNotFound(f"There is no task {reference}. List the tasks to see which there are.")
        await self.local.refuse_outside(task)
        return task

    async def get(self, reference: str) -> Task:
        """Return a task by its id or alias, in its current state.

        Raises:
            TaskNotFound: It does not exist.
            CloudError: The cloud cannot be asked.
        """
        return await self._now(await self.find(reference))

    async def with_key(self, key: str) -> Task | None:
        """Return the task that was begun with an idempotency key, in its current state."""
        task = await self._helm.task_writer.with_key(key)
        return None if task is None else await self._now(task)

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
                await self._helm.task_writer.now(task)
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
            task if task.origin == "cloud" or task.has_ended else await self._helm.task_writer.now(task)
            for task in seen
        ]
        return [task for task in tasks if status is None or task.status in status], following

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
                    task if not task.is_running else await self._helm.task_writer.now(task)
                    for task in await self.local.inside(tasks)
                ]
            )
            for session_id, tasks in found.items()
        }

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
        return [(listed, task) for listed, task in tasks if task is None or task.external_id in seen], page.cursor

    async def wait(self, task: Task, *, timeout: float | None = None) -> Task:
        """Wait until the task has ended or asks something, or the time is up; the task as it is then."""
        with anyio.move_on_after(timeout):
            return await (self.cloud.wait(task) if task.origin == "cloud" else self.local.wait(task))
        return await self.find(task.id)

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
        if task.origin == "local":
            return await self.local.now(task)
        try:
            return await self.cloud.now(task)
        except CloudError as error:
            if task.external_id is None:
                raise
            raise type(error)(f"{error.message} It was {task.status} when last seen.", **error.details) from error
