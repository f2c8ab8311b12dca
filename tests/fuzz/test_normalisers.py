"""Both normalisers on recorded transcripts that were damaged: total, pure, and in order.

`test_normalise_properties.py` throws single odd values at them. Here whole streams are cut, repeated and mixed,
and what comes out is folded into a session, as in real life.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.normalise import from_app_server, from_exec
from helmsman.model.events import AgentMessage, Event, ItemDelta, ItemEnded
from helmsman.sessions.state import SessionState
from tests.fuzz.effort import fuzzed

GOLDEN = Path(__file__).parent.parent / "golden"
ODD_VALUES = st.sampled_from([None, True, 0, -1, 1e300, "", "x", [], {}, [None], {"type": None}, "\ud800", "a\u0000b"])


def transcripts(pattern: str) -> list[list[Any]]:
    found = [
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(GOLDEN.glob(f"*/{pattern}.jsonl"))
    ]
    assert len(found) > 20
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything inside a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, child in children for found in [(*path, key), *places(child, (*path, key))]]


@st.composite
def damaged(draw: st.DrawFn, recorded: list[list[Any]]) -> list[Any]:
    """A transcript in which messages are missing, repeated or come from another one, and some hold odd values."""
    stream = list(draw(st.sampled_from(recorded)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(stream)))
        match draw(st.sampled_from(["cut", "repeat", "mix", "change"])):
            case "cut":
                del stream[at : at + draw(st.integers(1, 5))]
            case "repeat":
                stream[at:at] = stream[max(0, at - 3) : at]
            case "mix":
                stream[at:at] = draw(st.sampled_from(recorded))[:5]
            case _ if at < len(stream) and (inside := places(stream[at])):
                stream[at] = copy.deepcopy(stream[at])
                *way, last = draw(st.sampled_from(inside))
                owner = stream[at]
                for key in way:
                    owner = owner[key]
                owner[last] = draw(ODD_VALUES)
    return stream


def fold(events: list[Event]) -> None:
    state = SessionState("T1")
    for event in events:
        state.apply(event)
    assert state.status in ("active", "awaiting_approval", "done", "error", "interrupted")
    assert state.is_running == (state.status in ("active", "awaiting_approval"))


@fuzzed(250)
@given(damaged(transcripts("app-server-*")))
def test_any_app_server_stream_is_read_message_by_message_and_makes_a_legal_session(stream: list[Any]) -> None:
    before = copy.deepcopy(stream)
    read = [from_app_server(message.get("method"), message.get("params")) for message in stream]
    assert read == [from_app_server(message.get("method"), message.get("params")) for message in stream]
    assert stream == before
    fold([event for event in read if event is not None])


@fuzzed(250)
@given(damaged(transcripts("exec-*")))
def test_any_exec_stream_is_read_line_by_line_and_makes_a_legal_session(stream: list[Any]) -> None:
    before = copy.deepcopy(stream)
    read = [from_exec(line, "T1", "U1") for line in stream]
    assert read == [from_exec(line, "T1", "U1") for line in stream]
    assert stream == before
    assert all(event.session_id == "T1" for events in read for event in events)
    fold([event for events in read for event in events])


@fuzzed(150)
@given(st.lists(st.text(max_size=10), max_size=8))
def test_the_pieces_of_a_message_come_out_whole_and_in_order(pieces: list[str]) -> None:
    where = {"threadId": "T1", "turnId": "U1"}
    messages = [
        from_app_server("item/agentMessage/delta", {**where, "itemId": "m1", "delta": piece}) for piece in pieces
    ]
    assert "".join(event.text for event in messages if isinstance(event, ItemDelta)) == "".join(pieces)
    item = {"type": "agentMessage", "id": "m1", "text": "".join(pieces)}
    ended = from_app_server("item/completed", {**where, "item": item})
    assert isinstance(ended, ItemEnded)
    assert isinstance(ended.item, AgentMessage)
    assert ended.item.text == "".join(pieces)
