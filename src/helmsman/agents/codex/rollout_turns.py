"""Read turns from a rollout file, without starting Codex.

`read_turn` and `turns_of` read backwards, a block at a time: files grow to hundreds of megabytes, and recovery nearly always
asks for the last turn. How a turn is recorded depends on the version:

- since 0.145: `task_started` and `task_complete` or `turn_aborted`, with the turn's id; a failure has its `error`;
- 0.115 to 0.130: the same, but a failure looks like a completion without a last message;
- 0.93: no ids, no beginnings and no ends but `turn_aborted`; a turn begins with its `user_message`, and is complete if it
  ends in a message of the agent.

`read_history` reads forwards. Prompts and messages are `user_message` and `agent_message` up to 0.149, `item_completed`
since 0.152. Commands and patches are the model's calls, which every version records alike.

Up to 0.145 turns that were taken back stay in the file, and a later line says how many (`thread_rolled_back`). Since 0.155
the file of a fork, or of a session that was taken back, begins where it parted and continues its parent's token counts; it
names the parent's file (by the last id in its name) and the place (`history_base`). Damaged or unknown lines are skipped.
"""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from helmsman.agents.codex.normalise import read_usage, spent_between, turn_failure
from helmsman.agents.codex.rollouts import read_rollout, readable, rollout_files
from helmsman.agents.protocol import RecordedTurn
from helmsman.base.json_values import integer, json_object, mapping, optional_text, sequence, timestamp
from helmsman.base.structs import replace
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    Failure,
    FileChange,
    PastTurn,
    PathChange,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from helmsman.model.events import ChangeKind, Item

# --- outcomes, from the end ------------------------------------------------------------------------------------------


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


# --- history, from the beginning -------------------------------------------------------------------------------------


_OF_USE: Final = re.compile(
    rb'"type":"(?:user_message|agent_message|item_completed|task_started|turn_started|task_complete|turn_complete'
    rb'|thread_rolled_back|function_call|function_call_output|custom_tool_call)"'
)
_KIND_BYTES: Final = 400
"""Where a line says what it is; what follows may be a megabyte of output."""
_LONGEST_LINE: Final = 4 * 1024 * 1024
_MOST_FILES: Final = 20
"""Sessions that parted from sessions that parted: further back nobody looks."""
_FILE: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)
_KINDS: Final[dict[str, ChangeKind]] = {"Add": "add", "Update": "update", "Delete": "delete"}
_EXIT: Final = re.compile(r"(?:Process exited with code|Exit code:) (-?\d+)")
_TEXT_ITEMS: Final = {"UserMessage", "AgentMessage"}


def read_history(path: Path, codex_home: Path) -> tuple[PastTurn, ...]:
    """The turns in a file and in those of the same home that it goes on from, oldest first."""
    files: list[tuple[Path, int | None]] = [(path, None)]
    while len(files) < _MOST_FILES and (base := _parted_from(files[0][0], codex_home)) is not None:
        files.insert(0, base)
    history = _History()
    for file, end in files:
        read_rollout(str(file), partial(history.read, end=end))
    return tuple(turn.past() for turn in history.turns)


def _parted_from(path: Path, codex_home: Path) -> tuple[Path, int] | None:
    """The file that this one goes on from, and how many of its bytes it shares."""
    first = json_object(read_rollout(str(path), lambda file: file.readline(_LONGEST_LINE)) or b"") or {}
    base = mapping(mapping(first.get("payload")).get("history_base"))
    parent, end = readable(base.get("thread_id")), integer(base.get("end_byte_offset"))
    if parent is None or end is None:
        return None
    names = tuple(f"{mark}{parent}.jsonl" for mark in "-_")
    files = (file for file, _, _ in rollout_files(codex_home) if file.removesuffix(".zst").endswith(names))
    found = next(files, None)
    return None if found is None else (Path(found), end)


@dataclass(slots=True)
class _Turn:
    id: str
    status: str = "interrupted"
    items: list[Item] = field(default_factory=list)

    def past(self) -> PastTurn:
        return PastTurn(id=self.id, status=self.status, items=tuple(self.items))


