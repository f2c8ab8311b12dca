"""Event log: the events of each session, numbered from 1 in the order in which they were appended.

`append` is part of a transaction: the tasks and events of one change are committed together, and so is the position in
the supervised agent's output that the newest event comes from. A hub that reads this output again skips the lines that
the log has. Readers hold a cursor, the number of the last event they have seen, and read from there. Text that is still
being written is not in the log; the finished item is. Secrets are redacted.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helmsman.base.redaction import redact, redact_value
from helmsman.model.codec import decode, encode
from helmsman.model.events import (
    DiffUpdated,
    HistoryImported,
    OwnerChanged,
    ProcessStateChanged,
    Source,
    TurnRequested,
)
from helmsman.model.options import without_secrets
from helmsman.store.connection import is_in
from helmsman.store.database import encodable, from_microseconds, microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from helmsman.model.events import Event
    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database

_ROWS_AT_ONCE: Final = 200
"""Events per INSERT statement. Each statement of a writer thread waits for the interpreter's lock."""

_DIFF: Final = DiffUpdated.event_type()
"""Each diff contains the earlier ones, so only the newest is kept; the others keep their number without the diff."""
_OWNER: Final = OwnerChanged.event_type()
"""The owner of a session outlives its events."""
_PROCESS: Final = ProcessStateChanged.event_type()
"""A process that ends for want of work is no activity of its session."""

_APPEND: Final = (
    "INSERT INTO sessions (id, last_seq, compacted_seq, changed_at, source, source_offset, spent_besides) "
    "VALUES (:id, :before + :count, :before, :began, :source, :offset, CASE WHEN :before > 0 THEN 1 ELSE :besides END) "
    "ON CONFLICT (id) DO UPDATE SET "
    "last_seq = CASE WHEN sessions.last_seq < :before THEN :before ELSE sessions.last_seq END + :count, "
    "compacted_seq = CASE WHEN sessions.last_seq = 0 THEN :before ELSE sessions.compacted_seq END, "
    "changed_at = CASE WHEN sessions.changed_at > :at THEN sessions.changed_at ELSE :at END, "
    "source = coalesce(excluded.source, sessions.source), "
    "source_offset = CASE WHEN excluded.source IS NULL OR (sessions.source = excluded.source "
    "AND sessions.source_offset > excluded.source_offset) THEN sessions.source_offset "
    "ELSE excluded.source_offset END, "
    "spent_besides = CASE WHEN sessions.last_seq < :before OR :besides = 1 THEN 1 ELSE sessions.spent_besides END "
    "RETURNING number, last_seq"
)


class NewEvent(NamedTuple):
    """Event to append, as it is stored."""

    at: int
    kind: str
    body: str
    source: Source | None = None
    number: int = 0
    """Number that its writer counted; 0 if it did not count."""
    spends_besides: bool = False
    """Whether the session may have spent more than its tasks say."""

    @classmethod
    def of(cls, event: Event, number: int = 0) -> NewEvent:
        """Encode an event now: the caller may change the objects that it refers to."""
        at, besides = event.at or datetime.now(UTC), _spends_besides(event)
        return cls(microseconds(at), event.event_type(), encodable(encode(event)), event.source, number, besides)

    def redacted(self) -> NewEvent:
        """Return the event without secrets, in a body that is still JSON. It takes longer than the append itself."""
        # Most events have no secret.
        if redact(self.body) == self.body:
            return self
        event = decode(self.kind, self.body)
        exact: dict[str, Any] = {name: without_secrets(getattr(event, name)) for name in event.exact}
        body = encode(event.changed(**exact)) if exact else self.body
        return self._replace(body=json.dumps(redact_value(json.loads(body))))

    def without_diff(self) -> NewEvent:
        return self._replace(body=json.dumps({**json.loads(self.body), "diff": ""}))


class StoredEvents(NamedTuple):
    """Events of a session, oldest first, the cursor behind the last one, and when something last happened in it."""

    events: tuple[Event, ...] = ()
    cursor: int = 0
    changed_at: datetime | None = None
    source: Source | None = None
    """Newest line of a supervised agent in the log."""

    def after(self, cursor: int) -> StoredEvents:
        """Return those that a reader with this cursor has yet to see."""
        seen = cursor - (self.cursor - len(self.events))
        return self._replace(events=self.events[max(0, seen) :])


class LogHead(NamedTuple):
    """Cursor after the last event of a session, and the time of that event."""

    cursor: int
    changed_at: datetime


