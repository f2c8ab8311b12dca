"""Recover the work of an earlier hub, in the order of this module.

The hub has opened the store and taken the next epoch: the earlier hub can write nothing any more (`helmsman.store.leases`).

1. Finish file operations that were interrupted.
2. Read the unfinished tasks from the store.
3. Follow each turn that an agent may have received (`helmsman.steering.turn_recovery`). A turn that its agent never received
   is requeued. One that still runs is attached to: its output is read from the committed offset, its questions keep their
   deadlines. One that has ended gets its end.
4. Begin accepted tasks that have not begun (`helmsman.hub.waiting_tasks`).

Afterwards the hub closes tasks whose processes have ended, and tasks that have waited for too long.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.mount_points import MountPoints
from helmsman.base.patches import settle_writes
from helmsman.base.temporary import clear_abandoned
from helmsman.errors import HelmsmanError
from helmsman.hub.waiting_tasks import WaitingTasks
from helmsman.steering.turn_policy import TurnPolicy
from helmsman.tasks.images import forget_images, images_kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from helmsman.hub.interface import OpenView
    from helmsman.steering.shared import Shared
    from helmsman.tasks.model import Task

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


class Recovery:
    """Resume the work that an earlier hub left."""

    def __init__(self, shared: Shared, open_view: OpenView) -> None:
        self._shared = shared
        self._writer = shared.task_writer
        self._following = anyio.CapacityLimiter(_AT_ONCE)
        self.waiting_tasks = WaitingTasks(shared, open_view)

    async def run(self) -> None:
        """Recover, then close what ends without a hub, for as long as the hub runs."""
        shared = self._shared
        await anyio.to_thread.run_sync(self._finish_file_operations)
        while (unfinished := await self._unfinished()) is None:  # noqa: ASYNC110 - no event tells of it
            await anyio.sleep(_RETRY_SECONDS)
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
        await self._add_waiting(task for task in (*left, *requeued) if task.is_waiting)
        shared.is_recovered.set()
        shared.on_room.append(self.waiting_tasks.run_due)
        self.waiting_tasks.service_for(None).make_room()
        await anyio.to_thread.run_sync(self._forget_images, {task.id for task in unfinished})
        shared.tasks.start_soon(self._close_ended)
        while True:
            self.waiting_tasks.end_overdue()
            await anyio.sleep(_LOOK_SECONDS)

    def _finish_file_operations(self) -> None:
        state_dir = self._shared.state_dir
        clear_abandoned(state_dir)
        settle_writes(state_dir)
        MountPoints(state_dir).clear()

    async def _unfinished(self) -> Sequence[Task] | None:
        """Return the unfinished tasks; None while the store, or the user's settings, cannot be read."""
        try:
            self.waiting_tasks.load_settings()
            return await self._writer.registry(lambda registry: registry.running())
        except HelmsmanError as error:
            log.warning("what went on before cannot be looked at yet: %s", error)
            return None

    async def _add_waiting(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            try:
                await self.waiting_tasks.add(task)
            except Exception:
                log.exception("task %s is not resumed", task.id)

    async def _follow(self, task: Task, requeued: list[Task]) -> None:
        async with self._following:
            await self._follow_now(task, requeued)

    async def _follow_now(self, task: Task, requeued: list[Task]) -> None:
        try:
            async with self.waiting_tasks.service_for(TurnPolicy.stored_with(task)) as helm:
                if (waiting := await helm.turn_recovery.requeue(task)) is not None:
                    requeued.append(waiting)
                    return
                task = await self._writer.now(task)
                if task.session_id is not None and task.engine is not None:
                    await helm.session(task.session_id)
                if self._writer.running_task(task.session_id or "") != task.id:
                    self._shared.tasks.start_soon(self._find_end, task)
        except HelmsmanError as error:
            log.warning("session %s of task %s is not followed: %s", task.session_id, task.id, error)
        except Exception:  # or hub after hub would fail with it
            log.exception("session %s of task %s is not followed", task.session_id, task.id)

    async def _find_end(self, task: Task) -> None:
        """Record the end of a turn that no process runs. Its agent may still be writing it."""
        try:
            with anyio.move_on_after(_END_SECONDS):
                while (task := await self._writer.now(task)).is_running and not task.is_waiting:  # noqa: ASYNC110 - as above
                    await anyio.sleep(_END_POLL)
        except HelmsmanError as error:
            log.warning("what became of task %s is not known: %s", task.id, error)

    async def _close_ended(self) -> None:
        """Close the tasks of services inside other processes when these have ended, for as long as the hub runs."""
        while True:
            await anyio.sleep(_CLOSE_SECONDS)
            try:
                for task in await self._writer.registry(lambda registry: registry.running()):
                    if task.is_orphaned:
                        await self._writer.now(task)
            except HelmsmanError as error:
                log.warning("what became of the tasks of other processes is not known: %s", error)

    def _forget_images(self, running: set[str]) -> None:
        """Remove copies that no task needs. Recent copies stay: they belong to calls of this hub."""
        old = images_kept(self._shared.state_dir, older_than=_YOUNG_SECONDS)
        forget_images(self._shared.state_dir, {*old} - running)
