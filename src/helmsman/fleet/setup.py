"""A database made ready for a fleet, and whether it is one that a fleet can rely on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict

from helmsman.base.structs import Value
from helmsman.errors import FleetNotReady
from helmsman.fleet.database import FleetDatabase, unavailable
from helmsman.fleet.schema import migrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.rows import DictRow

_OLDEST_POSTGRES: Final = 140000
_CLOCK_SECONDS: Final = 5.0
_ROOM: Final = 40
"""A Postgres with fewer connections is full with two workers and some doors."""

CheckVerdict = Literal["ok", "warning", "wrong"]


class DatabaseCheck(Value, frozen=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    verdict: CheckVerdict
    text: str


async def check_database(database: FleetDatabase) -> list[DatabaseCheck]:
    """Look at what acknowledged work, leases and secrets depend on.

    Raises:
        FleetUnavailable: The database cannot be reached.
    """
    began = time.time()
    row = await database.soon(
        lambda: database.one(
            """
            select current_setting('server_version_num')::int as version, current_setting('server_version') as shown,
                current_setting('fsync') as fsync, current_setting('synchronous_commit') as commit,
                current_setting('full_page_writes') as pages, pg_is_in_recovery() as is_replica,
                current_setting('max_connections')::int as connections, current_user as role,
                (select ssl from pg_stat_ssl where pid = pg_backend_pid()) as tls,
                inet_client_addr() is null or inet_client_addr() <<= '127.0.0.0/8' or inet_client_addr() = '::1' as local,
                extract(epoch from clock_timestamp())::float as now, current_setting('server_encoding') as encoding
            """
        )
    )
    assert row is not None
    return [*_checks(database.url, row, (began + time.time()) / 2)]


def _checks(url: str, row: DictRow, here: float) -> Sequence[DatabaseCheck]:
    tls_refused = conninfo_to_dict(url).get("sslmode") == "disable"
    skew = abs(row["now"] - here)
    return (
        _check(
            "version",
            row["version"] >= _OLDEST_POSTGRES,
            f"PostgreSQL {row['shown']}",
            "A fleet needs PostgreSQL 14 or newer.",
        ),
        _check(
            "durable",
            row["fsync"] == "on" and row["pages"] == "on",
            "fsync is on",
            "fsync or full_page_writes is off: acknowledged work could be lost with the power. Switch them on.",
        ),
        _check(
            "commit",
            row["commit"] != "off",
            f"synchronous_commit is {row['commit']}",
            "synchronous_commit is off: acknowledged work could be lost. Switch it on for this database.",
        ),
        _check(
            "primary",
            not row["is_replica"],
            "it takes writes",
            "It is a replica. Name the primary; with failover, use synchronous replication.",
        ),
        _check("encoding", row["encoding"] == "UTF8", "its encoding is UTF8", "Its encoding must be UTF8."),
        DatabaseCheck("tls", "ok", "the connection is encrypted")
        if row["tls"]
        else DatabaseCheck("tls", "ok", "the connection stays on this machine")
        if row["local"]
        else DatabaseCheck(
            "tls",
            "warning" if tls_refused else "wrong",
            "The connection is not encrypted, and code and prompts travel on it. Use ?sslmode=verify-full; "
            "?sslmode=disable says that you want it so.",
        ),
        _check(
            "clock",
            skew < _CLOCK_SECONDS,
            "its clock agrees with ours",
            f"Its clock is {skew:.0f} s off ours. Leases go by the database's alone, but times that are shown are wrong.",
            otherwise="warning",
        ),
        _check(
            "connections",
            row["connections"] >= _ROOM,
            f"max_connections is {row['connections']}",
            f"max_connections is {row['connections']}; a worker needs up to 13, a machine's hub up to 9. Raise it.",
            otherwise="warning",
        ),
    )


def _check(name: str, is_so: bool, good: str, bad: str, *, otherwise: CheckVerdict = "wrong") -> DatabaseCheck:
    return DatabaseCheck(name, "ok", good) if is_so else DatabaseCheck(name, otherwise, bad)


async def init_fleet(url: str) -> list[DatabaseCheck]:
    """Make a database ready for a fleet, or bring it up to date while the fleet works; what was looked at.

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
