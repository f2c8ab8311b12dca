"""Upkeep of the store: how long transcripts and results are kept, how large it is, whether it is whole, and its export.

A session's events and the results of its tasks are deleted together, once nothing has happened in the session for the
retention time. A task without a session expires by itself. The rows of sessions and tasks stay, because lists and usage
need them, and the events of a session that is continued are numbered on from the last one.
"""

# ruff: noqa: S608 - what is put together here are conditions and placeholders, never values

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from helmsman.model.codec import decode
from helmsman.settings import RETENTION_DAYS
from helmsman.store.database import COMPANIONS, from_microseconds, is_damage, microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from helmsman.store.database import Database

T = TypeVar("T")

RETENTION: Final = timedelta(days=RETENTION_DAYS)
"""How long transcripts and results are kept by default."""
_ROWS_KEPT: Final = timedelta(days=365)
"""How long the row of a task outlives its result: it still counts for the usage of the year."""

_SESSIONS_AT_ONCE: Final = 100
_EVENTS_AT_ONCE: Final = 20_000
_TASKS_AT_ONCE: Final = 1000
"""One transaction compacts at most so much, and at least one session: meanwhile others wait to write."""

_PAGES_AT_ONCE: Final = 1000
_LARGEST: Final = 5
_MOST_PROBLEMS: Final = 20

_RUNNING: Final = "status IN ('pending', 'working')"
_BUSY_SESSIONS: Final = f"""
    SELECT session_id FROM tasks WHERE {_RUNNING} AND session_id IS NOT NULL
    UNION SELECT json_extract(metadata, '$.openedSession') FROM tasks
        WHERE {_RUNNING} AND json_extract(metadata, '$.openedSession') IS NOT NULL
    UNION SELECT each.value FROM tasks, json_each(metadata, '$.sessions') AS each WHERE {_RUNNING}
"""
"""Sessions with a task that runs or waits: a turn, one that has yet to begin, or a job of several sessions."""
_UNUSED: Final = f"changed_at <= :unused_since AND last_seq > compacted_seq AND id NOT IN ({_BUSY_SESSIONS})"
_EXPIRED: Final = f"""
    expires_at <= :now AND NOT {_RUNNING}
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = tasks.session_id AND changed_at > :unused_since)
"""
_COMPACT_TASKS: Final = """
    UPDATE tasks SET result = NULL, progress = NULL, metadata = '{}', idempotency_key = NULL, result_compacted = 1,
        revision = revision + 1 WHERE result_compacted = 0 AND
"""


class Compacted(NamedTuple):
    """What was compacted, or is to be. `results` are those of tasks."""

    sessions: int = 0
    events: int = 0
    results: int = 0


def _times(now: datetime, retention: timedelta) -> dict[str, int]:
    times = {"now": now, "unused_since": now - retention, "long_ago": now - _ROWS_KEPT}
    return {name: microseconds(time) for name, time in times.items()}


def due(connection: sqlite3.Connection, now: datetime, retention: timedelta) -> Compacted:
    """Count what is to be compacted."""
    times = _times(now, retention)
    sessions = f"SELECT count(*), coalesce(sum(last_seq - compacted_seq), 0) FROM sessions WHERE {_UNUSED}"
    unused = f"NOT {_RUNNING} AND session_id IN (SELECT id FROM sessions WHERE {_UNUSED})"
    results = f"SELECT count(*) FROM tasks WHERE result_compacted = 0 AND ({unused} OR ({_EXPIRED}))"
    return Compacted(*connection.execute(sessions, times).fetchone(), *connection.execute(results, times).fetchone())


def is_due(connection: sqlite3.Connection, now: datetime, retention: timedelta) -> bool:
    """Return whether there is anything to compact. Reads little, also where there is much."""
    sql = f"""
        SELECT EXISTS (SELECT 1 FROM sessions WHERE {_UNUSED})
            OR EXISTS (SELECT 1 FROM tasks WHERE {_EXPIRED} AND (result_compacted = 0 OR expires_at <= :long_ago))
    """
    return bool(connection.execute(sql, _times(now, retention)).fetchone()[0])


def compact_some(
    connection: sqlite3.Connection, now: datetime, retention: timedelta
) -> tuple[Compacted, Sequence[str]]:
    """Compact some of what is due, as a part of a transaction that others need not wait for long.

    Returns what was compacted, and the ids of its sessions.
    """
    times = _times(now, retention)
    numbers, ids, events = _unused_sessions(connection, times)
    connection.execute(f"DELETE FROM events WHERE session IN ({_places(numbers)})", numbers)
    connection.execute(f"UPDATE sessions SET compacted_seq = last_seq WHERE number IN ({_places(numbers)})", numbers)
    results = connection.execute(f"{_COMPACT_TASKS} NOT {_RUNNING} AND session_id IN ({_places(ids)})", ids).rowcount
    some = f"SELECT number FROM tasks WHERE {_EXPIRED} AND result_compacted = 0 LIMIT {_TASKS_AT_ONCE}"
    results += connection.execute(f"{_COMPACT_TASKS} number IN ({some})", times).rowcount
    connection.execute(f"DELETE FROM tasks WHERE {_EXPIRED} AND expires_at <= :long_ago", times)
    for table in ("outcomes", "steps"):
        kept = "SELECT id FROM tasks WHERE result_compacted = 0"
        connection.execute(f"DELETE FROM {table} WHERE task_id NOT IN ({kept})")
    return Compacted(len(ids), events, results), ids


