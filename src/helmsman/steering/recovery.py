"""Resume the work that an earlier hub left, and begin tasks that were accepted and have not begun.

The hub has opened the store and taken the next epoch: the earlier hub can no longer write (`helmsman.store.leases`).
`Recovery` then does this, in order:

1. Finish file operations that were interrupted.
2. Read the unfinished tasks from the store.
3. Follow each turn that an agent may have received (`helmsman.steering.turn_recovery`).
4. Begin accepted tasks that have not begun (`WaitingTasks`): those that an earlier hub left, and due runs of schedules.

Afterwards the hub closes tasks whose processes have ended, and tasks that have waited for too long.
"""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.to_thread

from helmsman.base.files import clear_abandoned
from helmsman.base.mount_points import MountPoints
from helmsman.base.structs import Value, replace
from helmsman.errors import ClientAway, HelmsmanError, SessionNotFound, TooManySessions
from helmsman.git.patches import settle_writes
from helmsman.model.events import MessageQueued, MessageUnqueued
from helmsman.model.request import TurnRequest
from helmsman.sessions.session import QueuedTurn
from helmsman.settings import load_settings
from helmsman.steering.core import Steering
from helmsman.steering.shared import is_of_hub
from helmsman.steering.turn_errors import known_error
from helmsman.steering.turn_policy import TurnPolicy
from helmsman.steering.turn_recovery import WAITING, reconcile
from helmsman.tasks.images import forget_images, images_kept
from helmsman.tasks.model import Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from helmsman.sessions.session import Session
    from helmsman.settings import Settings
    from helmsman.steering.shared import Shared
    from helmsman.steering.turn_recovery import TurnRecovery

