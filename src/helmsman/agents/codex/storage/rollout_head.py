"""What the beginning of a rollout file says about its session.

A rollout is a file of JSON lines. The first says what the session is (`session_meta`), a few lines later comes the first
prompt, and next to it the settings of the turn with the model. Between them stand tens of kilobytes that a listing has
no use for. The format has changed with almost every version of Codex; the methods of `_HeadReader` say how.

Nothing in a file raises: a line that is damaged or unknown is passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from helmsman.base.json_values import json_object, mapping, sequence, timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

HEAD_LIMIT: Final = 4 * 1024 * 1024
"""How much of a file is looked at. The first line alone is 20 kB, and both it and a prompt may be far larger."""

LINES_AFTER_PROMPT: Final = 20
"""The model is named right before the first prompt, or (0.93) right after it."""

PROMPT_LIMIT: Final = 2000
"""How much of the first prompt is kept, for listings and searches."""

OWN_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
"""What Codex calls a thread, and since 0.115 a turn."""


@dataclass(slots=True)
class Head:
    """What is known of a session from its file. `is_subagent`: an agent started it for a part of its own work."""

    session_id: str | None = None
    created_at: datetime | None = None
    directory: str | None = None
    first_prompt: str | None = None
    model: str | None = None
    source: str | None = None
    originator: str | None = None
    engine_version: str | None = None
    parent_id: str | None = None
    forked_from: str | None = None
    is_subagent: bool = False


def read_head(file: BinaryIO) -> tuple[Head | None, bool]:
    """The head, and whether it is complete, so that more lines would add nothing.

    The head is None for a file that is not a session, or of which not even the first line is written yet.
    """
    reader = _HeadReader()
    complete = reader.read(file)
    return reader.head, complete


class _HeadReader:
    """Reads lines until all is known."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self._lines_after_prompt = 0

    def read(self, file: BinaryIO) -> bool:
        left = HEAD_LIMIT
        while left > 0:
            line = file.readline(left)
            if not line:
                return False
            left -= len(line)
            entry = json_object(line)
            if entry is not None:
                self._take(entry)
            if self._is_complete():
                return True
        return True

    def _is_complete(self) -> bool:
        if self.head is None or self.head.first_prompt is None:
            return False
        self._lines_after_prompt += 1
        return self.head.model is not None or self._lines_after_prompt > LINES_AFTER_PROMPT

    def _take(self, entry: Mapping[str, Any]) -> None:
        kind, payload = entry.get("type"), mapping(entry.get("payload"))
        if self.head is None:
            # Only the first counts: a fork of an older version has its parent's first line as its second.
            if kind == "session_meta" and payload:
                self.head = _head_of(payload)
            elif kind is None and readable(entry.get("id")) and "timestamp" in entry:  # long before 0.93
                self.head = _head_of(entry)
        elif kind == "turn_context":
            self.head.model = self.head.model or readable(payload.get("model"))
            self.head.directory = self.head.directory or readable(payload.get("cwd"))
        elif kind == "event_msg":
            self._take_event(self.head, payload)
        elif kind == "message" and entry.get("role") == "user":  # long before 0.93: no event, no payload
            self._take_message(self.head, entry.get("content"))

    def _take_event(self, head: Head, payload: Mapping[str, Any]) -> None:
        item = mapping(payload.get("item"))
        if payload.get("type") == "user_message":  # the older history: up to 0.149, and reviewers later
            prompt = readable(payload.get("message"))
        elif payload.get("type") == "item_completed" and item.get("type") == "UserMessage":
            # the paginated history, since 0.152
            prompt = _first_text(item.get("content"))
        else:
            return
        head.first_prompt = head.first_prompt or _shorten(prompt)

    def _take_message(self, head: Head, content: object) -> None:
        text = _first_text(content) or ""
        if text.startswith("<environment_context>"):
            found = re.search(r"<cwd>(.{1,4096}?)</cwd>|Current working directory: (.{1,4096})", text)
            head.directory = head.directory or (found and (found[1] or found[2]))
        elif not text.startswith("<"):  # instructions are put before the prompt in the same way
            head.first_prompt = head.first_prompt or _shorten(text)


def _head_of(meta: Mapping[str, Any]) -> Head:
    source = meta.get("source")
    kind = next(iter(source), None) if isinstance(source, dict) else source
    is_subagent = isinstance(kind, str) and kind.lower() == "subagent"
    parent = readable(meta.get("parent_thread_id")) or _spawned_by(source)
    return Head(
        session_id=readable(meta.get("id")),
        created_at=timestamp(meta.get("timestamp")),
        directory=readable(meta.get("cwd")),
        source=readable(kind),
        originator=readable(meta.get("originator")),
        engine_version=readable(meta.get("cli_version")),
        parent_id=parent,
        forked_from=readable(meta.get("forked_from_id")),
        is_subagent=is_subagent or parent is not None,
    )


def _spawned_by(source: object) -> str | None:
    """`{"subagent": {"thread_spawn": {"parent_thread_id": …}}}`; a reviewer is only `{"subagent": "review"}`."""
    for _ in range(2):
        source = next(iter(mapping(source).values()), None)
    return readable(mapping(source).get("parent_thread_id"))


def readable(value: object) -> str | None:
    """A text that is not empty and can be written anywhere: half of a surrogate pair, which JSON can spell, cannot."""
    if not isinstance(value, str) or not value:
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _first_text(content: object) -> str | None:
    return next((text for part in sequence(content) if (text := readable(mapping(part).get("text")))), None)


def _shorten(text: str | None) -> str | None:
    text = (text or "").strip()
    return text[:PROMPT_LIMIT] + "…" if len(text) > PROMPT_LIMIT else text or None
