"""Past events by cursor, live events by reader, both within bounds."""

from __future__ import annotations

from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.model.events import DiffUpdated, Event, ItemDelta, Notice
from helmsman.sessions.feed import Feed, Page, Reader
from helmsman.sessions.session import Session, Verbs, first_change
from helmsman.sessions.state import SessionState

pytestmark = pytest.mark.anyio


def note(text: str) -> Notice:
    return Notice(session_id="s", kind="warning", message=text)


def delta(text: str, item: str = "m") -> ItemDelta:
    return ItemDelta(session_id="s", item_id=item, item_type="agent_message", text=text)


def texts(events: tuple[Event, ...] | list[Event]) -> list[str]:
    return [event.message if isinstance(event, Notice) else getattr(event, "text", "") for event in events]


def test_a_reader_gets_what_came_since_its_cursor() -> None:
    feed = Feed(10)
    feed.publish(note("1"))
    page = feed.since(0)
    feed.publish(note("2"))
    assert texts(page.events) == ["1"]
    assert texts(feed.since(page.cursor).events) == ["2"]
    assert feed.since(feed.cursor).events == ()


def test_a_reader_that_fell_behind_learns_how_much_it_missed() -> None:
    feed = Feed(2)
    for number in range(5):
        feed.publish(note(str(number)))
    page = feed.since(1)
    assert (texts(page.events), page.missed, page.cursor) == (["3", "4"], 2, 5)


def test_a_cursor_from_nowhere_is_harmless() -> None:
    feed = Feed(3)
    feed.publish(note("1"))
    assert (feed.since(-5).events, feed.since(-5).missed) == ((note("1"),), 0)
    assert feed.since(99).events == ()


def test_deltas_are_not_stored() -> None:
    feed = Feed(3)
    feed.publish(delta("a"))
    assert feed.cursor == 0


async def following(reader: Reader) -> Event:
    event = await reader.next()
    assert event is not None
    return event


async def test_a_live_reader_gets_deltas_and_runs_of_them_joined() -> None:
    feed = Feed(10)
    with feed.read() as reader:
        for event in (delta("a"), delta("b"), delta("c", "other"), note("n"), delta("d")):
            feed.publish(event)
        got = [await following(reader) for _ in range(4)]
    assert texts(got) == ["ab", "c", "n", "d"]


async def test_a_live_reader_may_begin_in_the_past() -> None:
    feed = Feed(10)
    feed.publish(note("1"))
    with feed.read(since=0) as reader:
        feed.publish(note("2"))
        assert texts([await following(reader), await following(reader)]) == ["1", "2"]


async def test_a_reader_that_does_not_read_loses_the_oldest_and_knows_it() -> None:
    feed = Feed(2)
    with feed.read() as reader:
        for number in range(5):
            feed.publish(note(str(number)))
        assert reader.missed == 3
        assert texts([await following(reader), await following(reader)]) == ["3", "4"]


async def test_a_reader_that_falls_behind_reads_the_log() -> None:
    log: list[Event] = []
    reads: list[int] = []

    async def read_log(cursor: int) -> Page:
        reads.append(cursor)
        page = Page(tuple(log[cursor:]), len(log), 0)
        if len(reads) == 1:
            publish(20, 30)  # more than the ring holds, while the log is read
        return page

    def publish(first: int, end: int) -> None:
        for number in range(first, end):
            log.append(note(str(number)))
            feed.publish(log[-1])

    feed = Feed(3, read_log)
    publish(0, 2)
    with feed.read() as reader:
        publish(2, 4)
        assert texts([await following(reader)]) == ["2"]
        publish(4, 20)
        assert texts([await following(reader) for _ in range(27)]) == [str(number) for number in range(3, 30)]
        publish(30, 31)
        assert texts([await following(reader)]) == ["30"]
        assert (reads, reader.missed, reader.pending()) == ([3, 20], 0, False)
    with feed.read(since=5) as late:
        assert texts([await following(late) for _ in range(26)]) == [str(number) for number in range(5, 31)]


async def test_a_waiter_wakes_with_the_next_event() -> None:
    feed = Feed(2)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.changed)
            await anyio.lowlevel.checkpoint()
            feed.publish(note("x"))


async def test_a_change_before_the_waiting_tasks_run_is_not_missed() -> None:
    sessions = [Session(SessionState(name), Feed(10), cast("Verbs", None)) for name in ("s", "t")]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(published, sessions[1].feed)  # runs before the tasks that `first_change` starts
        with anyio.fail_after(10):
            await first_change(sessions)


async def published(feed: Feed) -> None:
    feed.publish(note("1"))


async def test_an_ended_reader_is_forgotten() -> None:
    feed = Feed(2)
    with feed.read() as reader:
        pass
    feed.publish(note("x"))
    assert not reader.pending()


@given(st.integers(1, 5), st.lists(st.integers(0, 12), max_size=12), st.integers(0, 15))
def test_given_and_missed_events_add_up(size: int, numbers: list[int], cursor: int) -> None:
    feed = Feed(size)
    for number in numbers:
        feed.publish(note(str(number)))
    page = feed.since(cursor)
    assert len(page.events) + page.missed == max(0, len(numbers) - cursor)
    assert texts(page.events) == [str(number) for number in numbers][len(numbers) - len(page.events) :]


def test_a_few_large_events_push_out_as_much_as_many_small_ones() -> None:
    feed = Feed(500)
    for _ in range(10):
        feed.publish(DiffUpdated(session_id="s", diff="x" * 10_000_000))
    page = feed.since(0)
    assert (len(page.events), page.missed) == (3, 7)
    feed.publish(DiffUpdated(session_id="s", diff="x" * 100_000_000))
    assert len(feed.since(0).events) == 1, "the newest is kept whatever its size"


async def test_a_reader_that_does_not_read_300_mb_keeps_a_tenth_of_it_and_knows_it() -> None:
    feed = Feed(500)
    with feed.read() as reader:
        for _ in range(3000):
            feed.publish(delta("x" * 100_000))
        feed.publish(note("the end"))
        feed.close()
        got = [event async for event in reader]
    assert sum(map(len, texts(got))) < 35_000_000
    assert texts(got)[-1] == "the end"
    assert reader.missed > 0
