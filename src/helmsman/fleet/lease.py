"""Leases of workers: one row per worker, renewed by the database's clock, and removed by any worker after it expires.

A worker judges others only after it has renewed its lease for one and a half lease times. After an outage all leases have
expired, and the first worker to return would declare all others dead.
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
from helmsman.fleet.schema import LOCK
from helmsman.fleet.values import jsonb, machine_of

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
    """Lease of one worker: its row in the database."""

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

    async def take(self) -> None:
        """Enter this worker, and remove earlier ones in its place, or with its name, which are dead.

        Raises:
            FleetRefused: A living worker has its name.
        """
        # An earlier worker of this name may have died a moment ago, and its lease must expire first.
        until = time.monotonic() + _GRACE * self.seconds
        while True:
            try:
                await self._database.soon(self._enter)
            except _NameTaken as error:  # perhaps by one that died just now
                if time.monotonic() > until:
                    raise FleetRefused(
                        f"A worker called {error} lives already, on another machine or in another state directory. Choose "
                        "another --name."
                    ) from None
            else:
                return
            await anyio.sleep(min(1.0, self.seconds / 4))

    async def _enter(self) -> None:
        name, values = machine_of(self.id), {"lease": self.seconds, "version": __version__, **self._facts}
        async with self._database.connection() as connection, connection.transaction():
            # Entering and reaping exclude each other, or a worker could be reaped while it enters.
            await connection.execute("select pg_advisory_xact_lock(%s)", (_REAPER,))
            # A place is locked by its worker, so an earlier worker with the same place is dead.
            await connection.execute(
                """
                delete from helmsman.workers
                where place = %(place)s
                    or (name = %(name)s and seen < clock_timestamp() - make_interval(secs => greatest(lease, %(lease)s)))
                """,
                {"place": self._place, "name": name, "lease": self.seconds},
            )
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

    async def offer(self, agents: Mapping[str, str], labels: Sequence[str]) -> None:
        """Say which versions of its agents this worker has, and what follows from that."""
        await self._database.one(
            "update helmsman.workers set agents = %s, labels = %s where id = %s returning id",
            (jsonb(dict(agents)), list(labels), self.id),
        )

    async def keep(
        self,
        renewed: Callable[[float], None],
        drain: Callable[[], None],
        wake: Callable[[], anyio.Event],
    ) -> None:
        """Renew the lease while this worker runs. `renewed` receives the start of the renewed lease.

        Raises:
            DeclaredDead: Another worker has removed the lease.
        """
        while True:
            # Taken before the request: the lease counts from when it was asked for, not from the answer.
            pause, asked_at = self.seconds / 3, lease_time()
            try:
                # A hanging connection must not use up the lease.
                with anyio.fail_after(self.seconds / 3):
                    row = await self._database.one(
                        "update helmsman.workers set seen = clock_timestamp() where id = %s returning draining",
                        (self.id,),
                    )
                # Removed by another worker, which has this one's tasks.
                if row is None:
                    raise DeclaredDead(self.id)
                now = time.monotonic()
                if (
                    now - self._renewed > 2 / 3 * self.seconds
                ):  # after a gap, other live workers may not have renewed either
                    self._good_since = now
                self._renewed = now
                renewed(asked_at)
                if row["draining"] and not self.is_draining:
                    self.is_draining = True
                    drain()
            except (psycopg.Error, TimeoutError, OSError) as error:
                # Try again soon, as the lease runs out.
                pause = min(1.0, pause / 3)
                log.warning("the lease could not be renewed: %s", first_line(error) or "no answer")
                # A server that is down declares no worker dead. A server that only this worker cannot reach may do so.
                if is_down(error):
                    renewed(asked_at)
            await sleep_until(wake(), pause)

    async def release(self) -> None:
        """Release the lease, so that other workers take the work immediately."""
        await self._database.one("delete from helmsman.workers where id = %s returning id", (self.id,))

    @property
    def may_judge(self) -> bool:
        """Return whether this worker has renewed for long enough to declare others dead."""
        now = time.monotonic()
        return now - self._good_since >= _GRACE * self.seconds and now - self._renewed <= 2 / 3 * self.seconds

    async def remove_dead(self) -> None:
        """Remove the rows of dead workers, unless another worker does so just now. Call it only if this one `may_judge`."""
        await self._database.all(
            """
            delete from helmsman.workers
            where pg_try_advisory_xact_lock(%(lock)s) and id <> %(me)s
                and seen < clock_timestamp() - make_interval(secs => greatest(lease, %(lease)s))
            returning id
            """,
            {"lock": _REAPER, "me": self.id, "lease": self.seconds},
        )
