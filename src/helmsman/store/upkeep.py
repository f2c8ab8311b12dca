"""Upkeep of the store: how long transcripts and results are kept, how large it is, whether it is whole, and its export.

A session's events and the results of its tasks are deleted together, once nothing has happened in the session for the
retention time. A task without a session expires separately. The rows of sessions and tasks stay, because lists and usage
need them, and the events of a session that is continued are numbered on from the last one.
"""

# ruff: noqa: S608 - only conditions and placeholders are joined, never values

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from helmsman.base.truncate import counted
from helmsman.model.codec import decode
from helmsman.settings import RETENTION_DAYS
from helmsman.store.connection import is_in
from helmsman.store.database import from_microseconds, microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database, Size

T = TypeVar("T")

RETENTION: Final = timedelta(days=RETENTION_DAYS)
"""Default retention time of transcripts and results."""
_ROWS_KEPT: Final = timedelta(days=365)
"""Time for which the row of a task outlives its result, because it counts for the usage of the year."""

_SESSIONS_AT_ONCE: Final = 100
_EVENTS_AT_ONCE: Final = 20_000
_TASKS_AT_ONCE: Final = 1000
"""Limits of one compacting transaction, apart from its first session, because other writers wait for it."""

_LARGEST: Final = 5
_MOST_PROBLEMS: Final = 20

_RUNNING: Final = "status IN ('pending', 'working')"
_UNUSED: Final = "changed_at <= :unused_since AND last_seq > compacted_seq"
_EXPIRED: Final = f"""
    expires_at <= :now AND NOT {_RUNNING}
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = tasks.session_id AND changed_at > :unused_since)
"""
_COMPACT_TASKS: Final = """
    UPDATE tasks SET expiring = NULL, idempotency_key = NULL, result_compacted = 1, revision = revision + 1
    WHERE result_compacted = 0 AND
"""


class Compacted(NamedTuple):
    """Numbers of compacted sessions, events and task results, or of those to compact."""

    sessions: int = 0
    events: int = 0
    results: int = 0


def _times(now: datetime, retention: timedelta) -> dict[str, int]:
    times = {"now": now, "unused_since": now - retention, "long_ago": now - _ROWS_KEPT}
    return {name: microseconds(time) for name, time in times.items()}


def _busy_sessions(connection: StoreConnection) -> set[str]:
    """Return the sessions with a task that runs or waits: a turn, one that has yet to begin, or a job."""
    found: set[str | None] = set()
    for row in connection.execute(f"SELECT session_id, opened_session, expiring FROM tasks WHERE {_RUNNING}"):
        of_job = json.loads(row["expiring"] or "{}").get("jobSessions", ())
        found |= {row["session_id"], row["opened_session"], *of_job}
    return {session_id for session_id in found if session_id is not None}


def _unused(connection: StoreConnection, times: dict[str, int], limit: int | None = None) -> list[Any]:
    """Return the number, id and events of sessions to compact."""
    busy = _busy_sessions(connection)
    names = {f"busy{place}": session_id for place, session_id in enumerate(busy)}
    others = f"AND id NOT IN ({', '.join(f':{name}' for name in names)})" if names else ""
    sql = f"SELECT number, id, last_seq - compacted_seq AS events FROM sessions WHERE {_UNUSED} {others}"
    return connection.execute(sql if limit is None else f"{sql} LIMIT {limit}", times | names).fetchall()


def due(connection: StoreConnection, now: datetime, retention: timedelta) -> Compacted:
    """Count the rows to compact."""
    times = _times(now, retention)
    unused = _unused(connection, times)
    ids = {row["id"] for row in unused}
    expired = f"CASE WHEN {_EXPIRED} THEN 1 ELSE 0 END"
    sql = f"SELECT session_id, {expired} FROM tasks WHERE result_compacted = 0 AND NOT {_RUNNING}"
    results = sum(1 for session_id, is_over in connection.execute(sql, times) if is_over or session_id in ids)
    return Compacted(len(unused), sum(row["events"] for row in unused), results)


def is_due(connection: StoreConnection, now: datetime, retention: timedelta) -> bool:
    """Return whether there is anything to compact. Reads little, also where there is much."""
    times = _times(now, retention)
    sql = f"SELECT 1 FROM tasks WHERE {_EXPIRED} AND (result_compacted = 0 OR expires_at <= :long_ago) LIMIT 1"
    return bool(_unused(connection, times, 1)) or connection.execute(sql, times).fetchone() is not None


def compact_some(connection: StoreConnection, now: datetime, retention: timedelta) -> tuple[Compacted, Sequence[str]]:
    """Compact a part of the due data in a short transaction, so that other writers do not wait for long.

    Return the numbers, and the ids of the compacted sessions.
    """
    times = _times(now, retention)
    numbers, ids, events = _unused_sessions(connection, times)
    connection.execute(f"DELETE FROM events WHERE {is_in('session', numbers)}", numbers)
    connection.execute(f"UPDATE sessions SET compacted_seq = last_seq WHERE {is_in('number', numbers)}", numbers)
    results = connection.execute(f"{_COMPACT_TASKS} NOT {_RUNNING} AND {is_in('session_id', ids)}", ids).rowcount
    some = f"SELECT number FROM tasks WHERE {_EXPIRED} AND result_compacted = 0 LIMIT {_TASKS_AT_ONCE}"
    results += connection.execute(f"{_COMPACT_TASKS} number IN ({some})", times).rowcount
    long_ago = f"{_EXPIRED} AND expires_at <= :long_ago"
    forgotten = f"SELECT session_id FROM tasks WHERE {long_ago}"
    connection.execute(f"UPDATE sessions SET spent_besides = 1 WHERE id IN ({forgotten})", times)
    connection.execute(f"DELETE FROM tasks WHERE {long_ago}", times)
    for table in ("outcomes", "steps"):
        kept = "SELECT id FROM tasks WHERE result_compacted = 0"
        connection.execute(f"DELETE FROM {table} WHERE task_id NOT IN ({kept})")
    return Compacted(len(ids), events, results), ids


