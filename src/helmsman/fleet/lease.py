"""Who lives: a row for each worker, renewed by the database's clock, and removed by whoever finds it run out.

A worker judges others only after one and a half leases of its own good renewals: after an outage everybody's lease has run
out, and whoever came back first would take all others for dead.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import psycopg

from helmsman._version import __version__
from helmsman.agents.supervisor.lease_watchdog import lease_time
from helmsman.base.concurrency import sleep_until
from helmsman.errors import FleetRefused
from helmsman.fleet.database import first_line, is_down
from helmsman.fleet.rows import jsonb, machine_of
from helmsman.fleet.schema import LOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helmsman.fleet.database import FleetDatabase

log = logging.getLogger(__name__)

DEFAULT_SECONDS: Final = 30.0
_GRACE: Final = 1.5
_REAPER: Final = LOCK + 1


class DeclaredDead(Exception):
    """Others have taken this worker for dead, and may have its work by now."""


class _NameTaken(Exception):
    """Another worker has the name, and its lease has not run out."""


class Lease:
    """One worker's row."""

    def __init__(
        self,
        database: FleetDatabase,
        worker_id: str,
        *,
        place: str,
        seconds: float,
        labels: Sequence[str],
        agents: Mapping[str, Any],
        capacity: int,
    ) -> None:
        self._database = database
        self.id = worker_id
        self.seconds = seconds
        self._place = place
        self._facts = {"labels": list(labels), "agents": jsonb(dict(agents)), "capacity": capacity}
        self._good_since = self._renewed = 0.0
        self.is_draining = False

    async def take(self) -> list[str]:
        """Enter this worker; the ids of earlier ones in its place, or with its name, which are dead.

        Raises:
            FleetRefused: A living worker has its name.
        """
        until = time.monotonic() + _GRACE * self.seconds
        while True:
            try:
                return await self._database.soon(self._enter)
            except _NameTaken as error:  # perhaps by one that died just now
                if time.monotonic() > until:
                    raise FleetRefused(
                        f"A worker called {error} lives already, on another machine or in another state directory. Choose "
                        "another --name."
                    ) from None
            await anyio.sleep(min(1.0, self.seconds / 4))

    async def _enter(self) -> list[str]:
        name, values = machine_of(self.id), {"lease": self.seconds, "version": __version__, **self._facts}
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(%s)", (_REAPER,))
            # Two workers cannot be in one place at once (it is locked), so an earlier one there is dead.
            gone = await connection.execute(
                """
                delete from helmsman.workers
                where place = %(place)s
                    or (name = %(name)s and seen < clock_timestamp() - make_interval(secs => greatest(lease, %(lease)s)))
                returning id
                """,
                {"place": self._place, "name": name, "lease": self.seconds},
            )
            dead = [row["id"] for row in await gone.fetchall()]
            entered = await connection.execute(
                """
                insert into helmsman.workers (id, name, place, lease, labels, agents, capacity, version)
                values (%(id)s, %(name)s, %(place)s, %(lease)s, %(labels)s, %(agents)s, %(capacity)s, %(version)s)
                on conflict (name) do nothing returning id
                """,
                {"id": self.id, "name": name, "place": self._place, **values},
            )
            if await entered.fetchone() is None:
                raise _NameTaken(name)
        self._renewed = self._good_since = time.monotonic()
        return dead

    async def offer(self, agents: Mapping[str, str], labels: Sequence[str]) -> None:
        """Say which versions of its agents this worker has, and what follows from that."""
        await self._database.one(
            "update helmsman.workers set agents = %s, labels = %s where id = %s returning id",
            (jsonb(dict(agents)), list(labels), self.id),
        )

    async def keep(
        self,
        running: Callable[[], int],
        renewed: Callable[[float], None],
        drain: Callable[[], None],
        wake: Callable[[], anyio.Event],
    ) -> None:
        """Renew it for as long as this worker lives. `renewed` is told since when its time runs anew.

        Raises:
            DeclaredDead: Others have.
        """
        while True:
            pause, asked_at = self.seconds / 3, lease_time()
            try:
                with anyio.fail_after(self.seconds / 3):
                    row = await self._database.one(
                        "update helmsman.workers set seen = clock_timestamp(), running = %s where id = %s "
                        "returning draining",
                        (running(), self.id),
                    )
                if row is None:
                    raise DeclaredDead(self.id)
                now = time.monotonic()
                if (
                    now - self._renewed > 2 / 3 * self.seconds
                ):  # others may not have renewed theirs meanwhile, and yet live
                    self._good_since = now
                self._renewed = now
                renewed(asked_at)
                if row["draining"] and not self.is_draining:
                    self.is_draining = True
                    drain()
            except (psycopg.Error, TimeoutError, OSError) as error:
                pause = min(1.0, pause / 3)
                log.warning("the lease could not be renewed: %s", first_line(error) or "no answer")
                # A server that is not running takes nobody for dead. One that only we cannot reach may do so.
                if is_down(error):
                    renewed(asked_at)
            await sleep_until(wake(), pause)

    async def release(self) -> None:
        """This worker ends: its work is for the others, at once."""
        await self._database.one("delete from helmsman.workers where id = %s returning id", (self.id,))

    @property
    def may_judge(self) -> bool:
        """Whether this worker has renewed for long enough to say that others have not."""
        now = time.monotonic()
        return now - self._good_since >= _GRACE * self.seconds and now - self._renewed <= 2 / 3 * self.seconds

    async def find_dead(self) -> list[str]:
        """Remove the rows of the dead; their ids. Nobody, while another looks."""
        if not self.may_judge:
            return []
        rows = await self._database.all(
            """
            delete from helmsman.workers
            where pg_try_advisory_xact_lock(%(lock)s) and id <> %(me)s
                and seen < clock_timestamp() - make_interval(secs => greatest(lease, %(lease)s))
            returning id
            """,
            {"lock": _REAPER, "me": self.id, "lease": self.seconds},
        )
        return [row["id"] for row in rows]
