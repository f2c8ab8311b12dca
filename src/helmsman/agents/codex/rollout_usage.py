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
from typing import TYPE_CHECKING, BinaryIO, Final

from helmsman.agents.codex.normalise import read_usage, spent_between
from helmsman.agents.codex.rollouts import OWN_ID, read_head, read_rollout, rollout_files
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.base.json_values import json_object, mapping
from helmsman.model.events import Usage
from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KIND: Final = re.compile(
    rb'\{"timestamp":"(?P<time>[^"]{1,40})",(?:"ordinal":[0-9]{1,20},)?"type":"'
    rb'(?:event_msg","payload":\{"type":"(?P<event>task_started|turn_started|user_message|token_count)"|(?P<context>turn_context)")'
)
_MODEL: Final = re.compile(rb'"model":"((?:[^"\\]|\\.){1,200})"')
_TURN_ID: Final = re.compile(rb'"turn_id":"([^"\\]{1,200})"')
_INSTRUCTIONS: Final = b',"base_instructions":'
_NO_COUNT: Final = b'"token_count","info":null'

_ABSURD: Final = 10**15
"""No session spends so many tokens: such a count is damage, and would spoil every sum."""


class RolloutSpending:
    """The rollout files under a CODEX_HOME. See `helmsman.agents.spending.SpendingFiles`."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def files(self) -> Iterable[tuple[str, int, int]]:
        return rollout_files(self.home)

    def read(self, key: str) -> SessionSpending | None:
        return read_rollout(key, read_spending)

    def names(self, turn_id: str) -> bool:
        return OWN_ID.fullmatch(turn_id) is not None  # those of before 0.115 are not, nor are those of `codex exec`


def read_spending(file: BinaryIO) -> SessionSpending | None:
    """What the session in this file has spent; None if it is not a session."""
    head, _ = read_head(io.BytesIO(_without_instructions(file.readline())))
    if head is None or head.session_id is None:
        return None
    return SessionSpending(
        agent=DEFAULT_AGENT,
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
    return shortened if begin >= 0 and json_object(shortened) is not None else line


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
            turns.append(_Turn(_named(_TURN_ID, line), _seconds(kind["time"]), None))
        elif turns and turns[-1].model is None:
            turns[-1].model = _named(_MODEL, line)
    return _differences(turns, _spent_before(first_count))


def _differences(turns: list[_Turn], before: Usage) -> list[TurnSpending]:
    spendings: list[TurnSpending] = []
    model: str | None = None
    for turn in turns:
        model = turn.model or model
        after = None if turn.count is None else _counts(turn.count, "total_token_usage")
        if after is None:
            continue
        spent = spent_between(before, after)
        before = after
        if spent != Usage():
            spendings.append(TurnSpending(turn.turn_id, turn.began_at, model, *spent.counts))
    return spendings


def _spent_before(first_count: bytes | None) -> Usage:
    """What had been spent before the first count of a file: nothing, unless the file goes on from another one."""
    if first_count is None:
        return Usage()
    total, last = _counts(first_count, "total_token_usage"), _counts(first_count, "last_token_usage")
    return Usage() if total is None or last is None else total - last


def _counts(line: bytes, name: str) -> Usage | None:
    payload = mapping(mapping(json_object(line)).get("payload"))
    usage = read_usage(mapping(payload.get("info")).get(name))
    return None if usage is None or max(usage.input_tokens, usage.output_tokens) >= _ABSURD else usage


def _named(pattern: re.Pattern[bytes], line: bytes) -> str | None:
    found = pattern.search(line)
    return None if found is None else found[1].decode("utf-8", "replace")


def _seconds(time: bytes) -> float:
    try:
        return datetime.fromisoformat(time.decode("ascii", "replace")).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
