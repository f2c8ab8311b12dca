"""Start scheduled runs when they are due: the hub's part of schedules.

A due run becomes a waiting task (`helmsman.steering.turn_recovery`). It runs in the environment of the hub,
because the client that made the schedule may be gone. Its questions wait until a person answers. If an approval timeout is
configured, the run fails when that passes.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.concurrency import sleep_until
from helmsman.capabilities.schedules import unanswered
from helmsman.errors import HelmsmanError, RegistryUnavailable
from helmsman.model.events import QuestionClosed
from helmsman.schedules.due import begin_due, extra_run
from helmsman.schedules.store import ScheduleRun
from helmsman.store.log import LogReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from helmsman.schedules.store import Schedule
    from helmsman.sessions.session import Session
    from helmsman.steering.recovery import WaitingTasks
    from helmsman.steering.shared import Shared
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 30.0
"""Interval in seconds of the clock check. A timer does not count the time that a machine slept."""


class Scheduler:
    """Looks at the clock for as long as the hub runs."""

    def __init__(
        self,
        shared: Shared,
        waiting_tasks: WaitingTasks,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._shared = shared
        self._store = shared.schedules
        self._waiting_tasks = waiting_tasks
        self._clock = self._store.clock
        self._sleep = sleep
        self._next: datetime | None = None
        self._database = shared.task_writer.database
        self._store.begin_now = self.run_now

    @property
    def next_at(self) -> datetime | None:
        """Time of the next due run."""
        return self._next

    async def run(self) -> None:
        """Start runs when they are due, and fail those with an unanswered question."""
        async with anyio.create_task_group() as reading:
            reading.start_soon(self._follow_log)
            await self._follow_clock()

    async def _follow_clock(self) -> None:
        while True:
            # Taken before the schedules are read, so that no commit in between is missed.
            committed = self._database.next_commit()
            seconds = _LOOK_SECONDS
            try:
                self._next = await begin_due(self._store, self._shared.task_writer.registry, self._waiting_tasks.begin)
            except HelmsmanError as error:
                log.warning("due runs are not started: %s", error)
            else:
                if self._next is None:
                    await committed.wait()
                    continue
                seconds = min(seconds, max((self._next - self._clock()).total_seconds(), 0.0))
            await sleep_until(committed, seconds, self._sleep)

    async def run_now(self, schedule: Schedule) -> Task:
        """Start an extra run immediately, in addition to those that are due.

        Raises:
            HelmsmanError: It cannot be entered.
        """
        now, draft = self._clock(), extra_run(schedule)
        run = ScheduleRun(due_at=now, entered_at=now)
        begin = partial(self._store.begin_beside, schedule=schedule, run=run, draft=draft)
        task = await self._shared.task_writer.registry(begin)
        await self._waiting_tasks.begin(task)
        return task

    async def _follow_log(self) -> None:
        """Fail the runs with a question that has timed out, whatever their agents would do next."""
        await self._shared.is_recovered.wait()
        reader = LogReader(self._database, QuestionClosed)
        sessions = self._shared.session_registry.by_id
        while True:
            committed = self._database.next_commit()
            try:
                news = await anyio.to_thread.run_sync(reader.read)
            except RegistryUnavailable as error:
                log.warning("runs with an unanswered question are not stopped yet: %s", error)
                await sleep_until(committed, _LOOK_SECONDS)
                continue
            # At first all sessions: a question may have timed out just before the last hub ended.
            for session_id in tuple(sessions) if news is None else news:
                if (session := sessions.get(session_id)) is not None:
                    self._shared.tasks.start_soon(self._fail_unanswered, session)
            await committed.wait()

    async def _fail_unanswered(self, session: Session) -> None:
        task_id = self._shared.task_writer.running_task(session.id)
        if task_id is None or not session.state.is_running or not session.state.timed_out:
            return
        try:
            task = await self._shared.task_writer.registry(lambda registry: registry.get(task_id))
            if task is None or task.schedule is None:
                return
            error = unanswered(session)
            self._shared.task_writer.update(task_id, {"status": "failed", "error": error.as_dict()})
            await self._shared.task_writer.write()  # the first end is final, so the interruption is not recorded as one
            await session.interrupt()
        except HelmsmanError as error:
            log.warning("task %s with an unanswered question is not stopped: %s", task_id, error)