log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Number of sessions to attach to concurrently, so that neither a session nor a client waits for all others."""
_LOOK_SECONDS: Final = 3600.0
"""Interval in seconds of the check for work that has waited too long."""
_CLOSE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
_YOUNG_SECONDS: Final = 60.0
_END_SECONDS: Final = 30.0
_END_POLL: Final = 0.5
_NO_CLIENT: Final = "nobody"
"""Fingerprint for tasks without a policy."""
_NOT_UNDERSTOOD: Final = HelmsmanError(
    "It cannot be run: this version cannot read the record of an earlier one. Start it again."
)


class OpenView(Protocol):
    """Creates the `Helmsman` of one client."""

    def __call__(
        self, settings: Settings, *, env: Mapping[str, str], shared: Shared, in_place_of: str | None = None
    ) -> Steering: ...


class _Waiting(Value, frozen=True):
    """Waiting task, and the request to run."""

    task: Task
    spec: TurnRequest
    policy: TurnPolicy

    @classmethod
    def of(cls, task: Task) -> _Waiting | None:
        spec, policy = TurnRequest.unpacked(task.spec), TurnPolicy.stored_with(task)
        return None if spec is None or policy is None else cls(task, spec, policy)


class WaitingTasks:
    """Begins tasks that an earlier hub, or a schedule, has accepted and that have not begun.

    They are in the store with all that is needed to run them, except the environment they were requested from, which is
    never stored. A task begins with the first client that has the same environment, or in an engine of that environment
    which still lives. Until then it waits, and its note says so. Messages keep their order in their session.
    """

    def __init__(self, shared: Shared, open_view: OpenView) -> None:
        self._shared = shared
        self._open_view = open_view
        self._writer = shared.task_writer
        self._settings: Settings
        self._starts: dict[str, _Waiting] = {}
        """Tasks that wait for a new session, oldest first."""
        self._jobs: dict[str, Task] = {}
        """Jobs that resume when a client with their environment connects."""
        self._messages: dict[str, tuple[Session, _Waiting]] = {}
        """Tasks that wait in the queue of a session."""

    def load_settings(self) -> None:
        """Read the user's settings, for work of clients that are not connected.

        Raises:
            HelmsmanError: They cannot be read.
        """
        state_dir = self._shared.state_dir
        self._settings = replace(load_settings({}, os.environ, state_dir), state_dir=state_dir)

    async def begin(self, task: Task) -> None:
        """Begin a task that has just been entered, or let it wait."""
        await self._shared.is_recovered.wait()
        await self.add(task)
        self.run_due()

    def service_for(self, policy: TurnPolicy | None) -> Steering:
        """Return a service for the client that requested a task with this policy, which is not connected."""
        settings = self._settings if policy is None else policy.settings(self._settings)
        fingerprint = _NO_CLIENT if policy is None else policy.environment_fingerprint or _NO_CLIENT
        return self._open_view(settings, env=dict(os.environ), shared=self._shared, in_place_of=fingerprint)

    async def add(self, task: Task) -> None:
        """Add a task that waits. `run_due` begins it."""
        if task.job is not None:
            self._jobs[task.id] = task
            return
        waiting = _Waiting.of(task)
        if task.input_required:  # by the hub before this one
            self._writer.update(task.id, {"input_required": False})
        if task.of_job is not None and not await self._runs(task.of_job):
            self._writer.cancel(task.id, "Its job has ended.")
        elif waiting is None:
            self._writer.fail(task.id, _NOT_UNDERSTOOD)
        elif task.session_id is None:
            self._begin(waiting)
        elif task.status == "pending" and task.opened_session == task.session_id:
            # A person was asked whether it may begin. Its session is in no file before that: another one is opened.
            self._writer.update(task.id, {"session_id": None})
            self._writer.spent_before(task.id, None)
            self._begin(waiting)
        else:
            await self._queue(waiting, task.session_id)

    def _begin(self, waiting: _Waiting) -> None:
        """Queue the start of a task. The start of a job's turn is left to the job, which knows the steps before it."""
        if waiting.task.of_job is None:
            self._starts[waiting.task.id] = waiting

    async def _runs(self, task_id: str) -> bool:
        task = await self._writer.registry(lambda registry: registry.get(task_id))
        return task is not None and task.is_running

    async def _queue(self, waiting: _Waiting, session_id: str) -> None:
        """Put a message back where it waited: behind the turn of its session, which may still be running."""
        task, spec = waiting.task, waiting.spec
        helm = self.service_for(waiting.policy)
        try:
            session = await helm.session(session_id)
            if not await self._writer.take(task):
                return
        except SessionNotFound as error:
            self._writer.fail(task.id, error)
            return
        except HelmsmanError as error:
            log.warning("a message of session %s waits: %s", session_id, error)
            return
        self._messages[task.id] = session, waiting
        run, is_away = partial(self._run_message, waiting), partial(self._is_away, waiting)
        session.attach_queued(task.id, QueuedTurn(replace(spec, limits=waiting.policy.limits), run, is_away))
        queued = MessageQueued(session_id=session.id, task_id=task.id, text=spec.turn.text, not_before=task.resumes_at)
        # The log may have put it into the queue already.
        if all(one.task_id != task.id for one in session.queue):
            session.apply(queued)
        if task.waiting_for is not None:
            self._writer.spent_before(task.id, task.usage)
            helm.run_later(session, task.id)
        # No event may have told the registry of its work yet.
        self._shared.session_registry.at_work[session.id] = session
        if self._is_away(waiting) and task.waiting_for is None:
            self._writer.update(task.id, {"note": WAITING})

    def _connected(self, policy: TurnPolicy) -> Steering | None:
        clients = (client for client in self._shared.clients if isinstance(client, Steering))
        return next(
            (client for client in clients if client.environment_fingerprint == policy.environment_fingerprint), None
        )

    def _is_away(self, waiting: _Waiting) -> bool:
        """Return whether it cannot run now: no client has its environment, and no engine of that environment lives."""
        agent, engine = self._shared.agents.get(waiting.spec.options.agent), waiting.spec.engine
        if self._connected(waiting.policy) is not None or is_of_hub(waiting.policy.environment_fingerprint):
            return False
        return agent is None or engine is None or not agent.engine_is_alive(self._settings, engine)

    @asynccontextmanager
    async def _runner(self, waiting: _Waiting) -> AsyncIterator[Steering]:
        """Yield a service that can run a task now.

        Raises:
            ClientAway: It does not exist.
        """
        client, spec = self._connected(waiting.policy), waiting.spec
        helm = self.service_for(waiting.policy) if client is None else client.under(waiting.policy)
        if helm is client:
            yield helm
            return
        async with helm:
            needs_engine = client is None and not is_of_hub(waiting.policy.environment_fingerprint)
            if needs_engine and (spec.engine is None or not await helm.reaches(spec.options.agent, spec.engine)):
                raise ClientAway(WAITING)
            yield helm

    async def _run_message(self, waiting: _Waiting, session: Session, task_id: str, queued: QueuedTurn) -> Session:
        async with self._runner(waiting) as helm:
            sent = await helm.run_queued(session, task_id, queued)
        self._messages.pop(task_id, None)
        return sent

    def run_due(self) -> None:
        """Begin what can run now: a client has connected, or a turn has ended."""
        for task_id, task in list(self._jobs.items()):
            policy = TurnPolicy.stored_with(task)
            client = None if policy is None else self._connected(policy)
            if client is not None:
                del self._jobs[task_id]
                client.resume_job(task)
            elif task.note is None:
                self._jobs[task_id] = replace(task, note=WAITING)
                self._writer.update(task_id, {"note": WAITING})
        for task_id, waiting in list(self._starts.items()):
            if not self._is_away(waiting):
                # Removed first, so that the next call does not start it again.
                self._shared.tasks.start_soon(self._start, self._starts.pop(task_id))
            elif waiting.task.note is None:
                self._wait_again(waiting, WAITING)

    async def _start(self, waiting: _Waiting) -> None:
        task_id = waiting.task.id
        try:
            task = await self._writer.registry(lambda registry: registry.get(task_id))
            if task is None or not task.is_waiting:
                return  # cancelled in between, or begun by a client that repeated the call
            async with self._runner(waiting) as helm:
                await helm.run_waiting(task)
        except TooManySessions as error:
            self._wait_again(waiting, error.message)
        except ClientAway:
            self._wait_again(waiting, WAITING)
        except HelmsmanError as error:
            log.warning("task %s waits: %s", task_id, error)
            self._wait_again(waiting, error.message)
        except Exception as error:
            log.exception("task %s could not be begun", task_id)
            self._writer.fail(task_id, known_error(error))

    def _wait_again(self, waiting: _Waiting, note: str) -> None:
        task = waiting.task
        self._starts[task.id] = replace(waiting, task=replace(task, note=note))
        if task.note != note:
            self._writer.update(task.id, {"note": note})

    def end_overdue(self) -> None:
        """End what has waited for too long."""
        now = datetime.now(UTC)
        queued = {task_id: waiting for task_id, (_, waiting) in self._messages.items() if self._is_away(waiting)}
        for task_id, waiting in {**self._starts, **queued}.items():
            changes = reconcile(waiting.task, None, now, waiting.task.agent)
            if changes is None or "status" not in changes:
                continue
            self._starts.pop(task_id, None)
            if task_id in self._messages:
                session, _ = self._messages.pop(task_id)
                session.apply(MessageUnqueued(session_id=session.id, task_id=task_id))
            self._writer.cancel(task_id, changes["note"] or "")


