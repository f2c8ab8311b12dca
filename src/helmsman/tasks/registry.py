"""Registry: every task, in the store.

Calls are synchronous, take about a millisecond, and may come from any thread. Each change is one transaction. They
return the stored state; `reconcile` checks whether it is still true for a task without a living owner.
"""

# ruff: noqa: S608 - only names of columns and placeholders are put together here, never values

from __future__ import annotations

import json
import logging
import math
import sqlite3
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack

import msgspec
from msgspec import field as value_field
from msgspec import structs

from helmsman.base.clients import McpClient
from helmsman.base.json_values import json_object
from helmsman.base.redaction import redact_value
from helmsman.base.structs import Value, replace, unpack_if_valid
from helmsman.errors import InvalidInput, RegistryUnavailable
from helmsman.model.events import Usage
from helmsman.model.options import DEFAULT_AGENT, LIST_LIMIT
from helmsman.store import open_store, outbox
from helmsman.store.connection import is_in
from helmsman.store.database import encodable, from_microseconds, microseconds
from helmsman.store.log import append, heads, only_in_tasks, read
from helmsman.store.search_index import SearchIndex
from helmsman.store.upkeep import RETENTION, Compacted, compact_some, is_due
from helmsman.tasks.model import QUOTA, RUNNING, Task, TaskChanges, changed, make_alias, new_task_id
from helmsman.tasks.outcome import kept, to_keep
from helmsman.tasks.rows import clean, clean_key, columns_of, task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import timedelta
    from pathlib import Path

    from helmsman.store.connection import Cursor, StoreConnection
    from helmsman.store.database import Database, Fence
    from helmsman.store.log import LogHead, NewEvent, StoredEvents
    from helmsman.tasks.model import TaskDraft, TaskOrigin, TaskStatus
    from helmsman.tasks.outcome import TaskOutcome

log = logging.getLogger(__name__)

REGISTRY_NAME: Final = "registry.sqlite3"
_MOST: Final = 2**62
"""Large limit that SQLite accepts."""

_TOLD_ENDS: Final = ("completed", "failed", "unknown")
"""Statuses for which a notification is sent."""
_COMPACT_EVERY: Final = 3600.0
_COMPACT_MORE_AFTER: Final = 1.0

T = TypeVar("T")


_Tasks: TypeAlias = "tuple[Task, ...]"


class TurnUsage(Value, frozen=True, kw_only=True):
    """Usage of one task, and the session and turn it belongs to. `before` is its usage before the turn that it names."""

    agent: str = DEFAULT_AGENT
    session_id: str | None
    turn_id: str | None
    directory: str | None
    model: str | None
    began_at: datetime
    usage: Usage
    before: Usage = value_field(default_factory=Usage)


@dataclass(slots=True)
class Batch:
    """Changes of tasks and sessions that are written in one transaction."""

    drafts: dict[str, TaskDraft] = field(default_factory=dict)
    """Tasks to add first. All of them are among the changes."""
    changes: dict[str, TaskChanges] = field(default_factory=dict)
    outcomes: dict[str, TaskOutcome] = field(default_factory=dict)
    """Outcomes of ended tasks."""
    events: dict[str, list[NewEvent]] = field(default_factory=dict)
    """Events of sessions, by session id."""
    seen: set[str] = field(default_factory=set)
    """Tasks with an end that a client sees as it comes: no notice is sent for it."""

    def __bool__(self) -> bool:
        return bool(self.changes or self.outcomes or self.events)


