"""What was said and done in a session, from its rollout file, without starting Codex.

Prompts and messages are events: `user_message` and `agent_message` up to 0.149, `item_completed` since 0.152. Commands and
patches are what the model called, which every version records alike. The file of a fork, or of a session that was taken back
(0.155 and newer), begins where it parted, and names the file (by the last id in its name) and the place (`history_base`).

Nothing in a file raises: a line that is damaged, half written or unknown is passed over.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.storage.rollout_head import readable
from helmsman.agents.codex.storage.rollouts import read_rollout, rollout_files
from helmsman.base.json_values import integer, json_object, mapping, optional_text, sequence
from helmsman.model.events import AgentMessage, CommandExecution, FileChange, PastTurn, PathChange, UserMessage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from helmsman.model.events import ChangeKind, Item

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
