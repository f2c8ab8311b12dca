"""Expiry of a fleet's data: results expire as on one machine, then everything that belongs to them is deleted.

Any worker does it occasionally, one at a time. The tasks of a session are deleted together, when the last has expired:
the first has the tree that all of them work on. The session's rollouts are deleted with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.fleet.schema import LOCK
from helmsman.fleet.values import KEPT

if TYPE_CHECKING:
    from helmsman.fleet.database import FleetDatabase


EVERY_SECONDS: Final = 600.0
_UPKEEP: Final = LOCK + 2
_BATCH: Final = 500


async def drop_expired(database: FleetDatabase) -> int:
    """Delete expired tasks with their logs, questions, results and bundles, old rollouts, and notices that no machine
    makes. Return how many tasks.
    """
    dropped = 0
    while True:
        rows = await database.all(
            """
            select id from helmsman_store.tasks gone
            where expires_at < helmsman.now() and status not in ('pending', 'working') and not exists (
                select from helmsman_store.tasks
                where session_id = gone.session_id and (expires_at is null or expires_at >= helmsman.now())
            ) and pg_try_advisory_xact_lock(%s) order by expires_at limit %s
            """,
            (_UPKEEP, _BATCH),
        )
        if not rows:
            break
        ids = [row["id"] for row in rows]
        # The tasks go last: after a crash in between, they are found again.
        await database.all("delete from helmsman_store.outcomes where task_id = any(%s) returning 1", (ids,))
        await database.all("delete from helmsman_store.tasks where id = any(%s) returning 1", (ids,))
        dropped += len(ids)
    await database.all(
        """
        delete from helmsman.rollouts part
        where not exists (select from helmsman_store.tasks where agents_session = part.session_id)
            and at < clock_timestamp() - interval '1 day'
        returning 1
        """
    )
    await database.all(
        """
        with gone as (
            delete from helmsman_store.sessions log
            where not exists (select from helmsman_store.tasks where session_id = log.id) returning number
        )
        delete from helmsman_store.events using gone where session = gone.number returning 1
        """
    )
    await database.all("delete from helmsman_store.notices_due where at < helmsman.now() - 7 * 86400000000 returning 1")
    return dropped


async def stop_late_tasks(database: FleetDatabase) -> None:
    """Fail tasks that no worker claims before their deadline."""
    await database.all(
        """
        update helmsman_store.tasks set
            status = 'failed', updated_at = helmsman.now(), completed_at = helmsman.now(),
            expires_at = helmsman.now() + %s, revision = revision + 1,
            body = helmsman.with_facts(body, jsonb_build_object('error', jsonb_build_object(
                'code', 'deadline_passed', 'retryable', false, 'message',
                'Its deadline passed before any machine had room for it. Look at helmsman fleet status.')))
        where status = 'pending' and deadline < clock_timestamp()
        returning id, pg_notify('helmsman_fleet', id)
        """,
        (KEPT,),
    )
