"""Sub-agents of a turn as a tree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from helmsman.model.events import AgentState, CollabToolCall, Event, ItemEnded, ItemStarted, TurnEnded, TurnStarted
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState
from helmsman.shapes.sub_agents import sub_agents_of


def _call(caller: str | None, about: str, prompt: str | None = None, status: str = "running") -> Event:
    call = CollabToolCall(
        id=f"{caller}-{about}", tool="spawn_agent", prompt=prompt, agents=(AgentState(id=about, status=status),)
    )
    return ItemEnded(session_id="s", agent_id=caller, item=call)


def _tree(*events: Event) -> list[tuple[int, str, str]]:
    state = SessionState(session_id="s")
    for event in (TurnStarted(session_id="s", turn_id="t"), *events):
        state.apply(event)
    session = cast("Session", SimpleNamespace(items=state.items, state=state))
    return [(one.depth, one.name, one.status) for one in sub_agents_of(session)]


def test_each_stands_below_the_one_that_started_it() -> None:
    assert _tree(
        _call(None, "a", "Review"),
        _call(None, "b", "Test"),
        _call("a", "c", "Read the parser\nin full"),
        ItemStarted(
            session_id="s", agent_id="c", item=CollabToolCall(id="x", agents=(AgentState(id="d", status="started"),))
        ),
        TurnEnded(session_id="s", agent_id="c", outcome="completed"),
    ) == [(0, "Review", "running"), (1, "Read the parser", "done"), (2, "", "running"), (0, "Test", "running")]


@pytest.mark.parametrize("other", ["a", "b"])
def test_sub_agents_that_call_each_other_or_themselves_are_shown_once(other: str) -> None:
    shown = _tree(_call(None, "a", "Ask"), _call("a", "b", "Answer"), _call("b", "a"), _call(other, other))
    assert shown == [(0, "Ask", "running"), (1, "Answer", "running")]
    in_a_ring = _tree(_call("a", "b", "Answer"), _call("b", "a", "Ask"))
    assert in_a_ring == [(0, "Answer", "running"), (1, "Ask", "running")]


def test_those_of_an_earlier_turn_are_gone() -> None:
    again = TurnStarted(session_id="s", turn_id="u")
    assert (
        _tree(_call(None, "a"), _call("a", "b"), TurnEnded(session_id="s", outcome="completed", turn_id="t"), again)
        == []
    )
