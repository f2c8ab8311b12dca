"""One turn at a time in a session, in order: of the tasks of a lane only the first is in a queue.

A lane is all tasks of one session. (DBOS has partitions for this. It goes through them in random order, so that neither
priorities nor who came first would count between sessions; hence lanes are ours.) Whoever ends a task queues the next of its
lane; what a worker that died did not come to queue, `waiting_lanes` finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

if TYPE_CHECKING:
    from helmsman.fleet.database import FleetDatabase
    from helmsman.fleet.queueing import Enqueuer

_LOCK: Final = sa.text("select pg_advisory_xact_lock(hashtextextended(:lane, 0))")
_IS_BUSY: Final = sa.text(
    "select true from helmsman.tasks "
    "where lane = :lane and (status = 'working' or (status = 'pending' and is_queued)) limit 1"
)
_NEXT: Final = sa.text(
    """
    update helmsman.tasks set is_queued = true
    where id = (
        select id from helmsman.tasks where lane = :lane and status = 'pending' and not is_queued order by number limit 1
    )
    returning id, queue, priority, extract(epoch from not_before - clock_timestamp())::float as delay
    """
)
_TELL: Final = sa.text("select pg_notify('helmsman_queues', :queue)")


def lock_lane(connection: sa.Connection, lane: str) -> None:
    """Nobody else puts anything into a lane until the end of the transaction. Blocks."""
    connection.execute(_LOCK, {"lane": lane})


def is_busy(connection: sa.Connection, lane: str) -> bool:
    """Whether something of a lane is queued or running. Blocks."""
    return bool(connection.execute(_IS_BUSY, {"lane": lane}).scalar())


def queue_next(enqueuer: Enqueuer, lane: str) -> None:
    """Queue the next task of a lane, unless one of them is queued or running. Blocks."""
    with enqueuer.engine.begin() as connection:
        lock_lane(connection, lane)
        if is_busy(connection, lane):
            return
        row = connection.execute(_NEXT, {"lane": lane}).first()
        if row is not None:
            delay = row.delay if row.delay is not None and row.delay > 0 else None
            enqueuer.put(connection, row.id, row.queue, priority=row.priority, delay=delay)
            notify_workers(connection, row.queue)


def notify_workers(connection: sa.Connection, queue: str) -> None:
    """With the end of the transaction, that something waits. Blocks."""
    connection.execute(_TELL, {"queue": queue})


async def lane_behind(database: FleetDatabase, task_id: str) -> str | None:
    """The lane of a task, if another waits in it."""
    row = await database.one(
        """
        select lane from helmsman.tasks ended where id = %s and exists (
            select from helmsman.tasks other
            where other.lane = ended.lane and other.status = 'pending' and not other.is_queued
        )
        """,
        (task_id,),
    )
    return None if row is None else str(row["lane"])


async def waiting_lanes(database: FleetDatabase) -> list[str]:
    """The lanes in which something waits, and nothing is queued or runs."""
    rows = await database.all(
        """
        select distinct lane from helmsman.tasks waiting
        where status = 'pending' and not is_queued and not exists (
            select from helmsman.tasks other
            where other.lane = waiting.lane and (other.status = 'working' or (other.status = 'pending' and other.is_queued))
        )
        limit 100
        """
    )
    return [row["lane"] for row in rows]
