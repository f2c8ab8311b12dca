"""Tests that text chunks that arrive together are joined, and nothing else changes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.normalise import join_pieces

SAID = "item/agentMessage/delta"
PRINTED = "item/commandExecution/outputDelta"


def piece(text: str, *, thread: str = "T1", item: str = "m1", method: str = SAID) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": thread, "turnId": "U1", "itemId": item, "delta": text}}


def other(thread: str = "T1") -> dict[str, Any]:
    return {"method": "item/started", "params": {"threadId": thread, "item": {}}}


def test_pieces_of_one_item_become_one() -> None:
    assert join_pieces([piece("a"), piece("b"), piece("c")]) == [piece("abc")]


def test_pieces_of_other_items_and_kinds_stay_apart() -> None:
    messages = [piece("a"), piece("b", item="m2"), piece("c", item="m2", method=PRINTED)]
    assert join_pieces(messages) == messages


def test_events_between_two_pieces_keep_them_apart() -> None:
    messages = [piece("a"), other(), piece("b")]
    assert join_pieces(messages) == messages


def test_other_sessions_do_not_keep_the_pieces_of_one_apart() -> None:
    messages = [piece("a"), piece("x", thread="T2"), other("T3"), piece("b"), piece("y", thread="T2")]
    assert join_pieces(messages) == [piece("ab"), piece("xy", thread="T2"), other("T3")]


def test_a_message_about_no_session_keeps_all_apart() -> None:
    answer = {"id": 1, "result": {}}
    assert join_pieces([piece("a"), answer, piece("b")]) == [piece("a"), answer, piece("b")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": json_values,
                "method": st.sampled_from([SAID, PRINTED]) | json_values,
                "params": st.fixed_dictionaries(
                    {}, optional={"threadId": json_values, "itemId": json_values, "delta": json_values}
                )
                | json_values,
            },
        ),
        max_size=8,
    )
)
def test_no_message_whatever_its_shape_raises_or_gets_lost(messages: list[dict[str, Any]]) -> None:
    pieces = sum(
        isinstance(message.get("method"), str) and message["method"] in (SAID, PRINTED) for message in messages
    )
    assert len(messages) - pieces <= len(join_pieces(messages)) <= len(messages)