class Registry:
    """Tasks in one store: an SQLite file, the Postgres at an `address`, or a `database` that is open."""

    def __init__(
        self,
        path: Path,
        *,
        address: str | None = None,
        database: Database | None = None,
        clock: Callable[[], datetime] | None = None,
        fence: Fence | None = None,
        retention: timedelta = RETENTION,
    ) -> None:
        """Set up the registry. The store is opened, and created if necessary, on first use."""
        self._clock = clock or (lambda: datetime.now(UTC))
        self.path = path
        self.database = database or open_store(path, address, fence=fence)
        self._retention = retention
        self._next_compaction = 0.0
        self._last_numbers: dict[str, int] = {}

    def close(self) -> None:
        """Close the store. A later call opens it again."""
        self.database.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def add(self, draft: TaskDraft, also: Callable[[StoreConnection, Task], None] | None = None) -> tuple[Task, bool]:
        """Register a task. False with the task that has the draft's idempotency key already, if one has.

        `also` is written with it, in the same transaction, or neither is.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """
        added = self.database.write(self.adding(draft, also))
        self._compact_now_and_then()
        return added

    def adding(
        self,
        draft: TaskDraft,
        also: Callable[[StoreConnection, Task], None] | None = None,
        *,
        change: TaskChanges | None = None,
        alias: str | None = None,
    ) -> Callable[[StoreConnection], tuple[Task, bool]]:
        """Return the function that registers a task in a transaction.

        `change` is its change since its draft. `alias` is one that no other task has.
        """
        now = self._clock()
        # The change decides about the request: a task that has begun needs it no longer.
        if change is not None and "spec" in change:
            draft = replace(draft, spec=None)
        cleaned: Any = clean(change or {})
        values = clean(structs.asdict(draft))
        values["id"] = values["id"] or new_task_id(draft.origin)
        key = None if draft.idempotency_key is None else clean_key(draft.idempotency_key)

        def work(connection: StoreConnection) -> tuple[Task, bool]:
            if key is not None:
                same = _one(connection.execute("SELECT * FROM tasks WHERE idempotency_key = ?", (key,)))
                if same is not None and _is_kept(same, now):
                    return same, False
                # The task that had the key has expired.
                connection.execute("UPDATE tasks SET idempotency_key = NULL WHERE idempotency_key = ?", (key,))
            name = alias or make_alias(
                values["instruction"], lambda name: _is_in_use(connection, name), self._last_numbers
            )
            new = Task(**values, alias=name, created_at=now, updated_at=now)
            task = changed(new, cleaned, now, self._retention)
            columns = columns_of(task)
            connection.execute(
                f"INSERT INTO tasks ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
                tuple(columns.values()),
            )
            _enter_notices(connection, new, task)
            if also is not None:
                also(connection, task)
            return task, True

        return work

    def update(
        self,
        task_id: str,
        *,
        if_revision: int | None = None,
        **changes: Unpack[TaskChanges],
    ) -> Task | None:
        """Change a task as `helmsman.tasks.model.changed` allows. Return the new task, or None if it does not exist.

        With `if_revision`, only if the task still has that revision: for conclusions drawn from an earlier read.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """
        return self.database.write(self._updating(task_id, changes, if_revision=if_revision))

    def commit(self, batch: Batch, also: Callable[[StoreConnection], object] | None = None) -> None:
        """Write a batch in one transaction, and `also` with it.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """
        steps: list[Callable[[StoreConnection], object]] = [
            *(self.adding(draft, change=batch.changes[task_id]) for task_id, draft in batch.drafts.items()),
            *(
                self._updating(task_id, change)
                for task_id, change in batch.changes.items()
                if task_id not in batch.drafts
            ),
            *(_keeping(task_id, outcome) for task_id, outcome in batch.outcomes.items()),
        ]
        if batch.events:
            # Outside of the transaction, since redaction takes longer than the writing.
            clean_events = {one: [event.redacted() for event in new] for one, new in batch.events.items()}
            steps.append(partial(append, events=clean_events))
        if batch.seen:
            told = [(f"task {task_id}",) for task_id in batch.seen]
            steps.append(lambda connection: connection.executemany("DELETE FROM notices_due WHERE about = ?", told))
        if also is not None:
            steps.append(also)

        def work(connection: StoreConnection) -> None:
            for step in steps:
                step(connection)

        self.database.write(work)
        self._compact_now_and_then()

    def _updating(
        self,
        task_id: str,
        changes: TaskChanges,
        *,
        if_revision: int | None = None,
    ) -> Callable[[StoreConnection], Task | None]:
        now = self._clock()
        cleaned: Any = clean(changes)

        def work(connection: StoreConnection) -> Task | None:
            lock = connection.dialect.row_lock
            row = connection.execute(f"SELECT * FROM tasks WHERE id = ? {lock}", (task_id,)).fetchone()
            task = None if row is None else task_of(row)
            if task is None or (if_revision is not None and task.revision != if_revision):
                return task
            new = changed(task, cleaned, now, self._retention)
            if new is not task:
                # Only what has changed: a result may be large.
                columns = {name: value for name, value in columns_of(new, row).items() if value != row[name]}
                connection.execute(
                    f"UPDATE tasks SET {', '.join(f'{name} = ?' for name in columns)} WHERE id = ?",
                    (*columns.values(), task_id),
                )
                _enter_notices(connection, task, new)
            return new

        return work

    def free_key(self, task: Task) -> None:
        """Free the idempotency key of a task that did not start: the next task with that key is a new one."""
        if task.is_running:
            note = "Its process ended before it was known to have begun."
            self.update(task.id, status="unknown", note=note, idempotency_key=None)
        else:
            self.update(task.id, idempotency_key=None)

    def keep_outcome(self, task_id: str, outcome: TaskOutcome) -> None:
        """Store the outcome of a task, for as long as its result is kept.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """
        self.database.write(_keeping(task_id, outcome))

    def outcome(self, task_id: str) -> TaskOutcome | None:
        """Return the outcome of a task; None if it is unknown or has expired."""
        sql = "SELECT content FROM outcomes WHERE task_id = ?"
        row = self.database.read(lambda connection: connection.execute(sql, (encodable(task_id),)).fetchone())
        return None if row is None else kept(json_object(row["content"]) or {})

    def job_reports(self, kind: str, limit: int) -> list[Mapping[str, Any]]:
        """Return the reports of jobs of a kind, newest first."""
        sql = (
            "SELECT content FROM outcomes JOIN tasks ON tasks.id = outcomes.task_id WHERE tasks.job = ? "
            "ORDER BY tasks.number DESC LIMIT ?"
        )
        rows = self.database.read(lambda connection: connection.execute(sql, (kind, limit)).fetchall())
        return [kept(json_object(row["content"]) or {}).report or {} for row in rows]

    def keep_step(self, task_id: str, name: str, found: object) -> None:
        """Store the result of one step of a job. The first result stays.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """
        content = encodable(json.dumps(redact_value(found)))
        sql = "INSERT INTO steps VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        self.database.write(lambda connection: connection.execute(sql, (task_id, name, content)))

    def steps(self, task_id: str) -> dict[str, Any]:
        """Return the results of a job so far, by the names of its steps."""
        sql = "SELECT name, content FROM steps WHERE task_id = ?"
        rows = self.database.read(lambda connection: connection.execute(sql, (task_id,)).fetchall())
        return {row["name"]: json.loads(row["content"]) for row in rows}

    def compact(self) -> Compacted:
        """Delete expired transcripts and results (`helmsman.store.upkeep`), in small transactions.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """
        done = Compacted()
        while (some := self._compact_some()) is not None:
            done = Compacted(*map(add, done, some))
        return done

    def _compact_some(self) -> Compacted | None:
        """Compact some of the expired data, or None."""
        now = self._clock()
        if not self.database.read(partial(is_due, now=now, retention=self._retention)):
            return None
        compacted, session_ids = self.database.write(partial(compact_some, now=now, retention=self._retention))
        try:
            SearchIndex(self.path.parent).forget(session_ids)
        except (sqlite3.Error, OSError) as error:  # the next search compares the index with the log
            log.warning("the search index still has transcripts whose time is up: %s", error)
        return compacted

    def _compact_now_and_then(self) -> None:
        if time.monotonic() < self._next_compaction:
            return
        try:
            pause = _COMPACT_EVERY if self._compact_some() is None else _COMPACT_MORE_AFTER
        except RegistryUnavailable as error:  # regular writes come first
            log.warning("transcripts and results whose time is up are still there: %s", error)
            pause = _COMPACT_EVERY
        self._next_compaction = time.monotonic() + pause

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, task_id: str) -> Task | None:
        """Return the task with exactly this id."""
        return self._one("WHERE id = ?", task_id)

    def find(self, ref: str) -> Task | None:
        """Return the task with this id, or else the newest with this alias."""
        return self.get(ref) or self._one("WHERE alias = ? ORDER BY number DESC LIMIT 1", ref.strip().lower())

    def with_key(self, key: str) -> Task | None:
        """Return the task of this idempotency key, until it expires."""
        task = self._one("WHERE idempotency_key = ?", clean_key(key))
        return task if task is not None and _is_kept(task, self._clock()) else None

    def list(
        self,
        *,
        status: Collection[TaskStatus] | None = None,
        origin: TaskOrigin | None = None,
        agent: str | None = None,
        directories: Collection[str] | None = None,
        limit: int = LIST_LIMIT,
        cursor: str | None = None,
    ) -> tuple[_Tasks, str | None]:
        """Return one page of tasks, newest first, and the cursor of the next page if there is one.

        Args: status: Only tasks in one of these. origin: Only local ones, or those in the cloud. agent: Only those of this
        agent. directories: Only those that work in one of these directories. limit: Maximum number of tasks. cursor: End of
        the page before.

        Raises:
            InvalidInput: The limit or the cursor is invalid.
            RegistryUnavailable: The file cannot be read.
        """
        if limit < 1:
            raise InvalidInput(f"limit cannot be {limit}. Use a number from 1 on.")
        conditions: dict[str, tuple[Any, ...]] = {}
        if status is not None:
            conditions[is_in("status", status)] = tuple(status)
        if directories is not None:
            wanted = tuple(map(encodable, sorted(directories)))
            conditions[is_in("directory", wanted)] = wanted
        for name, value in (("origin", origin), ("agent", agent)):
            if value is not None:
                conditions[f"{name} = ?"] = (encodable(str(value)),)
        if cursor is not None:
            conditions["number < ?"] = (_read_cursor(cursor),)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        values = [value for condition in conditions.values() for value in condition]
        sql = f"SELECT * FROM tasks {where} ORDER BY number DESC LIMIT ?"
        # One more than the page, to see whether there is another.
        most = min(limit, _MOST) + 1
        rows = self.database.read(lambda connection: connection.execute(sql, (*values, most)).fetchall())
        page = tuple(task_of(row) for row in rows[:limit])
        return page, (str(rows[limit - 1]["number"]) if len(rows) > limit else None)

    def running(self) -> _Tasks:
        """Return the tasks that are pending or working, newest first."""
        return self._many(f"WHERE {is_in('status', RUNNING)}", *RUNNING)

    def limited_accounts(self) -> dict[tuple[str, ...], Task]:
        """Return the accounts that have reached their usage limit, each with a task that waits for it.

        A turn of the same account that has succeeded since shows that the limit is over.
        """
        waiting = [task for task in self.running() if task.limit_reached_at is not None]
        limited: dict[tuple[str, ...], Task] = {}
        # In order of time, so that the newest task of each account stays.
        for task in sorted(waiting, key=lambda one: one.limit_reached_at or one.updated_at):
            limited[task.account] = task
        if not limited:
            return limited
        since = min(task.limit_reached_at or task.updated_at for task in limited.values())
        for done in self._many("WHERE status = 'completed' AND completed_at > ?", microseconds(since)):
            waits = limited.get(done.account)
            if waits is not None and done.job is None and _is_before(waits.limit_reached_at, done.completed_at):
                del limited[done.account]
        return limited

    def owner_of(self, session_id: str) -> McpClient | None:
        """Return the MCP client that owns a session; None for a person's."""
        sql = "SELECT client FROM sessions WHERE id = ?"
        row = self.database.read(lambda connection: connection.execute(sql, (session_id,)).fetchone())
        return None if row is None or row["client"] is None else unpack_if_valid(json_object(row["client"]), McpClient)

    def events(self, session_id: str, since: int = 0, most_bytes: float = math.inf) -> StoredEvents:
        """Return the log of a session after a cursor, its beginning only if all of it has more bytes."""
        return self.database.read(partial(read, session_id=session_id, since=since, most_bytes=most_bytes))

    def log_heads(self) -> dict[str, LogHead]:
        """Return the ends of all logs that have events, by session id."""
        return self.database.read(heads)

    def tasks_of_session(self, session_id: str) -> _Tasks:
        """Return the turns of a session, newest first, including one that was about to begin when its process died."""
        wanted = encodable(session_id)
        # A task without a session is found by its status: the index of sessions has too many without one.
        opened = f"{is_in('status', RUNNING)} AND coalesce(session_id, '') = ''"
        found = self._many(f"WHERE session_id = ? OR ({opened})", wanted, *RUNNING)
        return tuple(task for task in found if task.session_id == wanted or task.opened_session == wanted)

    def turn_usages(self, session_id: str | None = None, since: datetime | None = None) -> tuple[TurnUsage, ...]:
        """Return the usage of each task, or of those of a session, or that have changed since then, oldest first.

        Much cheaper than reading the whole tasks.
        """
        conditions: dict[str, Any] = {}
        if session_id is not None:
            conditions["session_id = ?"] = encodable(session_id)
        if since is not None:
            conditions["updated_at >= ?"] = microseconds(since)
        sql = (
            "SELECT agent, session_id, turn_id, directory, model, created_at, body, usage, used_before "
            f"FROM tasks WHERE {' AND '.join(('usage IS NOT NULL', *conditions))} ORDER BY number"
        )
        values = tuple(conditions.values())
        rows = self.database.read(lambda connection: connection.execute(sql, values).fetchall())
        return tuple(
            TurnUsage(
                agent=row["agent"],
                session_id=row["session_id"],
                turn_id=row["turn_id"],
                directory=row["directory"],
                model=row["model"],
                began_at=_asked_at(row["body"]) or from_microseconds(row["created_at"]),
                usage=_usage(row["usage"]),
                before=_usage(row["used_before"]),
            )
            for row in rows
        )

    def only_in_tasks(self, session_id: str | None = None, since: datetime | None = None) -> dict[str, datetime]:
        """Return the sessions whose tasks say all that was spent in them, and when something last happened in each.

        Only this session, or those in which something happened since then.
        """
        return self.database.read(partial(only_in_tasks, session_id=session_id, since=since))

    def granted(self, since: datetime) -> tuple[Task, ...]:
        """Return tasks that were granted more than a budget and have changed since then."""
        return tuple(task for task in self._many("WHERE updated_at >= ?", microseconds(since)) if task.granted)

    def _one(self, condition: str, *texts: str) -> Task | None:
        sql, values = f"SELECT * FROM tasks {condition}", tuple(map(encodable, texts))
        return self.database.read(lambda connection: _one(connection.execute(sql, values)))

    def _many(self, condition: str, *values: Any) -> _Tasks:
        sql = f"SELECT * FROM tasks {condition} ORDER BY number DESC"
        rows = self.database.read(lambda connection: connection.execute(sql, values).fetchall())
        return tuple(task_of(row) for row in rows)


