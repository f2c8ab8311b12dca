"""Tests that no input makes the normaliser raise."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.normalise import (
    _HANDLERS,
    app_server_item,
    exec_item,
    from_app_server,
    from_exec,
    sub_agents,
)
from helmsman.model.change_diff import file_change_diff
from helmsman.model.codec import decode, encode
from helmsman.model.events import Event, FileChange, Item

GOLDEN = Path(__file__).parents[2] / "golden"


def _recorded(dialect: str) -> list[dict[str, Any]]:
    lines = {
        line for path in GOLDEN.glob(f"*/{dialect}-*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()
    }
    return [json.loads(line) for line in sorted(lines)]


NOTIFICATIONS = _recorded("app-server")
LINES = _recorded("exec")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
known_words = st.sampled_from(
    ["type", "id", "status", "failed", "inProgress", "fileChange", "changes", "kind", "update", "diff", "Moved to: x"]
)
json_values = st.recursive(
    scalars | known_words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | known_words, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def mutated(draw: st.DrawFn, messages: list[dict[str, Any]]) -> Any:
    """Return recorded messages with one value replaced, at any depth."""
    message = copy.deepcopy(draw(st.sampled_from(messages)))
    place: Any = message
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and draw(st.integers(0, 3)):
            place = inner
            continue
        place[key] = draw(json_values)
        return message


def _check(event: Event | None, again: Event | None) -> None:
    assert repr(event) == repr(again), "the same input gives the same event"
    if event is None:
        return
    assert isinstance(event, Event)
    assert isinstance(event.session_id, str)
    with pytest.raises(AttributeError):
        event.session_id = "other"  # type: ignore[misc]
    restored = decode(event.event_type(), encode(event))
    assert type(restored) is type(event)
    assert encode(restored) == encode(event)
    assert restored.stored is None, "every event validates"
    item = getattr(event, "item", None)
    if isinstance(item, Item):
        _check_item(item)


def _check_item(item: Item) -> None:
    assert isinstance(item.id, str)
    assert isinstance(item.summary(), str)
    assert all(isinstance(agent_id, str) for agent_id in sub_agents(item))
    if isinstance(item, FileChange):
        assert isinstance(file_change_diff(item.changes, "/repo"), str)


@given(method=st.sampled_from(sorted(_HANDLERS)) | json_values, params=json_values)
def test_no_notification_raises(method: Any, params: Any) -> None:
    _check(from_app_server(method, params), from_app_server(method, params))


@given(message=mutated(NOTIFICATIONS))
def test_no_damaged_notification_raises(message: dict[str, Any]) -> None:
    method, params = message.get("method"), message.get("params")
    _check(from_app_server(method, params), from_app_server(method, params))


@given(line=json_values | mutated(LINES))
def test_no_line_of_exec_raises(line: Any) -> None:
    events = from_exec(line, "s", "t")
    for event, again in zip(events, from_exec(line, "s", "t"), strict=True):
        _check(event, again)


@given(raw=json_values)
def test_no_item_raises(raw: Any) -> None:
    _check_item(app_server_item(raw))
    _check_item(exec_item(raw, stage="completed"))


def test_deep_nesting_does_not_raise() -> None:
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = {"item": [deep]}
    call = {"type": "mcpToolCall", "arguments": deep, "result": {"structuredContent": deep}}
    assert from_app_server("item/completed", {"item": call}) is not None
    assert from_app_server("no/such/method", deep) is not None
    assert from_exec({"type": "item.completed", "item": deep}, "s", "t") != ()
    while isinstance(deep, dict):  # Python would take itself apart recursively
        deep = deep.pop("item").pop()
