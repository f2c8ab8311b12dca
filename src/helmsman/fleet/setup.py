"""Preparation of a database for a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from helmsman.errors import FleetNotReady
from helmsman.fleet.database import FleetDatabase, unavailable
from helmsman.fleet.doctor import check_database
from helmsman.fleet.schema import migrate

if TYPE_CHECKING:
    from helmsman.fleet.doctor import FleetCheck


async def init_fleet(url: str) -> list[FleetCheck]:
    """Make a database ready for a fleet, or bring it up to date while the fleet works. Return the checks.

    Raises:
        FleetNotReady: It is not one to rely on, or its role may not make tables; nothing was changed.
        FleetUnavailable: It cannot be reached.
    """
    async with FleetDatabase(url, name="helmsman fleet init") as database:
        checks = await check_database(database)
        if wrong := [check.text for check in checks if check.verdict == "wrong"]:
            raise FleetNotReady(" ".join(wrong))
        try:
            async with database.connection() as connection:
                await migrate(connection)
        except psycopg.errors.InsufficientPrivilege as error:
            raise FleetNotReady(
                "This role may not make schemas in this database. Set the fleet up with its owner; workers and doors need "
                f"less (docs/fleet.md). {str(error).partition(chr(10))[0]}"
            ) from error
        except psycopg.OperationalError as error:
            raise unavailable(error) from error
    return checks
