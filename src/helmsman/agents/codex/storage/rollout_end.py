"""What became of the turns of a session, from the end of its rollout file.

Codex records the end of a turn in the session's file, whoever was listening: this is how one learns what a turn came to
after its Helmsman has died. Files grow to hundreds of megabytes and the turn in question is nearly always the last, so
the file is read backwards, a block at a time, and only as far as needed.

How a turn is recorded depends on the version:

- since 0.145: `task_started` and `task_complete` or `turn_aborted`, with the turn's id; a failure has its `error`;
- 0.115 to 0.130: the same, but a failure looks like a completion, without a last message;
- 0.93: no ids, no beginnings and no ends but `turn_aborted`; a turn begins with its `user_message`, and one that ends in a
  message of the agent is complete.

Up to 0.145 turns that were taken back stay in the file, and a line after them says how many (`thread_rolled_back`). Since
0.155 the file of a fork, or of a session that was taken back, begins where it parted, and counts its tokens on from there.

Nothing in a file raises: a line that is damaged, half written or unknown is passed over.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from helmsman.agents.codex.normalise.failures import turn_failure
from helmsman.agents.codex.normalise.usage import read_usage, spent_between
from helmsman.agents.codex.storage.rollout_head import readable
from helmsman.agents.codex.storage.rollouts import read_rollout
from helmsman.agents.protocol import RecordedTurn
from helmsman.base.json_values import integer, json_object, mapping, optional_text, timestamp
from helmsman.base.structs import replace
from helmsman.model.events import Failure, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

_BLOCK: Final = 64 * 1024
_KIND: Final = re.compile(
    rb'\{"timestamp":"(?P<time>[^"]{1,40})",(?:"ordinal":[0-9]{1,20},)?'
    rb'"type":"(?P<type>\w{1,40})","payload":\{"type":"(?P<payload>\w{1,40})"'
)
"""The kind of a line, as every version writes it, without reading all of what may be a megabyte of output."""

_BEGINS: Final = frozenset({"task_started", "turn_started"})
_COMPLETES: Final = frozenset({"task_complete", "turn_complete"})
_ABORTS: Final = "turn_aborted"
_TAKEN_BACK: Final = "thread_rolled_back"
_NO_REASON: Final = (
    "The turn ended without an answer, and Codex did not record why. Send the session a message to go on."
)


def read_turn(path: Path, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
    """A turn of the session in this file; None if the file does not tell of it, or cannot be read.

    Args:
        path: The rollout file.
        turn_id: Which turn. Where it is None, or the file names no turns (0.93), `since` decides.
        since: The first turn that began then or later; None means the last turn that the session still has.
    """
    found: RecordedTurn | None = None
    for turn in turns_of(path):
        if turn_id is not None and turn.turn_id is not None:
            if turn.turn_id == turn_id:
                return turn
            continue
        if since is None:
            if not turn.forgotten:
                return turn
        elif turn.began_at is None or turn.began_at < since:
            break
        else:
            found = turn
    return found


def turns_of(path: Path) -> Iterator[RecordedTurn]:
    """The turns in a file, last first, read as they are asked for. A file that cannot be read has none."""
    reader = _Reader()
    try:
        with open_to_the_end(path) as file:
            for line in lines_from_end(file):
                yield from reader.take(line)
    except OSError:
        return
    yield from reader.know_spent_before(reader.spent_before)


def open_to_the_end(path: Path) -> BinaryIO:
    """A rollout file for `lines_from_end`. One that is compressed has no end to go to before all of it is unpacked."""
    if path.suffix != ".zst":
        return path.open("rb")
    return io.BytesIO(read_rollout(str(path), lambda file: file.read()) or b"")


def lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, last first. What comes after the last line feed is a line still being written: it counts if
    it is complete.
    """
    position = file.seek(0, os.SEEK_END)
    pieces: list[bytes] = []  # of the line that begins before what was read so far, last first
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        first, *lines = file.read(size).split(b"\n")
        if lines:
            pieces.append(lines.pop())
            yield b"".join(reversed(pieces))
            yield from reversed(lines)
            pieces = []
        pieces.append(first)
    yield b"".join(reversed(pieces))


# --- from lines to turns ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stretch:
    """What is known of a turn while its lines are read, from its end to its beginning."""

    end: Mapping[str, Any] | None = None
    ended_at: datetime | None = None
    last_written_at: datetime | None = None
    spent: Usage | None = None
    """What the session had spent at the end of the turn."""
    message: str | None = None
    ends_in_message: bool | None = None
    model: str | None = None
    names_no_turn: bool = False