class _Asked(Value, frozen=True):
    asked_at: datetime | None = None


# Directly from JSON, and of a body one field alone: there are tens of thousands.
_ASKED: Final = msgspec.json.Decoder(_Asked)
_USAGE: Final = msgspec.json.Decoder(Usage)
_NO_USAGE: Final = Usage()


def _asked_at(body: str | None) -> datetime | None:
    try:
        return _ASKED.decode(body or "{}").asked_at
    except msgspec.MsgspecError:
        return None


def _usage(text: str | None) -> Usage:
    try:
        return _NO_USAGE if text is None else _USAGE.decode(text)
    except msgspec.MsgspecError:
        return _NO_USAGE


def _is_before(first: datetime | None, second: datetime | None) -> bool:
    return first is not None and second is not None and first < second


def _enter_notices(connection: StoreConnection, before: Task, now: Task) -> None:
    """Add the end of a task, or a usage limit that it waits for, to the outbox."""
    if before.is_running and now.status in _TOLD_ENDS and now.origin == "local":
        pid = None if before.owner is None else before.owner.pid
        outbox.enter(connection, f"task {now.id}", now.updated_at, pid, before.engine)
    if now.waiting_for == QUOTA and before.waiting_for != QUOTA:
        pid = None if now.owner is None else now.owner.pid
        resumes_at = "" if now.resumes_at is None else now.resumes_at.isoformat()
        about = f"limit {now.id} {resumes_at}"
        outbox.enter(connection, about, now.updated_at, pid, now.engine)


