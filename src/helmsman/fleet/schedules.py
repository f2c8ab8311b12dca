"""Schedules of a fleet, stored in its database. The first worker that finds a due schedule starts its run.

One transaction locks the schedule, enters the due run and sets the next time. If the worker dies in it, the run stays due,
and no other worker enters it twice. The rules for due times and results are those of one machine (`helmsman.schedules`), by
the database's clock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import replace, unpack_if_valid
from helmsman.fleet.queue import enter_task
from helmsman.fleet.rows import MAX_COST, OPTIONS, SCHEDULE, WORKERS, jsonb, new_fleet_task
from helmsman.fleet.session_queue import PLACE, task_for_clients
from helmsman.fleet.values import FleetDraft
from helmsman.schedules.due import due_run, extra_run
from helmsman.schedules.store import RUNS_KEPT, Schedule, ScheduleRun, refuse_more

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from psycopg.rows import DictRow

    from helmsman.fleet.client import FleetClient
    from helmsman.fleet.database import DatabaseConnection, FleetDatabase
    from helmsman.schedules.store import ScheduleStore
    from helmsman.tasks.model import Task, TaskDraft

log = logging.getLogger(__name__)

FLEETS: Final = "S-fleet-"
"""Prefix of the ids of a fleet's schedules."""

_DUE: Final = """
    select *, clock_timestamp() as now, exists (
        select from helmsman.schedule_runs run join helmsman.tasks on tasks.id = run.task
        where run.schedule = schedules.id and tasks.status in ('pending', 'working')
    ) as still_runs
    from helmsman.schedules
    where next_at <= clock_timestamp() and not is_paused and not id = any(%(but)s)
    order by next_at limit 1 for update skip locked
"""
_MOVE: Final = "update helmsman.schedules set next_at = %(next_at)s where id = %(id)s"
_ENTER: Final = (
    "insert into helmsman.schedule_runs (schedule, due_at, entered_at, task, note) "
    "values (%(schedule)s, %(due_at)s, %(entered_at)s, %(task)s, %(note)s) on conflict do nothing"
)
_FORGET: Final = (
    "delete from helmsman.schedule_runs where schedule = %(schedule)s and due_at not in "
    "(select due_at from helmsman.schedule_runs where schedule = %(schedule)s order by entered_at desc limit %(kept)s)"
)
_SECONDS: Final = (
    "select extract(epoch from min(next_at) - clock_timestamp())::float as seconds from helmsman.schedules "
    "where not is_paused and not id = any(%(but)s)"
)


def _schedule(row: Mapping[str, Any], last: ScheduleRun | None = None) -> Schedule | None:
    schedule = unpack_if_valid(row["content"], Schedule)
    changing = {name: row[name] for name in ("is_paused", "proposed_by", "next_at")}
    return schedule and replace(schedule, **changing, last=last)


def _run(row: DictRow) -> ScheduleRun:
    return ScheduleRun(due_at=row["due_at"], entered_at=row["entered_at"], task_id=row["task"], note=row["note"])


def schedule_of(row: DictRow) -> Schedule | None:
    """Convert a row to a schedule, with one of its runs if the row has one."""
    return _schedule(row, None if row["due_at"] is None else _run(row))


async def _enter(connection: DatabaseConnection, schedule: Schedule, run: ScheduleRun) -> None:
    values = {"due_at": run.due_at, "entered_at": run.entered_at, "task": run.task_id, "note": run.note}
    await connection.execute(_ENTER, {"schedule": schedule.id, **values})
    await connection.execute(_FORGET, {"schedule": schedule.id, "kept": RUNS_KEPT})


def _draft(draft: TaskDraft) -> FleetDraft:
    """Convert a run to a draft for the fleet. The schedule's facts beside options go into the metadata."""
    known = {OPTIONS: draft.stored_options, MAX_COST: draft.max_cost_usd, SCHEDULE: draft.schedule}
    metadata = {name: value for name, value in known.items() if value is not None} | {PLACE: draft.directory}
    return FleetDraft(
        agent=draft.agent,
        instruction=draft.instruction,
        spec=draft.spec or {},
        directory=draft.directory,
        model=draft.model,
        metadata={**metadata, **(draft.policy or {})},
        idempotency_key=draft.idempotency_key,
    )


# --- due runs ----------------------------------------------------------------------------------------------------------


async def begin_due(database: FleetDatabase) -> float | None:
    """Start all due runs. Return the seconds until the next one is due, if there is one.

    A schedule that this version cannot read waits for a worker that can.
    """
    unknown: list[str] = []
    while True:
        queue: str | None = None
        async with database.connection() as connection, connection.transaction():
            row = await (await connection.execute(_DUE, {"but": unknown})).fetchone()
            if row is None:
                break
            schedule = _schedule(row)
            if schedule is None:
                log.warning("schedule %s is due, and this version cannot read it", row["id"])
                unknown.append(row["id"])
            else:
                queue = await _begin(connection, schedule, row)
        if queue is not None:
            await database.notify((WORKERS, queue))
    found = await database.one(_SECONDS, {"but": unknown})
    return None if found is None else found["seconds"]


