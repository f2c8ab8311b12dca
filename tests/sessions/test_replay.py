"""A session that is loaded from its log: the same state and numbers, and nothing that its agent repeats counts twice."""

from __future__ import annotations

from typing import Any

import pytest

from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    Event,
    ItemEnded,
    ItemStarted,
    QuestionAsked,
    QuestionClosed,
    Source,
    TurnEnded,
    TurnRequested,
    TurnStarted,
    Usage,
    UsageReported,
)
from helmsman.sessions.feed import Feed
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState
from tests.sessions.test_state import asked

IDS: Any = {"session_id": "s-1", "turn_id": "t-1"}
TURN: tuple[Event, ...] = (
    TurnRequested(session_id="s-1", text="go"),
    TurnStarted(**IDS),
    ItemStarted(**IDS, item=CommandExecution(id="c", command="ls", status="started")),
    ItemEnded(**IDS, item=CommandExecution(id="c", command="ls", exit_code=0)),
    ItemEnded(**IDS, item=AgentMessage(id="m", text="half way")),
    UsageReported(**IDS, last=Usage(10, 0, 1, 0)),
)


def session() -> Session:
    verbs: Any = None
    return Session(SessionState("s-1"), Feed(500), verbs)


def test_a_loaded_session_is_as_it_was_and_continues_counting() -> None:
    before, after = session(), session()
    for event in TURN:
        before.apply(event)
    after.replay(TURN, len(TURN))
    assert (after.status, after.items, after.usage) == (before.status, before.items, before.usage)
    assert (after.feed.cursor, after.turn_cursor) == (before.feed.cursor, before.turn_cursor)
    assert after.feed.since(3).events == TURN[3:]


def test_repeated_events_of_the_running_turn_are_recognised_once_each() -> None:
    loaded = session()
    loaded.replay(TURN, len(TURN))
    for event in TURN[1:]:
        assert loaded.is_repeated(event)
    assert not loaded.is_repeated(TURN[-1]), "the next one is new, though it says the same"
    assert not loaded.is_repeated(ItemEnded(**IDS, item=AgentMessage(id="m2", text="all of the way")))


def test_a_message_is_recognised_under_another_id() -> None:
    loaded = session()
    loaded.replay(TURN, len(TURN))
    assert loaded.is_repeated(ItemEnded(**IDS, item=AgentMessage(id="item-3", text="half way")))


def test_nothing_of_an_earlier_turn_is_taken_for_a_repetition() -> None:
    loaded = session()
    loaded.replay((*TURN, TurnEnded(**IDS, outcome="completed")), len(TURN) + 1)
    loaded.apply(TurnRequested(session_id="s-1", text="again"))
    assert not loaded.is_repeated(TURN[-1])


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_open_question_is_left_for_the_agent_to_ask_again(is_closed: bool) -> None:
    question = asked("q-1").question
    events: tuple[Event, ...] = (*TURN, QuestionAsked(**IDS, question=question))
    if is_closed:
        events += (QuestionClosed(**IDS, question_id="q-1", answer="approve", by="person"),)
    loaded = session()
    loaded.replay(events, len(events))
    assert not loaded.questions
    assert len(loaded.state.decisions("t-1")) == is_closed
    assert not loaded.is_repeated(QuestionAsked(**IDS, question=question))


def test_the_lines_of_a_supervised_agent_that_the_log_has_are_left_out() -> None:
    def line(event: Event, process: str, offset: int) -> Event:
        return event.changed().with_source(Source(process, offset))

    loaded = session()
    loaded.replay(TURN, len(TURN), Source("p", 20))
    assert loaded.is_repeated(line(ItemEnded(**IDS, item=AgentMessage(id="x", text="in other words")), "p", 20))
    assert not loaded.is_repeated(line(TURN[-1], "p", 21)), "the log has not read so far, whatever it says"
    assert not loaded.is_repeated(line(TURN[-1], "q", 20)), "another process"


def test_the_end_of_a_turn_that_still_runs_is_not_left_out_though_later_lines_were_logged() -> None:
    loaded, end = session(), TurnEnded(**IDS, outcome="completed").with_source(Source("p", 10))
    loaded.replay(TURN, len(TURN), Source("p", 20))
    assert not loaded.is_repeated(end)
    loaded.apply(end)
    assert loaded.is_repeated(end)
