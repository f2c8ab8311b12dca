"""What the store costs: one append, opening it and listing sessions with a million events in it, its size, and compacting.

An append is an event and its session's row in one transaction, as the hub writes it, beside a transaction of SQLite alone
that writes the same rows. Both are written through to the disk. The million events
are commands with a line of output, and half of the sessions were last used before the retention time.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Row, Sample, by_turns, compared
from helmsman.model.events import CommandExecution, ItemEnded
from helmsman.store.database import Fence
from helmsman.store.log import NewEvent, append, read
from helmsman.store.sqlite import SqliteDatabase
from helmsman.store.upkeep import RETENTION, compact_some, is_due
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import REGISTRY_NAME, Batch, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.model.events import Event
    from helmsman.tasks.model import TaskChanges

SESSIONS = 10_000
EVENTS = 100
"""Events per session."""
APPENDS = 100
"""Appends per round."""
ROUNDS = 30
STREAMING, A_SECOND = 50, 100
"""Concurrently streaming sessions, and events per second of each."""
OPENED = 30
_AT_ONCE = 100
APPEND_AT_MOST = 1.5
OPEN_SECONDS = 0.1
LIST_SECONDS = 0.05
_BARE = (
    "CREATE TABLE sessions (id TEXT PRIMARY KEY, last_seq INTEGER, changed_at INTEGER)",
    "INSERT INTO sessions VALUES ('bench', 0, 0)",
    "CREATE TABLE events (session INTEGER, seq INTEGER, at INTEGER, kind TEXT, body TEXT, UNIQUE (session, seq))",
)


async def measure(sessions: int = SESSIONS) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-") as folder:
        place = Path(folder)
        durable, bare = await _appends(place / "wall", time.perf_counter)
        processor, bare_processor = await _appends(place / "processor", time.process_time)
        name = "a bare SQLite transaction"
        return [
            compared("one durable append with the search for secrets", durable, bare, name, APPEND_AT_MOST),
            compared("the same, processor time", processor, bare_processor, name, None),
            _streaming(place / "streaming" / REGISTRY_NAME),
            *_with_many(place / "state" / REGISTRY_NAME, sessions),
        ]


def _item(number: int) -> Event:
    output = f"{number} passed. " * 12
    item = CommandExecution(id=f"item-{number}", command=f"pytest -q tests/test_{number}.py", output=output)
    return ItemEnded(session_id="bench", turn_id="turn-1", item=item)


def _event(number: int, at: datetime) -> NewEvent:
    return NewEvent.of(_item(number).with_time(at))


def _streaming(path: Path) -> Row:
    """Measure the hub's writer: encode, redact and commit what many sessions say within half a second, with their tasks."""
    taken: list[float] = []
    with closing(Registry(path, fence=Fence(1, print))) as registry:
        tasks = [registry.add(TaskDraft(instruction="Work", session_id=_id(one)))[0].id for one in range(STREAMING)]
        numbers = iter(range(1_000_000))
        for _ in range(ROUNDS):
            said = {_id(one): [_item(next(numbers)) for _ in range(A_SECOND // 2)] for one in range(STREAMING)}
            began, now = time.process_time(), datetime.now(UTC)
            changes: dict[str, TaskChanges] = {task_id: {"last_event_at": now} for task_id in tasks}
            events = {session_id: [NewEvent.of(one.with_time(now)) for one in new] for session_id, new in said.items()}
            registry.commit(Batch(changes=changes, events=events))
            taken.append((time.process_time() - began) / (STREAMING * (A_SECOND // 2)))
    sample = Sample(tuple(taken))
    return Row(
        what=f"{STREAMING} sessions that say {A_SECOND} things a second each, processor time for one of them",
        goal="none",
        helmsman=f"{sample.median * 1e6:.0f} µs",
        beside=f"{sample.median * STREAMING * A_SECOND:.2f} of a processor",
        met=None,
    )


def _id(number: int) -> str:
    return f"{number:08d}-0000-7000-8000-{number:012d}"


async def _appends(folder: Path, clock: Callable[[], float]) -> tuple[Sample, Sample]:
    """Measure appends to the store, and transactions of SQLite alone that write the same rows."""
    event = _event(1, datetime.now(UTC))
    with (
        closing(Registry(folder / REGISTRY_NAME)) as registry,
        closing(sqlite3.connect(folder.with_suffix(".bare"), isolation_level=None)) as bare,
    ):
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", *_BARE):
            bare.execute(statement)
        numbers = iter(range(1_000_000))

        def by_sqlite() -> None:
            bare.execute("BEGIN IMMEDIATE")
            bare.execute("UPDATE sessions SET last_seq = last_seq + 1, changed_at = ? WHERE id = 'bench'", (event.at,))
            bare.execute("INSERT INTO events VALUES (1, ?, ?, ?, ?)", (next(numbers), event.at, event.kind, event.body))
            bare.execute("COMMIT")

        def by_store() -> None:
            body = event.body.replace("item-1", f"item-{next(numbers)}")  # no text is looked through twice
            registry.database.write(partial(append, events={"bench": [event._replace(body=body).redacted()]}))

        contenders = {"store": partial(_each, by_store, clock), "bare": partial(_each, by_sqlite, clock)}
        taken = await by_turns(contenders, ROUNDS)
    return taken["store"], taken["bare"]


async def _each(do: Callable[[], None], clock: Callable[[], float]) -> float:
    began = clock()
    for _ in range(APPENDS):
        do()
    return (clock() - began) / APPENDS


def _with_many(path: Path, sessions: int) -> list[Row]:
    bodies = _fill(path, sessions)
    size = SqliteDatabase(path).size().bytes
    opened, listed = _opened(path), _listed(path, sessions)
    longest, deleted, after = _compacted(path)
    return [
        Row(
            what=f"opening a store with {sessions * EVENTS:,} events and reading a session",
            goal=f"under {OPEN_SECONDS * 1000:g} ms",
            helmsman=opened.in_ms(),
            beside="",
            met=opened.median < OPEN_SECONDS,
        ),
        Row(
            what=f"list of {sessions:,} sessions from the store",
            goal=f"under {LIST_SECONDS * 1000:g} ms",
            helmsman=listed.in_ms(),
            beside="",
            met=listed.median < LIST_SECONDS,
        ),
        Row(
            what=f"disk for a session of {EVENTS} events",
            goal="none",
            helmsman=f"{size / sessions / 1000:.0f} kB",
            beside=f"their text {bodies / sessions / 1000:.0f} kB",
            ratio=size / bodies,
            met=None,
        ),
        Row(
            what=f"compacting half of {sessions:,} sessions, the longest transaction",
            goal="none",
            helmsman=f"{longest * 1000:.0f} ms",
            beside=f"all in {deleted:.1f} s; {size / 1e6:,.0f} MB before, {after / 1e6:,.0f} MB after",
            met=None,
        ),
    ]


def _fill(path: Path, sessions: int) -> int:
    """Fill a store, with expired events in every other session. Return the number of bytes of events."""
    now = datetime.now(UTC)
    new, old = ([_event(number, at) for number in range(EVENTS)] for at in (now, now - 2 * RETENTION))
    with closing(Registry(path)) as registry:
        for first in range(0, sessions, _AT_ONCE):
            events = {_id(number): old if number % 2 else new for number in range(first, first + _AT_ONCE)}
            registry.database.write(partial(append, events=events))
    return sum(len(event.body) for event in new) * sessions


def _opened(path: Path) -> Sample:
    taken: list[float] = []
    for number in range(OPENED):
        began = time.perf_counter()
        with closing(Registry(path)) as registry:
            registry.running()
            found = registry.database.read(partial(read, session_id=_id(number * 100)))
            taken.append(time.perf_counter() - began)
        assert len(found.events) == EVENTS, found
    return Sample(tuple(taken))


def _listed(path: Path, sessions: int) -> Sample:
    sql = "SELECT id, last_seq, changed_at, client FROM sessions ORDER BY changed_at DESC"
    taken: list[float] = []
    with closing(Registry(path)) as registry:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            found = registry.database.read(lambda connection: connection.execute(sql).fetchall())
            taken.append(time.perf_counter() - began)
            assert len(found) == sessions
    return Sample(tuple(taken))


def _compacted(path: Path) -> tuple[float, float, int]:
    """Compact the store: the seconds of the longest transaction and of all together, and how many bytes are left."""
    taken: list[float] = []
    now = datetime.now(UTC)
    with closing(Registry(path)) as registry:
        began = time.perf_counter()
        while registry.database.read(lambda connection: is_due(connection, now, RETENTION)):
            before = time.perf_counter()
            registry.database.write(lambda connection: compact_some(connection, now, RETENTION))
            taken.append(time.perf_counter() - before)
        registry.database.reclaim()
        return max(taken), time.perf_counter() - began, SqliteDatabase(path).size().bytes