async def _begin(connection: DatabaseConnection, schedule: Schedule, row: DictRow) -> str | None:
    """Enter a due run. Return the queue of its task, if it begins one."""
    due = due_run(schedule, row["now"], still_runs=row["still_runs"])
    task_id = entered = None
    if due.draft is not None:
        draft = _draft(due.draft)
        task_id, alias = new_fleet_task(draft.instruction)
        entered = await enter_task(connection, draft, task_id, alias)
        if entered is None:
            log.info("the run of schedule %s at %s was entered before", schedule.id, due.run.due_at)
        else:
            log.info("schedule %s begins task %s", schedule.id, task_id)
    await _enter(connection, schedule, replace(due.run, task_id=task_id))
    await connection.execute(_MOVE, {"id": schedule.id, "next_at": due.next_at})
    return None if entered is None else str(entered["queue"])


# --- for clients -----------------------------------------------------------------------------------------------------


class FleetSchedules:
    """Store of a fleet's schedules, like `helmsman.schedules.store.ScheduleStore` for one machine."""

    def __init__(self, client: FleetClient) -> None:
        self._client = client
        self._database = client.database

    async def _rows(self, sql: Any, **values: Any) -> list[DictRow]:
        return await self._database.soon(lambda: self._database.all(sql, values))

    async def now(self) -> datetime:
        """Return the time of the database's clock."""
        moment: datetime = (await self._rows("select clock_timestamp() as now"))[0]["now"]
        return moment

    async def add(self, schedule: Schedule) -> None:
        """Write a new one down; once, however often that is tried.

        Raises:
            InvalidInput: It holds a secret, or there are too many.
        """
        content = jsonb(schedule.content())
        refuse_more((await self._rows("select count(*) as count from helmsman.schedules"))[0]["count"])
        await self._rows(
            "insert into helmsman.schedules (id, directory, content, next_at, created_at, is_paused, proposed_by) "
            "values (%(id)s, %(directory)s, %(content)s, %(next_at)s, %(created_at)s, %(is_paused)s, %(proposed_by)s) "
            "on conflict do nothing returning id",
            id=schedule.id,
            directory=schedule.directory,
            content=content,
            next_at=schedule.next_at,
            created_at=schedule.created_at,
            is_paused=schedule.is_paused,
            proposed_by=schedule.proposed_by,
        )

    async def all(self) -> tuple[Schedule, ...]:
        """Return all schedules, oldest first, without those that this version cannot read."""
        rows = await self._rows(
            """
            select schedules.*, due_at, entered_at, task, note from helmsman.schedules left join lateral (
                select * from helmsman.schedule_runs where schedule = id order by entered_at desc, due_at desc limit 1
            ) last on true order by created_at, id
            """
        )
        found = map(schedule_of, rows)
        return tuple(one for one in found if one is not None)

    async def runs(self, schedule_id: str, limit: int) -> tuple[ScheduleRun, ...]:
        """Its runs, newest first."""
        sql = (
            "select * from helmsman.schedule_runs where schedule = %(id)s order by entered_at desc, due_at desc "
            "limit %(limit)s"
        )
        return tuple(_run(row) for row in await self._rows(sql, id=schedule_id, limit=limit))

    async def pause(self, schedule_id: str, *, is_paused: bool, next_at: datetime | None) -> None:
        """Pause a schedule, or resume it at its next time. Resuming confirms a proposed schedule."""
        sql = (
            "update helmsman.schedules set is_paused = %(is_paused)s, next_at = %(next_at)s, "
            "proposed_by = case when %(is_paused)s then proposed_by end where id = %(id)s returning id"
        )
        await self._rows(sql, id=schedule_id, is_paused=is_paused, next_at=next_at)

    async def remove(self, schedule_id: str) -> None:
        """Forget it. Its tasks stay."""
        await self._rows("delete from helmsman.schedules where id = %(id)s returning id", id=schedule_id)

    async def begin_now(self, schedule: Schedule) -> Task:
        """Enter a run immediately, in addition to the due runs."""
        now = await self.now()

        async def also(connection: DatabaseConnection, task_id: str) -> None:
            await _enter(connection, schedule, ScheduleRun(due_at=now, entered_at=now, task_id=task_id))

        task = await self._client.enqueue(_draft(extra_run(schedule)), also)
        rows = await self._rows("select * from helmsman.tasks where id = %(id)s", id=task.id)
        return task_for_clients(rows[0])


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
