"""Handle the tasks of dead workers, and tasks whose deadline passes in the queue.

Each statement may run on several workers concurrently, and a repetition has no effect.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from helmsman.fleet.rows import ANYWHERE, WORKERS, machine_of
from helmsman.store.upkeep import RETENTION

if TYPE_CHECKING:
    from helmsman.fleet.database import FleetDatabase

log = logging.getLogger(__name__)


async def requeue_work(database: FleetDatabase) -> None:
    """Return the tasks of dead workers to the queue, and end those that were to be cancelled.

    A worker claims tasks only while it has a row, so the worker of a task without one is dead.
    """
    rows = await database.all(
        f"""
        update helmsman.tasks task set
            queue = {ANYWHERE}, status = case when cancel_asked then 'canceled' else 'pending' end,
            note = case when cancel_asked then coalesce('It was cancelled: ' || cancel_reason, 'It was cancelled.')
                else 'Its machine ' || split_part(worker, '~', 1) || ' was lost.' end,
            is_handed_over = false, input_required = false, updated_at = clock_timestamp(), revision = revision + 1,
            completed_at = case when cancel_asked then clock_timestamp() end,
            stopped_at = case when cancel_asked then clock_timestamp() end,
            expires_at = case when cancel_asked then clock_timestamp() + %(kept)s end
        where status = 'working' and not exists (select from helmsman.workers where id = task.worker)
        returning id, status, worker, queue, pg_notify('helmsman_fleet', id)
        """,  # noqa: S608 - of constants
        {"kept": RETENTION},
    )
    for row in rows:
        log.warning("task %s of %s, which is dead, is %s", row["id"], machine_of(row["worker"]), row["status"])
    await database.notify(*((WORKERS, row["queue"]) for row in rows))


async def stop_late_tasks(database: FleetDatabase) -> None:
    """Fail tasks whose deadline passes before a worker claims them."""
    await database.all(
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
