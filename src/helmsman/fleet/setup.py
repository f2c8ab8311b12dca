"""Preparation of a database for a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio.to_thread
import psycopg

from helmsman.errors import FleetNotReady, RegistryUnavailable
from helmsman.fleet.database import FleetDatabase, first_line, unavailable
from helmsman.fleet.doctor import check_database
from helmsman.fleet.schema import migrate
from helmsman.store.leases import give_to_fleet

if TYPE_CHECKING:
    from helmsman.fleet.doctor import FleetCheck

_OWNER: Final = (
    "This database cannot be made a fleet's. Set the fleet up with the owner of the database; workers and clients need less "
    "(docs/fleet.md)."
)


async def init_fleet(url: str) -> list[FleetCheck]:
    """Make a database ready for a fleet, or bring it up to date while the fleet works. Return the checks.

    Raises:
        FleetNotReady: It is not one to rely on, or its role may not make tables; nothing was changed.
        FleetUnavailable: It cannot be reached.
    """
    async with FleetDatabase(url, name="helmsman fleet init") as database:
        # Before anything is created: a replica or a server without fsync is refused.
        checks = await check_database(database)
        if wrong := [check.text for check in checks if check.verdict == "wrong"]:
            raise FleetNotReady(" ".join(wrong))
        try:
            # The store's tables come first, as the fleet's view refers to them.
            await anyio.to_thread.run_sync(database.store.write, give_to_fleet)
            async with database.connection() as connection:
                await migrate(connection)
        except RegistryUnavailable as error:
            raise FleetNotReady(f"{_OWNER} {error.message}") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise FleetNotReady(f"{_OWNER} {first_line(error)}") from error
        except psycopg.OperationalError as error:
            raise unavailable(error) from error
    return checks