def append(connection: StoreConnection, events: Mapping[str, Sequence[NewEvent]]) -> None:
    """Append events to the logs of sessions, by session id, and update the owners of these sessions.

    A log is numbered on as its writer counts if it has fewer events: the store was replaced, or events could not be stored.
    """
    rows: list[object] = []
    for session_id, new in events.items():
        source = _newest_source(new)
        active = max((event.at for event in new if event.kind != _PROCESS), default=0)
        number, last = connection.execute(
            _APPEND,
            {
                "id": session_id,
                "count": len(new),
                "before": max(0, new[-1].number - len(new)),
                "began": active or new[-1].at,
                "at": active,
                "source": None if source is None else source.process,
                "offset": 0 if source is None else source.offset,
                "besides": int(any(event.spends_besides for event in new)),
            },
        ).fetchone()
        diffs = [place for place, event in enumerate(new) if event.kind == _DIFF]
        if diffs:
            _forget_diff(connection, number)
        if owners := [event.body for event in new if event.kind == _OWNER]:
            owner = json.loads(owners[-1]).get("owner")
            values = None if owner is None else json.dumps(owner), number
            connection.execute("UPDATE sessions SET client = ? WHERE number = ?", values)
        for place, event in enumerate(new):
            kept = event if place not in diffs[:-1] else event.without_diff()
            # The statement returns the number of the last event, so count back from it.
            rows += (number, last - len(new) + place + 1, kept.at, kept.kind, kept.body)
    width = 5
    for start in range(0, len(rows), width * _ROWS_AT_ONCE):
        part = rows[start : start + width * _ROWS_AT_ONCE]
        places = ", ".join(["(?, ?, ?, ?, ?)"] * (len(part) // width))
        connection.execute(f"INSERT INTO events (session, seq, at, kind, body) VALUES {places}", part)  # noqa: S608


def _spends_besides(event: Event) -> bool:
    """Return whether an event is of a sub-agent, of turns of another program, or of a turn with a reviewer of its own."""
    is_others = isinstance(event, TurnRequested) and event.kind == "other"
    return is_others or event.agent_id is not None or isinstance(event, HistoryImported)


def _forget_diff(connection: StoreConnection, session: int) -> None:
    """Empty the newest diff of a session, which a later one replaces."""
    sql = "SELECT number, body FROM events WHERE session = ? AND kind = ? ORDER BY seq DESC LIMIT 1"
    row = connection.execute(sql, (session, _DIFF)).fetchone()
    if row is not None:
        body = json.dumps({**json.loads(row["body"]), "diff": ""})
        connection.execute("UPDATE events SET body = ? WHERE number = ?", (body, row["number"]))


def _newest_source(events: Sequence[NewEvent]) -> Source | None:
    """Return the last line that these come from. A question is logged after the events of later lines."""
    sources = [event.source for event in events if event.source is not None]
    return max((one for one in sources if one.process == sources[-1].process), default=None)


def read(connection: StoreConnection, session_id: str, since: int = 0, most_bytes: float = math.inf) -> StoredEvents:
    """Return the events of a session after a cursor, the first ones only if all have more bytes than `most_bytes`.

    A session that the log does not know has none.
    """
    found = connection.execute(
        "SELECT number, last_seq, changed_at, source, source_offset FROM sessions WHERE id = ? AND last_seq > 0",
        (encodable(session_id),),
    ).fetchone()
    if found is None:
        return StoredEvents()
    rows = connection.execute(
        "SELECT seq, at, kind, body FROM events WHERE session = ? AND seq > ? ORDER BY seq", (found["number"], since)
    )
    events: list[Event] = []
    cursor, left = found["last_seq"], most_bytes
    for row in rows:
        events.append(decode(row["kind"], row["body"]).with_time(from_microseconds(row["at"])))
        # After the event was added: one that is larger than the limit must not stop its readers.
        left -= len(row["body"])
        if left <= 0:
            cursor = row["seq"]
            break
        # Another machine may have appended since the first statement.
        cursor = max(cursor, row["seq"])
    source = None if found["source"] is None else Source(found["source"], found["source_offset"])
    return StoredEvents(tuple(events), cursor, from_microseconds(found["changed_at"]), source)


def heads(connection: StoreConnection) -> dict[str, LogHead]:
    """Return the ends of all logs that have events, by session id."""
    rows = connection.execute("SELECT id, last_seq, changed_at FROM sessions WHERE last_seq > compacted_seq")
    return {row["id"]: LogHead(row["last_seq"], from_microseconds(row["changed_at"])) for row in rows}


def only_in_tasks(
    connection: StoreConnection, session_id: str | None = None, since: datetime | None = None
) -> dict[str, datetime]:
    """Return the sessions whose tasks say all that was spent in them, and when something last happened in each.

    Only this session, or those in which something happened since then.
    """
    is_chosen = "changed_at >= :since" if session_id is None else "id = :id"
    rows = connection.execute(
        f"SELECT id, changed_at FROM sessions WHERE {is_chosen} AND spent_besides = 0 AND last_seq > 0 AND NOT EXISTS ("  # noqa: S608
        "SELECT 1 FROM tasks WHERE session_id = sessions.id AND usage IS NULL AND turn_id IS NOT NULL)",
        {"since": 0 if since is None else microseconds(since), "id": encodable(session_id or "")},
    )
    return {row["id"]: from_microseconds(row["changed_at"]) for row in rows}


class LogReader:
    """Reader of the logs of all sessions, with a cursor behind the events that it has seen.

    It returns which sessions have new events of some kinds. Wait for `Database.next_commit` between two reads.
    """

    def __init__(self, database: Database, *kinds: type[Event]) -> None:
        self._database = database
        self._kinds: Collection[str] = tuple(kind.event_type() for kind in kinds)
        self._cursor: int | None = None

    def read(self) -> dict[str, set[str]] | None:
        """Return the new kinds of events by session id; None at the first read, which only sets the cursor. Blocks.

        Raises:
            RegistryUnavailable: The store cannot be read.
        """
        self._cursor, found = self._database.read(self._after(self._cursor))
        return found

    def _after(self, cursor: int | None) -> Callable[[StoreConnection], tuple[int, dict[str, set[str]] | None]]:
        sql = (
            "SELECT DISTINCT sessions.id, events.kind FROM events JOIN sessions ON sessions.number = events.session "  # noqa: S608
            f"WHERE events.number > ? AND events.number <= ? AND {is_in('events.kind', self._kinds)}"
        )

        def work(connection: StoreConnection) -> tuple[int, dict[str, set[str]] | None]:
            newest = int(connection.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()[0])
            if cursor is None:
                return newest, None
            found: dict[str, set[str]] = {}
            for session_id, kind in connection.execute(sql, (cursor, newest, *self._kinds)) if newest > cursor else ():
                found.setdefault(session_id, set()).add(kind)
            return newest, found

        return work
