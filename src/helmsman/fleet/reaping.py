"""What the living do with the work of the dead, and with what waits for nobody. All of it may be done twice."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, LiteralString

import anyio.to_thread

from helmsman.fleet.queueing import QUEUES
from helmsman.fleet.rows import MISSED, QUEUE, machine_of
from helmsman.store.upkeep import RETENTION

if TYPE_CHECKING:
    from helmsman.fleet.database import FleetDatabase
    from helmsman.fleet.queueing import Enqueuer, Taker

log = logging.getLogger(__name__)

_SOFT_SECONDS: Final = 15
"""So long a task waits for the machine on which its session was, if that has no room."""

_ORPHANS: Final = """
    select workflow_uuid as id, executor_id as owner from dbos.workflow_status
    where status = 'PENDING' and name = 'task' and application_name = 'helmsman' and executor_id is not null
        and not exists (select from helmsman.workers where id = executor_id)
"""


async def requeue_work(database: FleetDatabase, taker: Taker, enqueuer: Enqueuer) -> None:
    """Have others run what the dead were running: it is in its queue again, and its row says so.

    Nobody runs a task before its worker has a row, so whoever runs one without a row is dead.
    """
    for orphan in await database.all(_ORPHANS):
        note = f"Its machine {machine_of(orphan['owner'])} was lost."
        row = await database.one(
            """
            update helmsman.tasks set
                status = case when cancel_asked then 'canceled' else 'pending' end,
                note = case when cancel_asked then coalesce('It was cancelled: ' || cancel_reason, 'It was cancelled.')
                    else %(note)s end,
                input_required = false, is_queued = true, updated_at = clock_timestamp(), revision = revision + 1,
                completed_at = case when cancel_asked then clock_timestamp() end,
                stopped_at = case when cancel_asked then clock_timestamp() end,
                expires_at = case when cancel_asked then clock_timestamp() + %(kept)s end
            where id = %(task)s and status = 'working' and worker = %(owner)s
            returning status, pg_notify('helmsman_fleet', id)
            """,
            {"task": orphan["id"], "owner": orphan["owner"], "note": note, "kept": RETENTION},
        )
        if row is not None and row["status"] == "canceled":
            await anyio.to_thread.run_sync(enqueuer.forget, [orphan["id"]])
            continue
        await _narrow(database, orphan["id"], orphan["owner"])
        if await taker.requeue(orphan["id"], orphan["owner"]):
            log.warning("task %s of %s, which is dead, is in its queue again", orphan["id"], orphan["owner"])


async def _narrow(database: FleetDatabase, task_id: str, owner: str) -> None:
    """Have a task in the queue of those that can go on with its session, before it is taken anew."""
    sql: LiteralString = f"""
        with narrowed as (
            update helmsman.tasks task set queue = {QUEUE}
            where id = %(task)s and host is null and exists (select from unnest(task.labels) label where {MISSED})
            returning id, queue
        )
        update dbos.workflow_status flow set queue_name = narrowed.queue from narrowed
        where flow.workflow_uuid = narrowed.id and flow.status = 'PENDING' and flow.executor_id = %(owner)s returning 1
    """  # noqa: S608 - of constants
    await database.one(sql, {"task": task_id, "owner": owner})


async def hand_over_task(database: FleetDatabase, task_id: str, owner: str) -> None:
    """A task that was stopped in order, for others to go on with at once."""
    await _narrow(database, task_id, owner)
    await database.one(
        """
        update helmsman.tasks set
            status = 'pending', note = %(note)s, is_handed_over = true, input_required = false,
            updated_at = clock_timestamp(), revision = revision + 1
        where id = %(task)s and status = 'working' and worker = %(owner)s
        returning pg_notify('helmsman_fleet', id)
        """,
        {"task": task_id, "owner": owner, "note": f"Its machine {machine_of(owner)} was stopped."},
    )


async def move_from_dead_hosts(database: FleetDatabase) -> None:
    """What waits in the queue of a machine only because its session was there, and that is gone or full, any may do.

    What somebody wants done on one machine waits for that machine.
    """
    async with database.connection() as connection, connection.transaction():
        moved = await connection.execute(
            f"""
            with waiting as (
                select task.id, {QUEUE} as queue
                from helmsman.tasks task
                left join helmsman.workers worker on 'host:' || worker.name = task.queue and not worker.draining
                where task.status = 'pending' and task.is_queued and task.host is null and task.queue like 'host:%%'
                    and (worker.id is null or task.updated_at < clock_timestamp() - make_interval(secs => %s))
            )
            update dbos.workflow_status flow set queue_name = waiting.queue
            from waiting
            where flow.workflow_uuid = waiting.id and flow.status = 'ENQUEUED' and flow.queue_name like 'host:%%'
            returning waiting.id, waiting.queue
            """,  # noqa: S608 - of constants
            (_SOFT_SECONDS,),
        )
        rows = await moved.fetchall()
        for row in rows:
            await connection.execute("update helmsman.tasks set queue = %s where id = %s", (row["queue"], row["id"]))
    if rows:
        await database.notify(*((QUEUES, row["queue"]) for row in rows))


async def stop_late_tasks(database: FleetDatabase, enqueuer: Enqueuer) -> None:
    """A task whose deadline passes before anybody takes it has failed."""
    rows = await database.all(
        """
        update helmsman.tasks set
            status = 'failed', updated_at = clock_timestamp(), completed_at = clock_timestamp(),
            stopped_at = clock_timestamp(), expires_at = clock_timestamp() + %s, revision = revision + 1,
            error = jsonb_build_object('code', 'deadline_passed', 'retryable', false, 'message',
                'Its deadline passed before any machine had room for it. Look at helmsman fleet status.')
        where status = 'pending' and deadline < clock_timestamp()
        returning id, pg_notify('helmsman_fleet', id)
        """,
        (RETENTION,),
    )
    if rows:
        await anyio.to_thread.run_sync(enqueuer.forget, [row["id"] for row in rows])