def _keeping(task_id: str, outcome: TaskOutcome) -> Callable[[StoreConnection], object]:
    content = encodable(json.dumps(to_keep(outcome)))
    sql = (
        # A late outcome must not bring back a result that has expired.
        "INSERT INTO outcomes SELECT id, ? FROM tasks WHERE id = ? AND result_compacted = 0 "
        "ON CONFLICT (task_id) DO UPDATE SET content = excluded.content"
    )
    return lambda connection: connection.execute(sql, (content, task_id))


def _is_kept(task: Task, now: datetime) -> bool:
    """Return whether a task still holds its idempotency key."""
    return task.is_running or task.expires_at is None or task.expires_at > now


def _one(cursor: Cursor) -> Task | None:
    row = cursor.fetchone()
    return None if row is None else task_of(row)


def _is_in_use(connection: StoreConnection, alias: str) -> bool:
    # An alias is free again when the result of its task has expired.
    known = connection.execute("SELECT 1 FROM tasks WHERE alias = ? AND result_compacted = 0 LIMIT 1", (alias,))
    return known.fetchone() is not None


def _read_cursor(cursor: str) -> int:
    # More digits would not fit into a 64-bit integer.
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInput(f"{cursor!r:.100} is not a cursor of this list. Use nextCursor of the page before, or none.")
    return int(cursor)
