"""Events as JSON text and back: nothing is lost, whatever a later version has written."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helmsman.base.structs import Value
from helmsman.model import events
from helmsman.model.codec import decode, encode
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    Event,
    Failure,
    Item,
    ItemEnded,
    SessionFact,
    TurnEnded,
    Unknown,
    UnknownItem,
)

KINDS = sorted({*Event.__subclasses__(), *SessionFact.__subclasses__()} - {SessionFact}, key=lambda kind: kind.__name__)
words = st.text(max_size=12) | st.sampled_from(["\ud800", "\0", "😀", "\u2028", '"', "\\"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: words,
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Path: st.sampled_from([Path("/"), Path("/a b/ü"), Path("relative")]),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Any: json_values,
    type(None): st.none(),
}


@cache  # a value that holds others of its kind has one strategy
def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type."""
    origin, inside = typing.get_origin(hint), get_args(hint)
    if origin is Annotated:
        return of_type(inside[0])
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return st.one_of(*map(of_type, inside))
    if origin is Literal:
        return st.sampled_from(inside)
    if origin is tuple and inside[-1] is not ...:
        return st.tuples(*map(of_type, inside))
    if origin is tuple:
        return st.lists(of_type(inside[0]), max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(words, of_type(inside[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Value):
        return st.deferred(
            lambda: st.builds(hint, **{one.name: of_type(one.type) for one in msgspec.structs.fields(hint)})
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return st.builds(hint, **{name: of_type(kind) for name, kind in typing.get_type_hints(hint).items()})
    return PLAIN[hint]


def test_every_event_and_item_is_known_to_the_codec() -> None:
    kinds = [one for one in vars(events).values() if isinstance(one, type)]
    assert {one for one in kinds if issubclass(one, Event)} == {Event, SessionFact, *KINDS}
    assert {one for one in kinds if issubclass(one, events.BaseItem)} == {events.BaseItem, *get_args(Item)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.event_type())
@settings(max_examples=20)
@given(data=st.data())
def test_an_event_comes_back_as_it_was(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(of_type(kind))
    text = encode(event)
    assert json.loads(text)["type"] == kind.event_type()
    restored = decode(kind.event_type(), text)
    assert restored == event
    assert type(restored) is kind
    assert encode(restored) == text


@pytest.mark.parametrize("kind", get_args(Item), ids=lambda kind: kind.type)
@settings(max_examples=20)
@given(data=st.data())
def test_an_item_comes_back_as_it_was(kind: type[Item], data: st.DataObject) -> None:
    event = ItemEnded(session_id="s", item=data.draw(of_type(kind)))
    assert decode("item_ended", encode(event)) == event


def test_the_agents_own_message_is_not_encoded() -> None:
    event = TurnEnded(session_id="s", outcome="completed")
    assert encode(event.with_raw({"secret": 1})) == encode(TurnEnded(session_id="s", outcome="completed"))
    assert event.changed(session_id="t").raw == {"secret": 1}


def test_the_text_has_a_type_camel_case_names_and_no_defaults() -> None:
    event = ItemEnded(session_id="s", item=CommandExecution(id="c", exit_code=1))
    assert encode(event) == (
        '{"type":"item_ended","sessionId":"s","item":{"type":"command_execution","id":"c","exitCode":1}}'
    )


def test_an_event_of_an_unknown_kind_is_kept() -> None:
    text = '{"type": "session_painted", "sessionId": "s", "turnId": "t", "colour": {"name": "blue"}}'
    event = decode("session_painted", text)
    assert event == Unknown(session_id="s", turn_id="t", name="session_painted", payload=json.loads(text))
    assert encode(event) == text


def test_an_item_of_an_unknown_type_is_kept_in_its_event() -> None:
    item = {"type": "hologram", "id": "h1", "depth": 3}
    text = json.dumps({"type": "item_ended", "sessionId": "s", "item": item})
    event = decode("item_ended", text)
    assert event == ItemEnded(session_id="s", item=UnknownItem(id="h1", name="hologram", payload=item))
    assert encode(event) == text


def test_fields_that_are_not_known_come_back() -> None:
    item = {"type": "agent_message", "id": "m", "text": "hi", "mood": "good"}
    text = json.dumps({"type": "item_ended", "sessionId": "s", "item": item, "weight": 2})
    event = decode("item_ended", text)
    assert event == ItemEnded(session_id="s", item=AgentMessage(id="m", text="hi"))
    assert encode(event) == text
    assert encode(event.changed(session_id="t")) == encode(
        ItemEnded(session_id="t", item=AgentMessage(id="m", text="hi"))
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"turn_ended","sessionId":"s","outcome":"postponed"}',
        '{"type":"turn_ended","sessionId":"s"}',
        '{"type":"turn_ended","sessionId":1,"outcome":"completed"}',
        '{"type":"turn_started","sessionId":"s"}',
        "[1]",
        '{"type":"turn_en',
        "[" * 100_000,
        "",
    ],
)
def test_invalid_records_are_kept(text: str) -> None:
    event = decode("turn_ended", text)
    assert isinstance(event, Unknown)
    assert event.name == "turn_ended"
    assert encode(event) == text


def test_an_agent_cannot_write_an_event_of_ours() -> None:
    """What an agent says under the name of one of our events stays its own."""
    forged = {"type": "turn_ended", "sessionId": "other", "outcome": "completed"}
    event = Unknown(session_id="s", name="turn_ended", payload=forged)
    assert json.loads(encode(event)) == {"type": "unknown", "sessionId": "s", "name": "turn_ended", "payload": forged}
    assert decode("unknown", encode(event)) == event


def test_times_keep_their_zone() -> None:
    failure = Failure(code="x", message="no", at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    event = TurnEnded(session_id="s", outcome="failed", failure=failure)
    assert decode("turn_ended", encode(event)) == event
