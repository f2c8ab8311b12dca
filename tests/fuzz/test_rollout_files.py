"""Tests of reading damaged rollout files: damage affects only its own lines."""

from __future__ import annotations

import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.storage import HEAD_LIMIT, Head, read_head, turns_of
from tests.fuzz.effort import fuzzed

GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"", b"\r", b"null", b"[]", b"{}", b'"x"', b"{", b"\xff\xfe", b"[" * 3000, b'{"type": 1}', b"\x00" * 50]
    ),
    st.sampled_from(["event_msg", "response_item", "new_kind"]).map(
        lambda kind: json.dumps(
            {"timestamp": "x", "type": kind, "payload": {"type": "never_seen", "turn_id": "z"}}
        ).encode()
    ),
).map(lambda line: line.replace(b"\n", b""))


class Told(NamedTuple):
    """A turn as it is written, and as it should be read."""

    outcome: str
    message: str | None


class Read(NamedTuple):
    """A turn as it was read."""

    turn_id: str | None
    outcome: str
    message: str | None


TURNS = st.lists(
    st.builds(Told, st.sampled_from(["completed", "failed", "interrupted"]), st.text(min_size=1, max_size=10)),
    max_size=6,
)


def entry(kind: str, number: int, **payload: Any) -> bytes:
    stamp = f"2026-11-15T07:00:{number % 60:02}.000Z"
    return json.dumps({"timestamp": stamp, "type": kind, "payload": payload}, separators=(",", ":")).encode()


def lines_of(turns: list[Told]) -> list[bytes]:
    """What Codex writes for these turns."""
    lines: list[bytes] = []
    for number, turn in enumerate(turns):
        turn_id = f"turn-{number}"
        lines.append(entry("event_msg", number, type="task_started", turn_id=turn_id))
        lines.append(entry("turn_context", number, turn_id=turn_id, cwd="/src", model="m"))
        match turn.outcome:
            case "completed":
                more: dict[str, Any] = {"type": "task_complete", "last_agent_message": turn.message}
            case "failed":
                more = {"type": "task_complete", "error": {"message": turn.message}}
            case _:
                more = {"type": "turn_aborted", "reason": "interrupted"}
        lines.append(entry("event_msg", number, turn_id=turn_id, **more))
    return lines


@st.composite
def with_garbage(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """The lines with others between them that mean nothing."""
    mixed: list[bytes] = []
    for line in lines:
        mixed += draw(st.lists(GARBAGE, max_size=2))
        mixed.append(line)
    mixed += draw(st.lists(GARBAGE, max_size=2))
    return b"\n".join(mixed) + b"\n"


def read_back(content: bytes) -> list[Read]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "rollout.jsonl")
        path.write_bytes(content)
        turns = list(turns_of(path))
    return [Read(turn.turn_id, turn.outcome, turn.error.message if turn.error else turn.message) for turn in turns][
        ::-1
    ]


def expected(turns: list[Told]) -> list[Read]:
    return [
        Read(f"turn-{number}", turn.outcome, None if turn.outcome == "interrupted" else turn.message)
        for number, turn in enumerate(turns)
    ]


@fuzzed(150)
@given(TURNS, st.data())
def test_lines_that_mean_nothing_change_no_turn(turns: list[Told], data: st.DataObject) -> None:
    assert read_back(data.draw(with_garbage(lines_of(turns)))) == expected(turns)


@fuzzed(150)
@given(TURNS.filter(bool), st.data())
def test_a_file_cut_anywhere_tells_of_the_turns_before_the_cut(turns: list[Told], data: st.DataObject) -> None:
    content = b"\n".join(lines_of(turns)) + b"\n"
    at = data.draw(st.integers(0, len(content)))
    told = read_back(content[:at])
    whole = expected(turns)
    assert told[:-1] == whole[: max(0, len(told) - 1)]
    if told:
        assert told[-1] in (whole[len(told) - 1], (whole[len(told) - 1][0], "open", None))


@fuzzed(200)
@given(st.lists(GARBAGE, max_size=6), st.lists(GARBAGE, max_size=4), st.text(min_size=1, max_size=30))
def test_the_beginning_of_a_session_is_found_among_lines_that_mean_nothing(
    before: list[bytes], after: list[bytes], prompt: str
) -> None:
    known = [
        *before,
        entry("session_meta", 0, id="S1", cwd="/src", timestamp="2026-11-15T07:00:00Z"),
        *after,
        entry("event_msg", 0, type="user_message", message=prompt),
        entry("turn_context", 0, model="m", cwd="/src"),
    ]
    head, complete = read_head(io.BytesIO(b"\n".join(known) + b"\n"))
    assert isinstance(head, Head)
    assert (head.session_id, head.directory) == ("S1", "/src")
    assert head.first_prompt == (prompt.encode("utf-8", "replace").decode().strip() or None)
    assert complete == (head.first_prompt is not None)


@fuzzed(100)
@given(st.binary(max_size=300), st.integers(0, 3))
def test_the_beginning_of_any_file_is_read_within_bounds(content: bytes, copies: int) -> None:
    file = io.BytesIO(content * 10**copies)
    read_head(file)
    assert file.tell() <= HEAD_LIMIT
