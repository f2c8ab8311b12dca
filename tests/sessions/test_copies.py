"""A session as another process holds it is what the original is, whenever the copy was made."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.structs import pack, unpack
from helmsman.model.events import Event, ItemDelta, ItemEnded
from helmsman.sessions.copies import SessionCopy, catch_up, copy_of
from helmsman.sessions.feed import Feed, Reader
from helmsman.sessions.session import Session, repeat_key
from helmsman.sessions.state import SessionState
from tests.sessions.test_state import EVENTS, S, asked, delta, ended, item_ended, message, requested, started


def new_session() -> Session:
    return Session(SessionState(S), Feed(100), cast("Any", None), [])


def sent(session: Session, since: int = 0) -> SessionCopy:
    """As it arrives."""
    copy = copy_of(session, session.feed.since(since).events)
    return unpack(json.loads(json.dumps(pack(copy))), SessionCopy)


def told(reader: Reader) -> list[Event]:
    events: list[Event] = []
    while reader.pending():
        events.append(reader._queue.popleft())
    return events


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
    catch_up(copy, sent(original))
    assert seen(copy) == seen(original)
    apply(original, after)
    apply(copy, after)
    assert seen(copy) == seen(original)


@given(st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=20))
def test_missed_events_are_caught_up(before: list[Event], missed: list[Event], after: list[Event]) -> None:
    original, copy = new_session(), new_session()
    apply(original, before)
    catch_up(copy, sent(original))
    cursor = original.feed.cursor
    with copy.feed.read() as reader:
        apply(original, missed)
        catch_up(copy, sent(original, cursor))
        assert seen(copy) == seen(original)
        assert told(reader) == [event for event in missed if not isinstance(event, ItemDelta)]
    apply(original, after)
    apply(copy, after)
    assert seen(copy) == seen(original)


@pytest.mark.anyio
async def test_a_reader_that_joins_during_a_message_gets_its_text_once() -> None:
    original, copy = new_session(), new_session()
    apply(original, [requested(), started(), delta("m", "one "), delta("m", "two ")])
    catch_up(copy, sent(original))
    for session in (original, copy):
        events = session.events(since=session.turn_cursor)
        with anyio.fail_after(10):
            heard = [await anext(events) for _ in range(3)]
            apply(session, [delta("m", "three"), ended()])
            heard += [event async for event in events]
        assert [event.text for event in heard if isinstance(event, ItemDelta)] == ["one two ", "three"]


def test_a_reader_learns_how_many_events_it_missed() -> None:
    original, copy = Session(SessionState(S), Feed(3), cast("Any", None), []), new_session()
    apply(original, [requested(), started()])
    catch_up(copy, sent(original))
    with copy.feed.read() as reader:
        apply(original, [item_ended(message(str(number), f"m{number}")) for number in range(10)])
        catch_up(copy, sent(original, 2))
        assert reader.missed == 7
    assert copy.feed.cursor == original.feed.cursor


@given(
    st.lists(EVENTS, max_size=20),
    st.lists(EVENTS, max_size=5),
    st.integers(0, 5),
    st.lists(EVENTS, max_size=20),
)
def test_the_next_hub_continues_from_the_committed_cursor(
    committed: list[Event], lost: list[Event], repeated: int, meanwhile: list[Event]
) -> None:
    """A killed hub may have sent events that it never committed. The agent repeats some of them to the next hub."""
    first, second, copy = new_session(), new_session(), new_session()
    apply(first, committed)
    apply(second, committed)
    cursor = first.feed.cursor
    apply(first, lost)
    catch_up(copy, sent(first))
    again = [event for event in lost[:repeated] if not isinstance(event, ItemDelta)]
    apply(second, [*again, *meanwhile])
    with copy.feed.read() as reader:
        catch_up(copy, sent(second, cursor))
        heard = told(reader)
    assert copy.state.snapshot() == second.state.snapshot()
    assert (copy.feed.cursor, copy.turn_cursor) == (second.feed.cursor, second.turn_cursor)
    sent_before = Counter(map(repeat_key, (event for event in lost if not isinstance(event, ItemDelta))))
    sent_now = Counter(map(repeat_key, second.feed.since(cursor).events))
    assert Counter(map(repeat_key, heard)) == sent_now - sent_before


def test_a_question_and_an_end_that_came_meanwhile_are_reported() -> None:
    first, second, copy = new_session(), new_session(), new_session()
    apply(first, [requested(), started(), delta("m", "so far")])
    catch_up(copy, sent(first))
    apply(second, [requested(), started(), asked("q1")])
    with copy.feed.read() as reader:
        catch_up(copy, sent(second, 2))
        assert list(copy.state.questions) == ["q1"]
        apply(second, [item_ended(message("done")), ended()])
        catch_up(copy, sent(second, 3))
        kinds = [type(event).__name__ for event in told(reader)]
    assert kinds == ["QuestionAsked", "ItemEnded", "TurnEnded"]
    assert (copy.status, copy.result) == ("done", "done")


def test_a_message_that_the_agent_repeats_with_another_id_is_reported_once() -> None:
    first, second, copy = new_session(), new_session(), new_session()
    apply(first, [requested(), started(), item_ended(message("Yes.", "msg_1")), item_ended(message("Go.", "msg_2"))])
    catch_up(copy, sent(first))
    apply(second, [requested(), started()])
    apply(
        second,
        [item_ended(message(text, item_id)) for text, item_id in (("Yes.", "0"), ("Go.", "msg_2"), ("Go.", "2"))],
    )
    with copy.feed.read() as reader:
        catch_up(copy, sent(second, 2))
        heard = told(reader)
    assert [event.item.id for event in heard if isinstance(event, ItemEnded)] == ["2"]
    assert copy.state.snapshot() == second.state.snapshot()
