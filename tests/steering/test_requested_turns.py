"""Sessions that an earlier hub left."""

from __future__ import annotations

from helmsman.model.events import Event, MessageQueued, TurnEnded, TurnRequested, TurnStarted
from helmsman.sessions.history import turns_of
from helmsman.sessions.state import SessionState
from helmsman.steering.turn_recovery import with_unsent_queued
from helmsman.store.log import StoredEvents

S = "session"
FIRST: tuple[Event, ...] = (
    TurnRequested(session_id=S, text="first", task_id="T-1"),
    TurnStarted(session_id=S, turn_id="1"),
    TurnEnded(session_id=S, turn_id="1", outcome="completed", final_message="done"),
)
NEXT = TurnRequested(session_id=S, text="next", task_id="T-2")


def fold(*events: Event) -> SessionState:
    state = SessionState(S)
    for event in events:
        state.apply(event)
    return state


def test_a_turn_that_was_requested_and_not_sent_is_a_queued_message_after_its_hub_was_killed() -> None:
    queued = MessageQueued(session_id=S, task_id="T-2", text="next")
    state = fold(*with_unsent_queued(StoredEvents((*FIRST, queued, NEXT), 5), {"T-2"}).events)
    assert (state.is_running, state.result, state.turn_count) == (False, "done", 1)
    assert [one.task_id for one in state.queue] == ["T-2"]


def test_a_turn_that_the_agent_may_have_received_stays_a_turn() -> None:
    requested = StoredEvents((*FIRST, NEXT), 4)
    assert with_unsent_queued(requested, set()) is requested
    started = StoredEvents((*requested.events, TurnStarted(session_id=S, turn_id="2")), 5)
    assert with_unsent_queued(started, {"T-2"}) is started


def test_a_turn_that_the_next_hub_requests_again_counts_once() -> None:
    events = (*FIRST, NEXT, NEXT, TurnStarted(session_id=S, turn_id="2"))
    ended = TurnEnded(session_id=S, turn_id="2", outcome="completed", final_message="also done")
    assert fold(*events, ended).turn_count == 2
    assert [turn.id for turn in turns_of(S, (*events, ended))] == ["1", "2"]
