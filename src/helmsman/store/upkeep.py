"""Retention: how long the store keeps transcripts and results.

A session's events and the results of its tasks are deleted together, once nothing has happened in the session for the
retention time. A task without a session expires by itself. The rows of sessions and tasks stay, because lists and usage
need them, and the events of a session that is continued are numbered on from the last one.
"""

# ruff: noqa: S608 - what is put together here are conditions and placeholders, never values

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helmsman.settings import RETENTION_DAYS
from helmsman.store.database import microseconds

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime

RETENTION: Final = timedelta(days=RETENTION_DAYS)
"""How long transcripts and results are kept by default."""
_ROWS_KEPT: Final = timedelta(days=365)
"""How long the row of a task outlives its result: it still counts for the usage of the year."""

_SESSIONS_AT_ONCE: Final = 100
_EVENTS_AT_ONCE: Final = 20_000
_TASKS_AT_ONCE: Final = 1000
"""One transaction compacts at most so much, and at least one session: meanwhile others wait to write."""

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


def compact_some(connection: sqlite3.Connection, now: datetime, retention: timedelta) -> Compacted:
    """Compact some of what is due, as a part of a transaction that others need not wait for long."""
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
    return Compacted(len(ids), events, results)


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
