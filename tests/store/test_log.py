"""The log of a session: numbered, in order, whole or not at all, and read from a cursor."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helmsman.errors import RegistryUnavailable
from helmsman.model.events import (
    AgentMessage,
    DiffUpdated,
    Event,
    ItemEnded,
    Source,
    TurnEnded,
    TurnRequested,
    Unknown,
)
from helmsman.store.connection import StoreConnection
from helmsman.store.database import Fence
from helmsman.store.log import NewEvent, StoredEvents, append, read
from helmsman.store.sqlite import SqliteDatabase

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    with closing(SqliteDatabase(path)) as database:
        yield database


def said(text: str, session: str = "s-1") -> Event:
    return ItemEnded(session_id=session, turn_id="t-1", item=AgentMessage(id=text, text=text))


def write(database: SqliteDatabase, *events: Event) -> None:
    by_session: dict[str, list[NewEvent]] = {}
    for event in events:
        by_session.setdefault(event.session_id, []).append(NewEvent.of(event.with_time(NOW)))
    database.write(lambda connection: append(connection, by_session))


def stored(database: SqliteDatabase, session: str = "s-1", since: int = 0) -> StoredEvents:
    return database.read(lambda connection: read(connection, session, since))


def test_events_are_read_as_they_were_appended_each_session_numbered_by_itself(database: SqliteDatabase) -> None:
    write(database, TurnRequested(session_id="s-1", text="go"), said("a"), said("x", "s-2"))
    write(database, said("b"))
    assert stored(database) == ((TurnRequested(session_id="s-1", text="go"), said("a"), said("b")), 3, NOW, None)
    assert stored(database, "s-2") == ((said("x", "s-2"),), 1, NOW, None)
    assert stored(database, "s-3") == StoredEvents()


def test_a_reader_continues_from_its_cursor(database: SqliteDatabase) -> None:
    write(database, *map(said, "abc"))
    assert stored(database, since=2).events == (said("c"),)
    assert stored(database, since=3) == ((), 3, NOW, None)
    assert stored(database).after(1).events == (said("b"), said("c"))
    assert stored(database, since=2).after(0).events == (said("c"),), "what was not read is not there to be seen"


def test_the_newest_line_of_the_agent_is_committed_with_the_events(database: SqliteDatabase) -> None:
    def line(text: str, process: str, offset: int) -> Event:
        return said(text).with_source(Source(process, offset))

    write(database, said("a"))
    assert stored(database).source is None
    write(database, line("b", "first", 10), line("c", "first", 30), line("late", "first", 20))
    write(database, line("later still", "first", 20), said("without a line"))
    assert stored(database).source == ("first", 30)
    write(database, line("d", "second", 5))
    assert stored(database).source == ("second", 5), "another process counts from the beginning"


def test_many_events_are_one_append(database: SqliteDatabase) -> None:
    write(database, *(said(str(number)) for number in range(1001)))
    assert [event.item.id for event in stored(database).events if isinstance(event, ItemEnded)] == [
        str(number) for number in range(1001)
    ]


def test_only_the_newest_diff_of_a_session_is_kept_and_all_keep_their_numbers(database: SqliteDatabase) -> None:
    diffs = [DiffUpdated(session_id="s-1", turn_id="t-1", diff=text) for text in ("one", "two", "three")]
    write(database, diffs[0], diffs[1], said("a"))
    write(database, diffs[2])
    kept = [event.diff for event in stored(database).events if isinstance(event, DiffUpdated)]
    assert (kept, stored(database).cursor) == (["", "", "three"], 4)


def test_unknown_fields_of_later_versions_are_kept(database: SqliteDatabase) -> None:
    new = NewEvent(1, "mood_changed", '{"type": "mood_changed", "sessionId": "s-1", "mood": "good"}')
    database.write(lambda connection: append(connection, {"s-1": [new]}))
    (event,) = stored(database).events
    assert isinstance(event, Unknown)
    assert (event.name, event.payload["mood"]) == ("mood_changed", "good")


def test_a_failed_transaction_appends_nothing(database: SqliteDatabase) -> None:
    write(database, said("a"))

    def fail(connection: StoreConnection) -> None:
        append(connection, {"s-1": [NewEvent.of(said("b"))]})
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(RegistryUnavailable):
        database.write(fail)
    write(database, said("c"))
    assert stored(database) == ((said("a"), said("c")), 2, NOW, None)


def test_a_hub_that_was_replaced_appends_nothing(path: Path) -> None:
    refused: list[int] = []
    with closing(SqliteDatabase(path, Fence(1, refused.append))) as old:
        write(old, said("a"))
        with closing(SqliteDatabase(path, Fence(2, refused.append))) as new:
            write(new, said("b"))
            with pytest.raises(RegistryUnavailable, match="later hub"):
                write(old, said("c"))
            assert stored(new).events == (said("a"), said("b"))
    assert refused == [2]


def test_half_of_a_surrogate_pair_does_not_stop_the_log(database: SqliteDatabase) -> None:
    write(database, said("\ud83d"), TurnEnded(session_id="s-1", turn_id="t-1", outcome="completed"))
    assert stored(database).cursor == 2
    assert isinstance(stored(database).events[1], TurnEnded)
