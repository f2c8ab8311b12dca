"""Sessions of Gemini CLI: `~/.gemini/tmp/<project>/chats/session-<minute>-<8 of the id>.jsonl`.

A line is a header, a message, or a patch (`$set`). A message that changes is written again under its id, also in a second
file of the same session, which begins when it is loaded later: each id counts once. Tool calls are all gathered in one
message, wherever they were made; the answer of the tool stands in its place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.acp.storage.reader import Gathering, SeenFiles, SessionReader, is_id, json_lines
from helmsman.agents.protocol import SessionInfo
from helmsman.base.files import changed_at, size_and_time
from helmsman.base.json_values import count, json_object, mapping, optional_text, sequence, text, timestamp
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CONTEXT: Final = "<session_context>"
_MOST_COUNTED: Final = 100
"""Limit of sessions whose counts are cached."""


class GeminiReader(SessionReader):
    """See `helmsman.agents.acp.storage.reader.SessionReader`."""

    def __init__(self, projects: Path) -> None:
        self.home = self._projects = projects
        self._seen = SeenFiles(_info)
        self._counts: dict[str, _Count] = {}

    def sessions(self) -> Iterator[SessionInfo]:
        newest: dict[str, SessionInfo] = {}
        for path in self._projects.glob("*/chats/session-*.jsonl"):
            info = self._seen.get(path)
            known = newest.get(info.session_id) if info is not None else None
            if info is not None and (known is None or known.updated_at < info.updated_at):
                newest[info.session_id] = info
        yield from newest.values()

    def find(self, session_id: str) -> SessionInfo | None:
        found = [info for path in self._files(session_id) if (info := self._seen.get(path)) is not None]
        return max(found, key=lambda info: info.updated_at, default=None)

    def _files(self, session_id: str) -> list[Path]:
        if not is_id(session_id):
            return []
        named = self._projects.glob(f"*/chats/session-*-{session_id[:8]}.jsonl")
        return sorted(path for path in named if _header(path).get("sessionId") == session_id)

    def stamps(self) -> Iterator[tuple[str, int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self._projects.glob("*/chats/session-*.jsonl"):
            key = str(path.with_name(path.stem[-8:]))  # of one session there may be several files
            (size, changed), (more, later) = found.get(key, (0, 0)), size_and_time(path)
            found[key] = size + more, max(changed, later)
        return ((key, *one) for key, one in found.items())

    def by_key(self, key: str) -> tuple[SessionInfo, Gathering] | None:
        place = Path(key)
        files = sorted(place.parent.glob(f"session-*-{place.name}.jsonl"))
        info = next((info for path in files if (info := _info(path)) is not None), None)
        return None if info is None else (info, self._gather(files))

    def gather(self, session_id: str) -> Gathering | None:
        files = self._files(session_id)
        return self._gather(files) if files else None

    def spent(self, session_id: str) -> Usage:
        counting = self._counts[session_id] = self._counts.pop(session_id, _Count())
        while len(self._counts) > _MOST_COUNTED:
            del self._counts[next(iter(self._counts))]
        return counting.on(self._files(session_id))

    def _gather(self, files: list[Path]) -> Gathering:
        messages: dict[str, dict[str, Any]] = {}
        for path in files:
            for line in json_lines(path):
                for message_id, message in _messages(line):
                    messages.setdefault(message_id, {}).update(message)
        gathered = Gathering()
        listed = (mapping(call) for message in messages.values() for call in sequence(message.get("toolCalls")))
        calls: dict[str, Mapping[str, Any]] = {text(call.get("id")): call for call in listed}
        for message in sorted(messages.values(), key=lambda one: text(one.get("timestamp"))):
            _take(gathered, message, calls)
        return gathered


class _Count:
    """Usage of a session. Its files only grow, so each line is read once, at the end of every turn."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, int]] = {}
        """Identity of each file, and the position up to which it was read."""
        self._used: dict[str, Usage] = {}
        self._total = Usage()

    def on(self, files: list[Path]) -> Usage:
        for path in files:
            try:
                self._go_on(path)
            except OSError:
                continue
        return self._total

    def _go_on(self, path: Path) -> None:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            which, end = self._read.get(path, (status.st_ino, 0))
            if which != status.st_ino or status.st_size < end:
                end = 0  # it was written anew
            file.seek(end)
            for line in file:
                end += len(line) if line.endswith(b"\n") else 0
                for message_id, message in _messages(json_object(line) or {}):
                    self._take(message_id, _used(message))
            self._read[path] = status.st_ino, end

    def _take(self, message_id: str, used: Usage | None) -> None:
        if used is not None:
            self._total = self._total - self._used.get(message_id, Usage()) + used
            self._used[message_id] = used


def _messages(line: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the messages that a line adds or changes, with their ids."""
    for message in (*map(mapping, sequence(mapping(line.get("$set")).get("messages"))), line):
        if message_id := text(message.get("id")):
            yield message_id, message


def _used(message: Mapping[str, Any]) -> Usage | None:
    tokens = mapping(message.get("tokens"))
    if not tokens or message.get("type") == "user":
        return None
    thoughts = count(tokens.get("thoughts"))
    return Usage(
        input_tokens=count(tokens.get("input")),
        cached_input_tokens=count(tokens.get("cached")),
        output_tokens=count(tokens.get("output")) + thoughts,
        reasoning_output_tokens=thoughts,
    )


def _take(gathered: Gathering, message: Mapping[str, Any], calls: dict[str, Mapping[str, Any]]) -> None:
    at = timestamp(message.get("timestamp"))
    if message.get("type") == "user":
        for answer in (mapping(mapping(part).get("functionResponse")) for part in sequence(message.get("content"))):
            call = calls.pop(text(answer.get("id")), None)
            if call is not None:  # otherwise counted before: loading a session writes its answers again
                failed = "error" in mapping(answer.get("response"))
                gathered.called(text(answer.get("name")), mapping(call.get("args")), at, failed=failed)
        words = _words(message)
        if words:
            gathered.asked(words, at)
        return
    gathered.said(_words(message), at)
    used = _used(message)
    if used is not None:
        gathered.used(used, optional_text(message.get("model")), at)


def _words(message: Mapping[str, Any]) -> str:
    """Return the words of a message, without thoughts and without text of Gemini CLI or of a tool."""
    content = message.get("content")
    if isinstance(content, str):
        return "" if content.startswith(_CONTEXT) else content
    parts = [text(part.get("text")) for part in map(mapping, sequence(content)) if not part.get("thought")]
    return "\n".join(part for part in parts if part and not part.startswith(_CONTEXT))


def _header(path: Path) -> Mapping[str, Any]:
    return next(iter(json_lines(path)), {})


def _info(path: Path) -> SessionInfo | None:
    header = _header(path)
    session_id = text(header.get("sessionId"))
    if not session_id or header.get("kind") not in (None, "main"):
        return None
    first = next((words for line in json_lines(path) if line.get("type") == "user" and (words := _words(line))), None)
    if first is None:
        return None  # nothing was said in it
    try:
        directory: str | None = (path.parent.parent / ".project_root").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        directory = None
    return SessionInfo(
        session_id=session_id,
        agent="gemini",
        created_at=timestamp(header.get("startTime")),
        updated_at=changed_at(path),
        directory=directory,
        first_prompt=first,
        path=path,
    )
