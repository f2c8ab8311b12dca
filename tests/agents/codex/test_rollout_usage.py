"""Tests of the spending of turns, from recorded files of real versions and from odd files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.storage import read_spending, turns_of
from helmsman.agents.spending import SessionSpending

RECORDED = sorted((Path(__file__).parent / "rollout_ends").glob("*.jsonl"))
each_version = pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
HEAD = {"type": "session_meta", "payload": {"id": "s1", "timestamp": "2026-11-15T12:00:00Z", "cwd": "/src"}}


def written(*entries: dict[str, Any], head: dict[str, Any] | None = None) -> io.BytesIO:
    lines = [{"timestamp": "2026-11-15T12:00:00.000Z", **entry} for entry in (head or HEAD, *entries)]
    return io.BytesIO(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))


def read(*entries: dict[str, Any], head: dict[str, Any] | None = None) -> SessionSpending:
    spending = read_spending(written(*entries, head=head))
    assert spending is not None
    return spending


def event(kind: str, **payload: Any) -> dict[str, Any]:
    return {"type": "event_msg", "payload": {"type": kind, **payload}}


def begin(turn_id: str) -> dict[str, Any]:
    return event("task_started", turn_id=turn_id)


def count(total: int, last: int | None = None) -> dict[str, Any]:
    info: dict[str, Any] = {"total_token_usage": {"input_tokens": total, "output_tokens": 1}}
    if last is not None:
        info["last_token_usage"] = {"input_tokens": last, "output_tokens": 0}
    return event("token_count", info=info, rate_limits=None)


@each_version
def test_it_is_what_the_slow_reader_of_the_whole_file_finds(path: Path) -> None:
    with path.open("rb") as file:
        spending = read_spending(file)
    assert spending is not None
    assert (spending.session_id, spending.directory) == (spending.session_id, "/src/repo")
    expected = [turn for turn in list(turns_of(path))[::-1] if turn.usage is not None]
    assert [turn.turn_id for turn in spending.turns] == [turn.turn_id for turn in expected]
    assert [turn.model for turn in spending.turns] == [turn.model for turn in expected]
    assert [turn.began_at for turn in spending.turns] == [
        turn.began_at.timestamp() for turn in expected if turn.began_at is not None
    ]
    assert [turn[3:7] for turn in spending.turns] == [(250, 50, 17, 4), (50, 0, 5, 0), (11, 0, 1, 0), (21, 0, 2, 0)]


@each_version
def test_a_file_cut_anywhere_tells_what_it_has(path: Path) -> None:
    content = path.read_bytes()
    whole = read_spending(io.BytesIO(content))
    assert whole is not None
    for size in range(0, len(content), max(1, len(content) // 200)):
        part = read_spending(io.BytesIO(content[:size]))
        if part is not None:
            assert sum(turn.input_tokens for turn in part.turns) <= sum(turn.input_tokens for turn in whole.turns)
            assert all(turn.turn_id == known.turn_id for turn, known in zip(part.turns, whole.turns, strict=False))


def test_a_count_that_is_repeated_counts_once() -> None:
    spending = read(begin("t1"), count(100), begin("t2"), count(100), count(300), count(300))
    assert [(turn.turn_id, turn.input_tokens) for turn in spending.turns] == [("t1", 100), ("t2", 200)]


def test_a_turn_without_a_count_spent_nothing() -> None:
    spending = read(begin("t1"), event("token_count", info=None), begin("t2"), count(10))
    assert [turn.turn_id for turn in spending.turns] == ["t2"]


def test_a_fork_does_not_count_what_its_parent_spent() -> None:
    head = {"type": "session_meta", "payload": {**HEAD["payload"], "forked_from_id": "s0"}}  # type: ignore[dict-item]
    spending = read(begin("t3"), count(3000, last=500), count(3200, last=200), head=head)
    assert spending.forked_from == "s0"
    assert [turn.input_tokens for turn in spending.turns] == [700]


def test_a_count_beyond_all_bounds_is_passed_over() -> None:
    spending = read(begin("a"), count(10**400), begin("b"), count(10))
    assert [(turn.turn_id, turn.input_tokens) for turn in spending.turns] == [("b", 10)]


def test_counting_may_begin_anew() -> None:
    spending = read(begin("t1"), count(500), begin("t2"), count(40))
    assert [turn.input_tokens for turn in spending.turns] == [500, 40]


def test_a_turn_has_the_model_it_ran_on_else_that_of_the_turn_before() -> None:
    context = {"type": "turn_context", "payload": {"turn_id": "t1", "model": "gpt-5.5"}}
    other = {"type": "turn_context", "payload": {"turn_id": "t3", "model": "gpt-5.4"}}
    spending = read(begin("t1"), context, count(1), begin("t2"), count(2), begin("t3"), other, count(3))
    assert [turn.model for turn in spending.turns] == ["gpt-5.5", "gpt-5.5", "gpt-5.4"]


def test_output_of_a_tool_is_not_taken_for_a_token_count() -> None:
    fake = {"type": "response_item", "payload": {"type": "function_call_output", "output": json.dumps(count(9999))}}
    nested = {"type": "response_item", "payload": {"type": "mcp_result", "result": count(9999)}}
    assert [turn.input_tokens for turn in read(begin("t1"), count(5), fake, nested).turns] == [5]


def test_long_instructions_are_not_in_the_way() -> None:
    head = {
        "type": "session_meta",
        "payload": {
            **HEAD["payload"],  # type: ignore[dict-item]
            "base_instructions": {"text": 'x "quoted", {braces}\n' * 1000},
            "git": {},
        },
    }
    assert read(begin("t1"), count(5), head=head).directory == "/src"


@given(st.binary(max_size=400) | st.lists(st.text(max_size=60)).map(lambda lines: "\n".join(lines).encode()))
def test_nothing_in_a_file_raises(content: bytes) -> None:
    assert read_spending(io.BytesIO(content)) is None
    lines = written(begin("t1"), count(7)).getvalue()
    spending = read_spending(io.BytesIO(lines + content))
    assert spending is not None
    assert spending.turns[0].input_tokens == 7
