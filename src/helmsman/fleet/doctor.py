"""Checks of a fleet (`helmsman fleet doctor`): its database, rights, machines, and tasks that no machine can run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.rows import DictRow

    from helmsman.fleet.client import FleetClient
    from helmsman.fleet.database import FleetDatabase

_OLDEST_POSTGRES: Final = 140000
_CLOCK_SECONDS: Final = 5.0
_ROOM: Final = 40
"""A Postgres with fewer connections is full with two workers and some clients."""
_FULL: Final = 0.8
_LONG_MINUTES: Final = 5.0
"""A task that waits longer for a machine with free capacity is worth a warning."""

CheckVerdict = Literal["ok", "warning", "wrong"]


class FleetCheck(NamedTuple):
    """A fact about a fleet, and what to do if it is wrong."""

    name: str
    verdict: CheckVerdict
    text: str


async def check_database(database: FleetDatabase) -> list[FleetCheck]:
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
    # The middle of the request is the best guess for when the database read its clock.
    return [*_checks(database.url, row, (began + time.time()) / 2)]


def _checks(url: str, row: DictRow, here: float) -> Sequence[FleetCheck]:
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
        FleetCheck("tls", "ok", "the connection is encrypted")
        if row["tls"]
        else FleetCheck("tls", "ok", "the connection stays on this machine")
        if row["local"]
        else FleetCheck(
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
            f"max_connections is {row['connections']}; a worker needs up to 8, a machine's hub up to 6. Raise it.",
            otherwise="warning",
        ),
    )


def _check(name: str, is_so: bool, good: str, bad: str, *, otherwise: CheckVerdict = "wrong") -> FleetCheck:
    return FleetCheck(name, "ok", good) if is_so else FleetCheck(name, otherwise, bad)


# --- its machines and tasks ------------------------------------------------------------------------------------------

_FORBIDDEN: Final = """
    select coalesce(string_agg(relname, ', ' order by relname), '') as tables from pg_class
    where relnamespace in ('helmsman'::regnamespace, 'helmsman_store'::regnamespace)
        and relkind = 'r' and relname not in ('fleet', 'schema_version')
        and not (has_table_privilege(oid, 'select') and has_table_privilege(oid, 'insert')
            and has_table_privilege(oid, 'update') and has_table_privilege(oid, 'delete'))
"""
_STATE: Final = """
    select
        (select count(*) from pg_stat_activity) as connections, current_setting('max_connections')::int as most,
        (
            select count(*) from helmsman_store.tasks
            where status = 'working' and not exists (select from helmsman.workers where id = tasks.worker)
        ) as orphans,
        (
            select extract(epoch from clock_timestamp()
                - min(greatest(to_timestamp(created_at / 1000000.0), not_before)))::float / 60
            from helmsman_store.tasks task
            where status = 'pending' and (not_before is null or not_before < clock_timestamp())
                and not exists (
                    select from helmsman_store.tasks where session_id = task.session_id and number < task.number
                        and status in ('pending', 'working')
                )
        ) as waits
"""


async def check_fleet(client: FleetClient) -> Sequence[FleetCheck]:
    """Check the role's rights, the machines, and what waits."""
    forbidden = await client.one(_FORBIDDEN)
    assert forbidden is not None
    rights = _check(
        "rights",
        not forbidden["tables"],
        "this role may use all tables of the fleet",
        f"This role may not use {forbidden['tables']}. Run the grants of docs/fleet.md as the owner.",
    )
    # Without them nothing else can be looked at.
    if rights.verdict == "wrong":
        return (rights,)
    row = await client.one(_STATE)
    assert row is not None
    machines = await client.machines()
    alive = [machine for machine in machines if machine.is_alive]
    silent = [
        FleetCheck(
            "machines", "warning", f"{one.name} has been silent for {one.seen_seconds_ago:.0f} s. Look at its worker."
        )
        for one in machines
        if not one.is_alive
    ]
    versions = sorted({one.version for one in alive})
    return (
        rights,
        _check(
            "load",
            row["connections"] <= _FULL * row["most"],
            f"{row['connections']} of {row['most']} connections are used",
            f"{row['connections']} of {row['most']} connections are used. Raise max_connections before adding machines.",
            otherwise="warning",
        ),
        *silent,
        _check(
            "machines",
            bool(alive),
            f"{len(alive)} up, room for {sum(one.capacity for one in alive)} at once",
            "None is up, so nothing is done. Start `helmsman fleet worker` on one.",
        ),
        *_doubts(
            (len(versions) > 1, "versions", f"{', '.join(versions)} work together. Upgrade the older ones."),
            (
                row["orphans"] > 0,
                "tasks",
                f"{row['orphans']} ran on machines that were lost. A live worker requeues them.",
            ),
            (
                bool(alive) and (row["waits"] or 0) > _LONG_MINUTES,
                "tasks",
                f"One has been waiting for {row['waits'] or 0:.0f} min. If all machines are full, add one.",
            ),
        ),
        *(
            FleetCheck("queues", "wrong", f"{count} waiting for {queue}, which no machine takes.")
            for queue, count in (await client.stranded()).items()
        ),
    )


def _doubts(*found: tuple[bool, str, str]) -> Iterator[FleetCheck]:
    return (FleetCheck(name, "warning", text) for is_so, name, text in found if is_so)
