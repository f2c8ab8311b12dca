"""Schedules of a fleet: those of its store. Any worker enters a run that is due, and each run is entered once.

The run's task, the run and the schedule's next time are written in one transaction: if the worker dies in it, the run is
still due. Times are those of the database's clock.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.fleet.queue import entering
from helmsman.fleet.values import CLIENTS, WORKERS, FleetDraft
from helmsman.schedules.due import begin_due, extra_run
from helmsman.schedules.store import ScheduleRun, ScheduleStore
from helmsman.store.database import from_microseconds
from helmsman.tasks.model import new_task_id
from helmsman.tasks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from helmsman.schedules.store import Schedule
    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database
    from helmsman.tasks.model import Task, TaskDraft

FLEETS: Final = "S-fleet-"
"""Prefix of the ids of a fleet's schedules."""


class _RunQueue:
    """Queue of the fleet, for the tasks of runs."""

    def __init__(self, store: Database) -> None:
        self._store = store
        self._registry = Registry(Path(), database=store)

    def add(self, draft: TaskDraft, also: Callable[[StoreConnection, Task], None] | None = None) -> tuple[Task, bool]:
        run = FleetDraft(task=draft)

        def entered(connection: StoreConnection, task: Task) -> None:
            if also is not None:
                also(connection, task)
            # In the transaction: workers learn of the run when it is visible, and not before.
            connection.execute("SELECT pg_notify(?, ?), pg_notify(?, ?)", (CLIENTS, task.id, WORKERS, run.queue))

        return self._store.write(entering(self._registry, run, new_task_id("fleet"), entered))


class FleetSchedules(ScheduleStore):
    """Schedules in the store of a fleet. All its machines begin their runs."""

    def __init__(self, store: Database) -> None:
        super().__init__(store)
        self._queue = _RunQueue(store)
        self.begin_now = self._begin_now

    async def now(self) -> datetime:
        """Return the time of the database's clock."""
        sql = "SELECT {}"

        def read(connection: StoreConnection) -> datetime:
            return from_microseconds(connection.execute(sql.format(connection.dialect.now)).fetchone()[0])

        return await anyio.to_thread.run_sync(self._database.read, read)

    async def begin_due(self) -> float | None:
        """Begin all due runs. Return the seconds until the next one is due, if there is one."""
        next_at = await begin_due(self, lambda enter: anyio.to_thread.run_sync(enter, self._queue), _begun)
        return None if next_at is None else (next_at - await self.now()).total_seconds()

    async def _begin_now(self, schedule: Schedule) -> Task:
        """Enter a run immediately, in addition to the due runs."""
        now = await self.now()
        run = ScheduleRun(due_at=now, entered_at=now)
        begin = partial(self.begin_beside, schedule=schedule, run=run, draft=extra_run(schedule))
        return await anyio.to_thread.run_sync(begin, self._queue)


async def _begun(_task: Task) -> None:
    """Do nothing: the workers were notified."""


class BothSchedules:
    """Schedules of the fleet and of this machine. New schedules go to the fleet."""

    def __init__(self, own: ScheduleStore, fleet: FleetSchedules) -> None:
        self._own = own
        self._fleet = fleet

    def _of(self, schedule_id: str) -> ScheduleStore | FleetSchedules:
        return self._fleet if schedule_id.startswith(FLEETS) else self._own

    async def now(self) -> datetime:
        return await self._fleet.now()

    async def add(self, schedule: Schedule) -> None:
        await self._fleet.add(schedule)

    async def all(self) -> tuple[Schedule, ...]:
        return *await self._own.all(), *await self._fleet.all()

    async def runs(self, schedule_id: str, limit: int) -> tuple[ScheduleRun, ...]:
        return await self._of(schedule_id).runs(schedule_id, limit)

    async def pause(self, schedule_id: str, *, is_paused: bool, next_at: datetime | None) -> None:
        await self._of(schedule_id).pause(schedule_id, is_paused=is_paused, next_at=next_at)

    async def remove(self, schedule_id: str) -> None:
        await self._of(schedule_id).remove(schedule_id)

    async def begin_now(self, schedule: Schedule) -> Task:
        begin = self._of(schedule.id).begin_now
        assert begin is not None  # this is in a hub
        return await begin(schedule)