def _unused_sessions(connection: sqlite3.Connection, times: dict[str, int]) -> tuple[list[int], list[str], int]:
    """Return the numbers and ids of sessions to compact next, and how many events they have."""
    sql = f"SELECT number, id, last_seq - compacted_seq FROM sessions WHERE {_UNUSED} LIMIT {_SESSIONS_AT_ONCE}"
    numbers: list[int] = []
    ids: list[str] = []
    events = 0
    for number, session_id, count in connection.execute(sql, times):
        if numbers and events + count > _EVENTS_AT_ONCE:
            break
        numbers.append(number)
        ids.append(session_id)
        events += count
    return numbers, ids, events


def _places(values: list[Any]) -> str:
    return ", ".join("?" * len(values))


# --- size ------------------------------------------------------------------------------------------------------------


class SessionSize(NamedTuple):
    """How much the store holds of a session. `bytes` are those of its events."""

    session_id: str
    events: int
    bytes: int
    changed_at: datetime


class Summary(NamedTuple):
    """What is in the store. `bytes` are those of its files, `free_bytes` the part that is free for what comes next."""

    bytes: int
    free_bytes: int
    sessions: int
    events: int
    tasks: int
    oldest_at: datetime | None
    largest: tuple[SessionSize, ...]


def summary(connection: sqlite3.Connection, path: Path) -> Summary:
    """Return what is in the store. Counts no events one by one, so that it takes milliseconds."""
    value = partial(_value, connection)
    oldest = value("SELECT at FROM events ORDER BY number LIMIT 1")
    return Summary(
        bytes=size_on_disk(path),
        free_bytes=value("PRAGMA freelist_count") * value("PRAGMA page_size"),
        sessions=value("SELECT count(*) FROM sessions"),
        events=value("SELECT coalesce(sum(last_seq - compacted_seq), 0) FROM sessions"),
        tasks=value("SELECT count(*) FROM tasks"),
        oldest_at=None if oldest is None else from_microseconds(oldest),
        largest=_largest(connection),
    )


def size_on_disk(path: Path) -> int:
    """Return how many bytes the files of the store have."""
    files = (path.with_name(path.name + companion) for companion in COMPANIONS)
    return sum(file.stat().st_size for file in files if file.exists())


def _value(connection: sqlite3.Connection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def _largest(connection: sqlite3.Connection) -> tuple[SessionSize, ...]:
    rows = connection.execute(
        "SELECT id, last_seq - compacted_seq AS events, changed_at, "
        "(SELECT sum(length(CAST(body AS BLOB))) FROM events WHERE session = sessions.number) AS bytes "
        f"FROM sessions WHERE last_seq > compacted_seq ORDER BY events DESC LIMIT {_LARGEST}"
    )
    return tuple(
        SessionSize(row["id"], row["events"], row["bytes"] or 0, from_microseconds(row["changed_at"])) for row in rows
    )


def reclaim(database: Database) -> None:
    """Give free pages back to the disk, in small transactions.

    Raises:
        RegistryUnavailable: The file cannot be written.
    """

    def some(connection: sqlite3.Connection) -> bool:
        before = _value(connection, "PRAGMA freelist_count")
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
        return bool(_value(connection, "PRAGMA freelist_count") < before)

    while database.read(some):
        pass
    database.read(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())


# --- integrity -------------------------------------------------------------------------------------------------------


class Problems(NamedTuple):
    """What is wrong with the store, in sentences: pages that cannot be read, and events that are missing."""

    damage: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


def problems(connection: sqlite3.Connection) -> Problems:
    """Read the whole file, and return what is wrong with it. Blocks for seconds where it is large.

    Raises:
        sqlite3.Error: It cannot be read, for another reason than that it is damaged.
    """
    try:
        found = [row[0] for row in connection.execute(f"PRAGMA quick_check({_MOST_PROBLEMS})")]
        damage = tuple(said for said in found if said != "ok")
        return Problems(damage, () if damage else tuple(_gaps(connection)))
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return Problems((str(error),))


def _gaps(connection: sqlite3.Connection) -> Iterator[str]:
    strays = _value(connection, "SELECT count(*) FROM events WHERE session NOT IN (SELECT number FROM sessions)")
    if strays:
        yield f"{strays} events belong to no session."
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


def session_ids(connection: sqlite3.Connection) -> list[str]:
    """Return the sessions that the store knows, oldest first."""
    return [row["id"] for row in connection.execute("SELECT id FROM sessions ORDER BY number")]


def exported(connection: sqlite3.Connection, session_id: str) -> Iterator[dict[str, Any] | None]:
    """Yield the events of a session as JSON (docs/events.md), each with its number and time; None for a damaged one.

    Each is read alone, so that one that is damaged does not keep its neighbours from being read.
    """
    sql = "SELECT number FROM events WHERE session = (SELECT number FROM sessions WHERE id = ?) ORDER BY seq"
    numbers = _unless_damaged(lambda: [row["number"] for row in connection.execute(sql, (session_id,))])
    if numbers is None:
        yield None
    for number in numbers or ():
        yield _unless_damaged(partial(_exported, connection, session_id, number))


def _exported(connection: sqlite3.Connection, session_id: str, number: int) -> dict[str, Any]:
    row = connection.execute("SELECT seq, at, kind, body FROM events WHERE number = ?", (number,)).fetchone()
    about = {"sessionId": session_id, "seq": row["seq"], "at": from_microseconds(row["at"]).isoformat()}
    return {**decode(row["kind"], row["body"]).to_json(), **about}


def _unless_damaged(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except sqlite3.Error as error:
        if is_damage(error):
            return None
        raise