def _unused_sessions(connection: StoreConnection, times: dict[str, int]) -> tuple[list[int], list[str], int]:
    """Return the numbers and ids of sessions to compact next, and how many events they have."""
    numbers: list[int] = []
    ids: list[str] = []
    events = 0
    for number, session_id, count in _unused(connection, times, _SESSIONS_AT_ONCE):
        if numbers and events + count > _EVENTS_AT_ONCE:
            break
        numbers.append(number)
        ids.append(session_id)
        events += count
    return numbers, ids, events


# --- size ------------------------------------------------------------------------------------------------------------


class SessionSize(NamedTuple):
    """Size of a session in the store. `bytes` counts its events."""

    session_id: str
    events: int
    bytes: int
    changed_at: datetime


class Summary(NamedTuple):
    """Contents of the store and its size (`helmsman.store.database.Size`)."""

    bytes: int
    free_bytes: int | None
    sessions: int
    events: int
    tasks: int
    oldest_at: datetime | None
    largest: tuple[SessionSize, ...]


def summary(connection: StoreConnection, size: Size) -> Summary:
    """Return a summary of the store. It does not count single events, so it takes milliseconds."""
    value = partial(_value, connection)
    oldest = value("SELECT at FROM events ORDER BY number LIMIT 1")
    return Summary(
        bytes=size.bytes,
        free_bytes=size.free_bytes,
        sessions=value("SELECT count(*) FROM sessions"),
        events=int(value("SELECT coalesce(sum(last_seq - compacted_seq), 0) FROM sessions")),
        tasks=value("SELECT count(*) FROM tasks"),
        oldest_at=None if oldest is None else from_microseconds(oldest),
        largest=_largest(connection),
    )


def _value(connection: StoreConnection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def _largest(connection: StoreConnection) -> tuple[SessionSize, ...]:
    rows = connection.execute(
        "SELECT id, last_seq - compacted_seq AS events, changed_at, "
        f"(SELECT sum({connection.dialect.byte_count('body')}) FROM events WHERE session = sessions.number) AS bytes "
        f"FROM sessions WHERE last_seq > compacted_seq ORDER BY events DESC LIMIT {_LARGEST}"
    )
    return tuple(
        SessionSize(row["id"], row["events"], int(row["bytes"] or 0), from_microseconds(row["changed_at"]))
        for row in rows
    )


# --- integrity -------------------------------------------------------------------------------------------------------


class Problems(NamedTuple):
    """Problems of the store, as sentences: unreadable pages and missing events."""

    damage: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


def problems(database: Database, connection: StoreConnection) -> Problems:
    """Read the whole store and return its problems. Blocks for seconds if the store is large."""
    try:
        damage = database.damage(connection)
        return Problems(damage, () if damage else tuple(_gaps(connection)))
    except Exception as error:
        if not connection.dialect.is_damage(error):
            raise
        return Problems((str(error),))


def _gaps(connection: StoreConnection) -> Iterator[str]:
    strays = _value(connection, "SELECT count(*) FROM events WHERE session NOT IN (SELECT number FROM sessions)")
    if strays:
        yield f"Without a session: {counted(strays, 'event')}."
    rows = connection.execute(
        "SELECT id, last_seq, compacted_seq, count(seq) AS events, min(seq) AS first, max(seq) AS last "
        "FROM sessions LEFT JOIN events ON session = sessions.number GROUP BY sessions.number "
        "HAVING count(seq) <> last_seq - compacted_seq "
        f"OR min(seq) <> compacted_seq + 1 OR max(seq) <> last_seq LIMIT {_MOST_PROBLEMS}"
    )
    for row in rows:
        has = f"{row['events']} from {row['first']} to {row['last']}" if row["events"] else "none"
        yield f"Session {row['id']} should have events {row['compacted_seq'] + 1} to {row['last_seq']}, and has {has}."


# --- export ----------------------------------------------------------------------------------------------------------


def session_ids(connection: StoreConnection) -> list[str]:
    """Return the sessions that the store knows, oldest first."""
    return [row["id"] for row in connection.execute("SELECT id FROM sessions ORDER BY number")]


def exported(connection: StoreConnection, session_id: str) -> Iterator[dict[str, Any] | None]:
    """Yield the events of a session as JSON (docs/events.md), each with its number and time; None for a damaged one.

    Each is read alone, so that one that is damaged does not keep its neighbours from being read.
    """
    sql = "SELECT number FROM events WHERE session = (SELECT number FROM sessions WHERE id = ?) ORDER BY seq"
    numbers = _unless_damaged(connection, lambda: [row["number"] for row in connection.execute(sql, (session_id,))])
    if numbers is None:
        yield None
    for number in numbers or ():
        yield _unless_damaged(connection, partial(_exported, connection, session_id, number))


def _exported(connection: StoreConnection, session_id: str, number: int) -> dict[str, Any]:
    row = connection.execute("SELECT seq, at, kind, body FROM events WHERE number = ?", (number,)).fetchone()
    about = {"sessionId": session_id, "seq": row["seq"], "at": from_microseconds(row["at"]).isoformat()}
    return {**decode(row["kind"], row["body"]).to_json(), **about}


def _unless_damaged(connection: StoreConnection, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception as error:
        if connection.dialect.is_damage(error):
            return None
        raise