class _History:
    """Takes lines from the first to the last."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._names_turns = False

    def read(self, file: BinaryIO, end: int | None) -> None:
        left = end
        while left is None or left > 0:
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            left = None if left is None else left - len(line)
            if _OF_USE.search(line, 0, _KIND_BYTES) and (entry := json_object(line)) is not None:
                self._take(str(entry.get("type")), mapping(entry.get("payload")))

    def _take(self, kind: str, payload: Mapping[str, Any]) -> None:
        match kind, payload.get("type"):
            case "event_msg", "task_started" | "turn_started":
                named = readable(payload.get("turn_id"))
                named = named or readable(mapping(payload.get("turn_attribution")).get("turn_id"))
                self._names_turns = True
                self.turns.append(_Turn(named or str(len(self.turns) + 1)))
            case "event_msg", "user_message":
                self._asked(readable(payload.get("message")))
            case "event_msg", "agent_message":
                self._said(readable(payload.get("message")))
            case "event_msg", "item_completed":
                self._completed(mapping(payload.get("item")))
            case "event_msg", "task_complete" | "turn_complete" if self.turns:
                self.turns[-1].status = "failed" if isinstance(payload.get("error"), dict) else "completed"
            case "event_msg", "thread_rolled_back":
                taken_back = integer(payload.get("num_turns")) or 0
                del self.turns[max(0, len(self.turns) - taken_back) :]
            case "response_item", "function_call" | "custom_tool_call":
                self._called(payload)
            case "response_item", "function_call_output":
                self._add_output(str(payload.get("call_id")), payload.get("output"))

    def _did(self, item: Item) -> None:
        if self.turns:
            self.turns[-1].items.append(item)

    def _asked(self, text: str | None) -> None:
        if text is None:
            return
        if not self._names_turns:  # 0.93: a turn begins with its message, and is over when the agent has said something
            self.turns.append(_Turn(str(len(self.turns) + 1)))
        self._did(UserMessage(id=f"u{len(self.turns)}", text=text))

    def _said(self, text: str | None) -> None:
        if text is not None and self.turns:
            self._did(AgentMessage(id=f"m{len(self.turns[-1].items)}", text=text))
            if not self._names_turns:
                self.turns[-1].status = "completed"

    def _completed(self, item: Mapping[str, Any]) -> None:
        if item.get("type") not in _TEXT_ITEMS:
            return
        parts = (readable(mapping(part).get("text")) for part in sequence(item.get("content")))
        text = "\n".join(filter(None, parts)) or None
        (self._asked if item["type"] == "UserMessage" else self._said)(text)

    def _called(self, call: Mapping[str, Any]) -> None:
        call_id = str(call.get("call_id"))
        if call.get("name") == "apply_patch":
            self._did(FileChange(id=call_id, changes=_patched(call)))
            return
        command = _command(call.get("arguments"))
        if command is not None:
            self._did(CommandExecution(id=call_id, command=command))

    def _add_output(self, call_id: str, output: object) -> None:
        items = self.turns[-1].items if self.turns else []
        found = _EXIT.search(output if isinstance(output, str) else json.dumps(output))
        for place, item in enumerate(items):
            if isinstance(item, CommandExecution) and item.id == call_id and found is not None:
                items[place] = CommandExecution(id=call_id, command=item.command, exit_code=int(found[1]))


def _patched(call: Mapping[str, Any]) -> tuple[PathChange, ...]:
    patch = readable(call.get("input")) or readable(call.get("arguments")) or ""
    return tuple(PathChange(path=path.strip(), kind=_KINDS[kind]) for kind, path in _FILE.findall(patch))


def _command(arguments: object) -> str | None:
    """What a call of a shell was to run; None of any other tool."""
    given = json_object(optional_text(arguments)) or {}
    command = given.get("cmd", given.get("command"))
    if isinstance(command, list):
        words = [word for word in command if isinstance(word, str)]
        return words[-1] if len(words) == 3 and words[1] in ("-c", "-lc") else " ".join(words) or None
    return readable(command)
