"""Expiry of a fleet's data: results expire as on one machine, then everything that belongs to them is deleted.

Any worker does it occasionally, one at a time. The tasks of a session are deleted together, when the last has expired:
the first has the tree that all of them work on. The session's rollouts are deleted with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.fleet.schema import LOCK

if TYPE_CHECKING:
    from helmsman.fleet.database import FleetDatabase

EVERY_SECONDS: Final = 600.0
_UPKEEP: Final = LOCK + 2
_BATCH: Final = 500


async def drop_expired(database: FleetDatabase) -> int:
    """Delete expired tasks with their events, questions, results and bundles, old rollouts, and notices that no machine
    makes. Return how many tasks.
    """
    dropped = 0
    while True:
        rows = await database.all(
            """
            select id from helmsman.tasks gone
            where expires_at < clock_timestamp() and status not in ('pending', 'working') and not exists (
                select from helmsman.tasks
                where lane = gone.lane and (expires_at is null or expires_at >= clock_timestamp())
            ) and pg_try_advisory_xact_lock(%s) order by expires_at limit %s
            """,
            (_UPKEEP, _BATCH),
        )
        if not rows:
            break
        ids = [row["id"] for row in rows]
        await database.all("delete from helmsman.tasks where id = any(%s) returning id", (ids,))
        dropped += len(ids)
    await database.all(
        """
        delete from helmsman.rollouts part
        where not exists (select from helmsman.tasks where session_id = part.session_id)
            and at < clock_timestamp() - interval '1 day'
        returning 1
        """
    )
    week_ago = "((extract(epoch from clock_timestamp()) - 7 * 86400) * 1000000)::bigint"
    await database.all(f"delete from helmsman_store.notices_due where at < {week_ago} returning 1")  # noqa: S608
    return dropped
