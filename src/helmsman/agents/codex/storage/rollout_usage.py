"""What the turns of a session have spent, from its rollout file.

Codex writes how much a session has spent so far after every response of the model (`token_count`), and much else that is
of no use here. So the kind of each line is found out without reading it, and only one count of each turn is parsed.

What the versions do:

- up to 0.130 a turn begins with a count that repeats the last one, so only a difference of two counts is a spending;
- a fork counts on from where its parent was. Up to 0.145 its file begins with a copy of the parent's lines: the turns keep
  their ids, by which a copy is known, but on 0.93 they have none, and all get the time of the copying. Since 0.155 nothing
  is copied, and the first count already has the parent's spending in it; so has that of a session which was taken back to an
  earlier turn and goes on in a second file;
- 0.93 does not say where a turn begins; there it is at a message of the user.

Nothing in a file raises: a line that is damaged or unknown is passed over.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias

from helmsman.agents.codex.storage.rollout_head import parse_line, read_head
from helmsman.base.json_values import integer, mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

_KIND: Final = re.compile(
    rb'\{"timestamp":"(?P<time>[^"]{1,40})",(?:"ordinal":[0-9]{1,20},)?"type":"'
    rb'(?:event_msg","payload":\{"type":"(?P<event>task_started|turn_started|user_message|token_count)"|(?P<context>turn_context)")'
)
_MODEL: Final = re.compile(rb'"model":"((?:[^"\\]|\\.){1,200})"')
_TURN_ID: Final = re.compile(rb'"turn_id":"([^"\\]{1,200})"')
_INSTRUCTIONS: Final = b',"base_instructions":'
_NO_COUNT: Final = b'"token_count","info":null'
_NAMES: Final = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")

_ABSURD: Final = 10**15
"""No session spends so many tokens: such a count is damage, and would spoil every sum."""

_Counts: TypeAlias = "tuple[int, int, int, int]"
"""In the order of `_NAMES`."""
_NOTHING: Final = (0, 0, 0, 0)


class TurnSpending(NamedTuple):
    """What one turn spent. 0.93 gives it no `turn_id`; `began_at` is in seconds since 1970.

    There are tens of thousands of these, so they are plain tuples, and a cache can hold them as they are.
    """

    turn_id: str | None
    began_at: float
    model: str | None
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int


@dataclass(frozen=True, slots=True)
class SessionSpending:
    """What a session spent, by its file. `turns` has those that spent something, and may begin with copies of the turns
    of `forked_from`. `parent_id` is the session whose sub-agent this is.
    """

    session_id: str
    directory: str | None
    created_at: float | None
    parent_id: str | None
    forked_from: str | None
    turns: tuple[TurnSpending, ...]


def read_spending(file: BinaryIO) -> SessionSpending | None:
    """What the session in this file has spent; None if it is not a session."""
    head, _ = read_head(io.BytesIO(_without_instructions(file.readline())))
    if head is None or head.session_id is None:
        return None
    return SessionSpending(
        session_id=head.session_id,
        directory=head.directory,
        created_at=None if head.created_at is None else head.created_at.timestamp(),
        parent_id=head.parent_id,
        forked_from=head.forked_from,
        turns=tuple(_turns(file)),
    )


def _without_instructions(line: bytes) -> bytes:
    """The first line without the twenty kilobytes of instructions in it and what comes after them."""
    begin = line.find(_INSTRUCTIONS)
    shortened = line[:begin] + b"}}"
    return shortened if begin >= 0 and parse_line(shortened) is not None else line


@dataclass(slots=True)
class _Turn:
    """A turn while its lines are read. `count` is the last line that says how much was spent by then."""

    turn_id: str | None
    began_at: float
    model: str | None
    count: bytes | None = None


def _turns(lines: Iterable[bytes]) -> list[TurnSpending]:
    """The turns that spent something, oldest first."""
    turns: list[_Turn] = []
    first_count: bytes | None = None
    names_turns = False
    for line in lines:
        kind = _KIND.match(line)
        if kind is None:
            continue
        event = kind["event"]
        if event == b"token_count":
            is_whole = line.endswith(b"\n")  # the last one may still be on its way to the disk
            if turns and is_whole and _NO_COUNT not in line[:200]:
                turns[-1].count = line
                first_count = first_count or line
        elif event == b"user_message":
            if not names_turns:
                turns.append(_Turn(None, _seconds(kind["time"]), None))
        elif event is not None:
            names_turns = True
            turns.append(_Turn(_turn_id(line), _seconds(kind["time"]), None))
        elif turns and turns[-1].model is None:
            turns[-1].model = _model(line)
    return _differences(turns, _spent_before(first_count))


def _differences(turns: list[_Turn], before: _Counts) -> list[TurnSpending]:
    spendings: list[TurnSpending] = []
    model: str | None = None
    for turn in turns:
        model = turn.model or model
        after = None if turn.count is None else _counts(turn.count, "total_token_usage")
        if after is None:
            continue
        spent = after if _began_anew(before, after) else _difference(before, after)
        before = after
        if any(spent):
            spendings.append(TurnSpending(turn.turn_id, turn.began_at, model, *spent))
    return spendings


def _spent_before(first_count: bytes | None) -> _Counts:
    """What had been spent before the first count of a file: nothing, unless the file goes on from another one."""
    if first_count is None:
        return _NOTHING
    total, last = _counts(first_count, "total_token_usage"), _counts(first_count, "last_token_usage")
    return _NOTHING if total is None or last is None else _difference(last, total)


def _began_anew(before: _Counts, after: _Counts) -> bool:
    return after[0] < before[0] or after[2] < before[2]


def _difference(before: _Counts, after: _Counts) -> _Counts:
    return (
        max(0, after[0] - before[0]),
        max(0, after[1] - before[1]),
        max(0, after[2] - before[2]),
        max(0, after[3] - before[3]),
    )


def _counts(line: bytes, name: str) -> _Counts | None:
    entry = parse_line(line)
    payload = mapping(None if entry is None else entry.get("payload"))
    told: Any = mapping(payload.get("info")).get(name)
    if not isinstance(told, dict):
        return None
    entered, cached, given, reasoning = (max(0, integer(told.get(name)) or 0) for name in _NAMES)
    return (entered, cached, given, reasoning) if max(entered, given) < _ABSURD else None


def _turn_id(line: bytes) -> str | None:
    found = _TURN_ID.search(line)
    return None if found is None else found[1].decode("utf-8", "replace")


def _model(line: bytes) -> str | None:
    found = _MODEL.search(line)
    return None if found is None else found[1].decode("utf-8", "replace")


def _seconds(time: bytes) -> float:
    try:
        return datetime.fromisoformat(time.decode("ascii", "replace")).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
