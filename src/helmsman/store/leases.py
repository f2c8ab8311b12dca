"""Leases: which hub is alive, and which one may write.

A lease has an epoch, which grows with each holder. `helmsman.store.database.Fence` refuses a writer with an older epoch.
Where several machines reach the store, a lease also ends by the clock of the database unless its holder renews it; until
then only the same owner may replace the holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from helmsman.errors import RegistryUnavailable

if TYPE_CHECKING:
    from helmsman.store.connection import StoreConnection

HUB: Final = "hub"
"""Name of the hub's lease. A store has one."""
FLEET: Final = "a fleet"
"""Owner of that lease in the store of a fleet, which no hub has for itself."""
# In microseconds: later than any clock, and still a BIGINT.
_FOR_GOOD: Final = 2**62


class StoredLease(NamedTuple):
    """Stored lease. `seconds_left` is None for one that does not expire."""

    owner: str
    epoch: int
    seconds_left: float | None

    @property
    def is_alive(self) -> bool:
        return self.seconds_left is None or self.seconds_left > 0


def held(connection: StoreConnection, name: str) -> StoredLease | None:
    """Return a lease, or None if it was never taken."""
    now = connection.dialect.now
    sql = f"SELECT owner, epoch, until - {now} FROM leases WHERE name = ? AND epoch > 0"  # noqa: S608
    row = connection.execute(sql, (name,)).fetchone()
    return (
        None if row is None else StoredLease(row[0], int(row[1]), None if row[2] is None else int(row[2]) / 1_000_000)
    )


def newest_epoch(connection: StoreConnection, name: str) -> int:
    """Return the epoch of the newest holder; 0 if there was none."""
    row = connection.execute("SELECT epoch FROM leases WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def enter(connection: StoreConnection, name: str, owner: str, epoch: int, seconds: float | None) -> None:
    """Take a lease with an epoch, for some seconds or for good. An owner replaces itself; a newer epoch stays.

    Raises:
        RegistryUnavailable: Another owner holds it.
    """
    now = connection.dialect.now
    until = "NULL" if seconds is None else f"{now} + {round(seconds * 1_000_000)}"
    # On one machine the newest epoch is enough, since the hub's lock admits one hub at a time.
    is_free = "1 = 1" if seconds is None else f"(epoch = 0 OR owner = :owner OR until IS NULL OR until <= {now})"
    # Checked and taken by one statement: of two hubs that enter at once, one updates no row.
    taken = connection.execute(
        f"UPDATE leases SET owner = :owner, epoch = :epoch, until = {until} "  # noqa: S608
        f"WHERE name = :name AND epoch <= :epoch AND {is_free}",
        {"owner": owner, "epoch": epoch, "name": name},
    )
    if taken.rowcount:
        return
    lease = held(connection, name)
    if lease is not None and lease.owner == FLEET:
        raise RegistryUnavailable("This store belongs to a fleet. Configure another one for this machine's hub.")
    if lease is not None and seconds is not None and lease.owner != owner and lease.is_alive:
        raise RegistryUnavailable(
            f"The hub of {lease.owner} uses this store, and has it for at least {lease.seconds_left or 0:.0f} s more. "
            "Stop that hub first (helmsman hub stop), or configure another store for this machine."
        )


def give_to_fleet(connection: StoreConnection) -> None:
    """Keep hubs from taking the store for their own.

    Raises:
        RegistryUnavailable: It is a hub's.
    """
    given = connection.execute(
        "UPDATE leases SET owner = :fleet, epoch = 1, until = :until WHERE name = :name AND (epoch = 0 OR owner = :fleet)",
        {"fleet": FLEET, "until": _FOR_GOOD, "name": HUB},
    )
    if not given.rowcount:
        raise RegistryUnavailable("This database is the store of a machine's hub. Use another one for the fleet.")


def renew(connection: StoreConnection, name: str, epoch: int, seconds: float) -> bool:
    """Extend a lease; False if another holder has it by now."""
    sql = f"UPDATE leases SET until = {connection.dialect.now} + ? WHERE name = ? AND epoch = ?"  # noqa: S608
    return connection.execute(sql, (round(seconds * 1_000_000), name, epoch)).rowcount == 1
