"""A session as another process holds it is what the original is, whenever the copy was made."""

from __future__ import annotations

import json
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.values import decoded, encoded
from helmsman.model.events import Event, ItemDelta, ItemEnded, TurnEnded
from helmsman.model.options import SessionOptions
from helmsman.sessions.copies import SessionCopy, copy_of, take_over
from helmsman.sessions.feed import Feed
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState
from tests.sessions.test_state import EVENTS, S, asked, delta, ended, item_ended, message, requested, started


def new_session() -> Session:
    return Session(SessionState(S), Feed(100), cast("Any", None), SessionOptions(), [])


def sent(copy: SessionCopy) -> SessionCopy:
    """As it arrives."""
    arrived: SessionCopy = decoded(json.loads(json.dumps(encoded(copy))))
    return arrived


def seen(session: Session) -> object:
    state = session.state
    return (
        *(state.status, state.items_and_decisions, state.questions, state.result, state.error, state.usage),
        *(state.turn_count, state.turn_id, state.prompt, state.note, state.diff, state.timed_out, state.model),
        *(session.turn_cursor, session.feed.cursor),
    )


def apply(session: Session, events: list[Event]) -> None:
    for event in events:
        session.apply(event)


@given(st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=20))
def test_a_copy_and_the_events_after_it_are_the_original(before: list[Event], after: list[Event]) -> None:
    original, copy = new_session(), new_session()
    apply(original, before)
    assert take_over(copy, sent(copy_of(original)), 0) == 0
    assert seen(copy) == seen(original)
    apply(original, after)
    apply(copy, after)
    assert seen(copy) == seen(original)


@given(st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=20))
def test_what_was_missed_is_made_up_for(before: list[Event], missed: list[Event], after: list[Event]) -> None:
    original, copy = new_session(), new_session()
    apply(original, before)
    take_over(copy, sent(copy_of(original)), 0)
    cursor = original.feed.cursor
    with copy.feed.read() as reader:
        apply(original, missed)
        take_over(copy, sent(copy_of(original, since=cursor)), 0)
        assert seen(copy) == seen(original)
        told = [event for event in missed if not isinstance(event, ItemDelta)]
        assert reader.pending() == bool(told)
    apply(original, after)
    apply(copy, after)
    assert seen(copy) == seen(original)


@pytest.mark.anyio
async def test_who_joins_in_the_middle_of_a_message_is_given_what_there_is_of_it_once() -> None:
    original, copy = new_session(), new_session()
    apply(original, [requested(), started(), delta("m", "one "), delta("m", "two ")])
    take_over(copy, sent(copy_of(original)), 0)
    for session in (original, copy):
        events = session.events(since=session.turn_cursor)
        with anyio.fail_after(10):
            told = [await anext(events) for _ in range(3)]
            apply(session, [delta("m", "three"), ended()])
            told += [event async for event in events]
        assert [event.text for event in told if isinstance(event, ItemDelta)] == ["one two ", "three"]


def test_a_reader_is_told_how_many_events_fell_off_meanwhile() -> None:
    original, copy = Session(SessionState(S), Feed(3), cast("Any", None), SessionOptions(), []), new_session()
    apply(original, [requested(), started()])
    take_over(copy, sent(copy_of(original)), 0)
    with copy.feed.read() as reader:
        apply(original, [item_ended(message(str(number), f"m{number}")) for number in range(10)])
        take_over(copy, sent(copy_of(original, since=2)), 0)
        assert reader.missed == 7
    assert copy.feed.cursor == original.feed.cursor


@given(st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=20))
def test_a_copy_of_another_original_ends_up_the_same(before: list[Event], meanwhile: list[Event]) -> None:
    """The next hub numbers its events anew, and its session has none of the earlier ones."""
    first, second, copy = new_session(), new_session(), new_session()
    apply(first, before)
    take_over(copy, sent(copy_of(first)), 0)
    second.restore(first.state.snapshot())
    apply(second, meanwhile)
    with copy.feed.read() as reader:
        was_running = copy.state.is_running
        take_over(copy, sent(copy_of(second)), None)
        told = []
        while reader.pending():
            told.append(reader._queue.popleft())
    assert copy.state.snapshot() == second.state.snapshot()
    if was_running and not second.state.is_running:
        assert any(isinstance(event, TurnEnded) for event in told)


def test_a_question_and_an_end_that_came_meanwhile_are_told() -> None:
    first, second, copy = new_session(), new_session(), new_session()
    apply(first, [requested(), started(), delta("m", "so far")])
    take_over(copy, sent(copy_of(first)), 0)
    apply(second, [requested(), started(), asked("q1")])
    with copy.feed.read() as reader:
        offset = take_over(copy, sent(copy_of(second)), None)
        assert list(copy.state.questions) == ["q1"]
        apply(second, [item_ended(message("done")), ended()])
        take_over(copy, sent(copy_of(second, since=second.feed.cursor - 2)), offset)
        kinds = []
        while reader.pending():
            kinds.append(type(reader._queue.popleft()).__name__)
    assert kinds == ["QuestionAsked", "ItemEnded", "TurnEnded"]
    assert (copy.status, copy.result) == ("done", "done")


def test_a_message_that_another_original_knows_by_another_id_is_not_told_twice() -> None:
    first, second, copy = new_session(), new_session(), new_session()
    apply(first, [requested(), started(), item_ended(message("Yes.", "msg_1")), item_ended(message("Go.", "msg_2"))])
    take_over(copy, sent(copy_of(first)), 0)
    apply(second, [requested(), started()])
    apply(
        second,
        [item_ended(message(text, item_id)) for text, item_id in (("Yes.", "0"), ("Go.", "msg_2"), ("Go.", "2"))],
    )
    with copy.feed.read() as reader:
        take_over(copy, sent(copy_of(second)), None)
        told = []
        while reader.pending():
            told.append(reader._queue.popleft())
    assert [event.item.id for event in told if isinstance(event, ItemEnded)] == ["2"]
    assert copy.state.snapshot() == second.state.snapshot()
