"""Sessions of Qwen Code: `~/.qwen/projects/<directory>/chats/<id>.jsonl`, a record a line."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.agents.acp.storage.reader import Gathering, SeenFiles, SessionReader, is_id, json_lines
from helmsman.agents.protocol import SessionInfo
from helmsman.agents.transcripts import OneFile
from helmsman.base.files import changed_at, replace_file, size_and_time
from helmsman.base.json_values import count, json_object_in, mapping, optional_text, sequence, text, timestamp
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from helmsman.agents.transcripts import PlacedTranscript, TranscriptPart


class QwenReader(SessionReader):
    """See `helmsman.agents.acp.storage.reader.SessionReader`."""

    def __init__(self, projects: Path) -> None:
        self.home = self._projects = projects
        self._seen = SeenFiles(_info)

    def sessions(self) -> Iterator[SessionInfo]:
        found = (self._seen.get(path) for path in self._projects.glob("*/chats/*.jsonl"))
        return (info for info in found if info is not None)

    def find(self, session_id: str) -> SessionInfo | None:
        path = self._file(session_id)
        return None if path is None else self._seen.get(path)

    def _file(self, session_id: str) -> Path | None:
        return next(self._projects.glob(f"*/chats/{session_id}.jsonl"), None) if is_id(session_id) else None

    def stamps(self) -> Iterator[tuple[str, int, int]]:
        return ((str(path), *size_and_time(path)) for path in self._projects.glob("*/chats/*.jsonl"))

    def by_key(self, key: str) -> tuple[SessionInfo, Gathering] | None:
        info = _info(Path(key))
        return None if info is None else (info, self._gather(Path(key)))

    def gather(self, session_id: str) -> Gathering | None:
        path = self._file(session_id)
        return None if path is None else self._gather(path)

    def _gather(self, path: Path) -> Gathering:
        gathered = Gathering()
        for line in json_lines(path):
            at, parts = timestamp(line.get("timestamp")), _parts(line)
            if line.get("type") == "user":
                gathered.asked(_words(parts), at)
            elif line.get("type") == "assistant":
                for part in parts:
                    called = mapping(part.get("functionCall"))
                    if called:
                        gathered.called(text(called.get("name")), mapping(called.get("args")), at)
                gathered.said(_words(parts), at)
                _count(gathered, line)
        return gathered


def _count(gathered: Gathering, line: Mapping[str, Any]) -> None:
    counts = mapping(line.get("usageMetadata"))
    if not counts:
        return
    usage = Usage(
        input_tokens=count(counts.get("promptTokenCount")),
        cached_input_tokens=count(counts.get("cachedContentTokenCount")),
        output_tokens=count(counts.get("candidatesTokenCount")),
        reasoning_output_tokens=count(counts.get("thoughtsTokenCount")),
    )
    gathered.used(usage, optional_text(line.get("model")), timestamp(line.get("timestamp")))


class QwenTranscripts(OneFile):
    """Sessions that are carried. Qwen loads one only where its first record was written, or where this file says it is."""

    def place(
        self, session_id: str, parts: Iterable[TranscriptPart], *, directory: Path, away: Path
    ) -> PlacedTranscript:
        placed = super().place(session_id, parts, directory=directory, away=away)
        for file in self.files(session_id):
            status = {
                "schema_version": 1,
                "pid": os.getpid(),
                "session_id": session_id,
                "work_dir": str(directory.resolve()),
                "hostname": platform.node(),
                "started_at": time.time(),
                "qwen_version": None,
            }
            replace_file(_status_of(file.path), json.dumps(status))
        return placed


def _status_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.runtime.json")


def _moved_to(path: Path) -> str | None:
    """Return the directory of a session that was begun elsewhere."""
    return optional_text((json_object_in(_status_of(path)) or {}).get("work_dir"))


def _parts(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [mapping(part) for part in sequence(mapping(line.get("message")).get("parts"))]


def _words(parts: list[Mapping[str, Any]]) -> str:
    return "\n".join(text(part.get("text")) for part in parts if part.get("text") and not part.get("thought"))


def _info(path: Path) -> SessionInfo | None:
    first = next((line for line in json_lines(path) if line.get("type") == "user"), None)
    if first is None:
        return None
    return SessionInfo(
        session_id=text(first.get("sessionId")) or path.stem,
        agent="qwen",
        created_at=timestamp(first.get("timestamp")),
        updated_at=changed_at(path),
        directory=_moved_to(path) or optional_text(first.get("cwd")),
        first_prompt=_words(_parts(first)),
        engine_version=optional_text(first.get("version")),
        path=path,
    )