class Recovery:
    """Resume the work that an earlier hub left."""

    def __init__(self, shared: Shared, waiting_tasks: WaitingTasks) -> None:
        self._shared = shared
        self._writer = shared.task_writer
        self._following = anyio.CapacityLimiter(_AT_ONCE)
        self._waiting_tasks = waiting_tasks

    async def run(self) -> None:
        """Recover, then close what ends without a hub, for as long as the hub runs."""
        shared, waiting_tasks = self._shared, self._waiting_tasks
        await anyio.to_thread.run_sync(self._finish_file_operations)
        while (unfinished := await self._unfinished()) is None:  # noqa: ASYNC110 - no event tells of it
            await anyio.sleep(_RETRY_SECONDS)
        # The registry lists the newest first, and work resumes in the order in which it was requested.
        left = [
            task
            for task in reversed(unfinished)
            if task.origin == "local" and not self._writer.has(task.id) and not self._writer.is_elsewhere(task)
        ]
        requeued: list[Task] = []
        async with anyio.create_task_group() as following:
            for task in left:
                if not task.is_waiting:
                    following.start_soon(self._follow, task, requeued)
        shared.need_engines()
        for task in (*left, *requeued):
            if task.is_waiting:
                try:
                    await waiting_tasks.add(task)
                except Exception:
                    log.exception("task %s is not resumed", task.id)
        shared.is_recovered.set()
        shared.on_room.append(waiting_tasks.run_due)
        waiting_tasks.service_for(None).make_room()
        await anyio.to_thread.run_sync(self._forget_images, {task.id for task in unfinished})
        shared.tasks.start_soon(self._close_ended)
        while True:
            waiting_tasks.end_overdue()
            await anyio.sleep(_LOOK_SECONDS)

    def _finish_file_operations(self) -> None:
        state_dir = self._shared.state_dir
        clear_abandoned(state_dir)
        settle_writes(state_dir)
        MountPoints(state_dir).clear()

    async def _unfinished(self) -> Sequence[Task] | None:
        """Return the unfinished tasks; None while the store, or the user's settings, cannot be read."""
        try:
            self._waiting_tasks.load_settings()
            return await self._writer.registry(lambda registry: registry.running())
        except HelmsmanError as error:
            log.warning("what went on before cannot be looked at yet: %s", error)
            return None

    async def _follow(self, task: Task, requeued: list[Task]) -> None:
        try:
            async with self._following, self._waiting_tasks.service_for(TurnPolicy.stored_with(task)) as helm:
                if (waiting := await helm.recovery.requeue(task)) is not None:
                    requeued.append(waiting)
                    return
                task = await helm.recovery.now(task)
                if task.session_id is not None and task.engine is not None:
                    await helm.session(task.session_id)
                if self._writer.running_task(task.session_id or "") != task.id:
                    self._shared.tasks.start_soon(self._find_end, helm.recovery, task)
        except HelmsmanError as error:
            log.warning("session %s of task %s is not followed: %s", task.session_id, task.id, error)
        except Exception:  # or hub after hub would fail with it
            log.exception("session %s of task %s is not followed", task.session_id, task.id)

    async def _find_end(self, recovery: TurnRecovery, task: Task) -> None:
        """Record the end of a turn that no process runs. Its agent may still be writing it."""
        try:
            with anyio.move_on_after(_END_SECONDS):
                while (task := await recovery.now(task)).is_running and not task.is_waiting:  # noqa: ASYNC110 - as above
                    await anyio.sleep(_END_POLL)
        except HelmsmanError as error:
            log.warning("what became of task %s is not known: %s", task.id, error)

    async def _close_ended(self) -> None:
        """Close the tasks of services inside other processes when these have ended, for as long as the hub runs."""
        recovery = self._waiting_tasks.service_for(None).recovery
        while True:
            await anyio.sleep(_CLOSE_SECONDS)
            try:
                for task in await self._writer.registry(lambda registry: registry.running()):
                    if task.is_orphaned:
                        await recovery.now(task)
            except HelmsmanError as error:
                log.warning("what became of the tasks of other processes is not known: %s", error)

    def _forget_images(self, running: set[str]) -> None:
        """Remove copies that no task needs. Recent copies stay: they belong to calls of this hub."""
        old = images_kept(self._shared.state_dir, older_than=_YOUNG_SECONDS)
        forget_images(self._shared.state_dir, {*old} - running)