@dataclass(slots=True)
class _Reader:
    """Takes lines from the last to the first. A turn is given out once the spending before it is known too."""

    stretch: _Stretch = field(default_factory=_Stretch)
    waiting: list[tuple[RecordedTurn, Usage | None]] = field(default_factory=list)
    """Turns that lack only what the session had spent before them, with what it had spent after them."""
    is_last: bool = True
    taken_back: int = 0
    """How many of the turns that are still to come were forgotten."""
    spent_before: Usage = field(default_factory=Usage)
    """What had been spent before the first count: nothing, but in a fork what its parent had."""

    def take(self, line: bytes) -> Iterator[RecordedTurn]:
        kind = _KIND.match(line)
        if kind is not None and (kind["type"] == b"response_item" or kind["payload"] == b"item_completed"):
            self._pass_over(kind["time"], is_work=kind["type"] == b"response_item" and kind["payload"] != b"message")
            return
        entry = json_object(line)
        if entry is None:
            return
        payload, time = mapping(entry.get("payload")), timestamp(entry.get("timestamp"))
        self.stretch.last_written_at = self.stretch.last_written_at or time
        if entry.get("type") == "turn_context":
            self.stretch.model = self.stretch.model or readable(payload.get("model"))
            self.stretch.names_no_turn = "turn_id" not in payload
        elif entry.get("type") == "event_msg":
            yield from self._take_event(payload, time)

    def _pass_over(self, time: bytes, *, is_work: bool) -> None:
        stretch = self.stretch
        stretch.last_written_at = stretch.last_written_at or timestamp(time.decode("ascii", "replace"))
        if is_work and stretch.ends_in_message is None:
            stretch.ends_in_message = False  # a tool call or its output, and no message after it

    def _take_event(self, payload: Mapping[str, Any], time: datetime | None) -> Iterator[RecordedTurn]:
        kind = payload.get("type")
        if kind == "token_count":
            info = mapping(payload.get("info"))
            spent = read_usage(info.get("total_token_usage"))
            if spent is not None:
                last = read_usage(info.get("last_token_usage"))
                self.spent_before = Usage() if last is None else spent_between(last, spent)
                yield from self.know_spent_before(spent)
                self.stretch.spent = self.stretch.spent or spent
        elif kind == "agent_message":
            if self.stretch.ends_in_message is None:
                self.stretch.ends_in_message, self.stretch.message = True, readable(payload.get("message"))
        elif kind == _TAKEN_BACK:
            self.taken_back += max(0, integer(payload.get("num_turns")) or 0)
        elif kind == _ABORTS or kind in _COMPLETES:
            self.stretch = _Stretch(end=payload, ended_at=time, last_written_at=time)
        elif kind in _BEGINS:
            yield from self._turn_begins(readable(payload.get("turn_id")), time)
        elif kind == "user_message" and self.stretch.names_no_turn:
            yield from self._turn_begins(None, time)

    def _turn_begins(self, turn_id: str | None, time: datetime | None) -> Iterator[RecordedTurn]:
        stretch, self.stretch = self.stretch, _Stretch()
        end = stretch.end
        if end is not None and readable(end.get("turn_id")) not in (turn_id, None):
            end = None  # two processes wrote at once: this is the end of the other's turn
        turn = replace(
            _outcome(stretch, end, is_last=self.is_last),
            turn_id=turn_id,
            model=stretch.model,
            began_at=time,
            ended_at=None if end is None else stretch.ended_at,
            last_written_at=stretch.last_written_at,
            forgotten=self.taken_back > 0,
        )
        self.is_last = False
        self.taken_back = max(0, self.taken_back - 1)
        if stretch.spent is None and not self.waiting:
            yield turn
        else:
            self.waiting.append((turn, stretch.spent))

    def know_spent_before(self, spent: Usage) -> Iterator[RecordedTurn]:
        for turn, after in self.waiting:
            usage = None if after is None else spent_between(spent, after)
            yield turn if usage is None else replace(turn, usage=usage, spent_before=spent)
        self.waiting = []


def _outcome(stretch: _Stretch, end: Mapping[str, Any] | None, *, is_last: bool) -> RecordedTurn:
    if end is not None and end.get("type") == _ABORTS:
        return RecordedTurn(outcome="interrupted")
    if end is not None:
        return _completion(stretch, end)
    if stretch.names_no_turn and stretch.ends_in_message:
        return RecordedTurn(outcome="completed", message=stretch.message)
    if is_last:
        return RecordedTurn(outcome="open")
    if stretch.names_no_turn:
        return RecordedTurn(outcome="failed", error=Failure(code="other", message=_NO_REASON))
    return RecordedTurn(outcome="interrupted")  # another turn began: this one has not gone on


def _completion(stretch: _Stretch, end: Mapping[str, Any]) -> RecordedTurn:
    message, error = optional_text(end.get("last_agent_message")), end.get("error")
    if isinstance(error, dict):
        return RecordedTurn(outcome="failed", error=turn_failure(error))
    if message is None and "started_at" not in end and not stretch.ends_in_message:
        return RecordedTurn(outcome="failed", error=Failure(code="other", message=_NO_REASON))
    return RecordedTurn(outcome="completed", message=message)
