"""Sessions of Copilot: `~/.copilot/session-state/<id>/` with `workspace.yaml` (a line for each field) and `events.jsonl`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from helmsman.agents.acp.storage.reader import Gathering, SeenFiles, SessionReader, is_id, json_lines
from helmsman.agents.protocol import SessionInfo
from helmsman.base.files import changed_at, size_and_time
from helmsman.base.json_values import count, integer, mapping, optional_text, text, timestamp
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_HEAD = "workspace.yaml"
_EVENTS = "events.jsonl"


class CopilotReader(SessionReader):
    """See `helmsman.agents.acp.storage.reader.SessionReader`."""

    def __init__(self, states: Path) -> None:
        self.home = self._states = states
        self._seen = SeenFiles(_info)

    def sessions(self) -> Iterator[SessionInfo]:
        found = (self._seen.get(path) for path in self._states.glob(f"*/{_HEAD}"))
        return (info for info in found if info is not None)

    def find(self, session_id: str) -> SessionInfo | None:
        return self._seen.get(self._states / session_id / _HEAD) if is_id(session_id) else None

    def stamps(self) -> Iterator[tuple[str, int, int]]:
        return ((events.parent.name, *size_and_time(events)) for events in self._states.glob(f"*/{_EVENTS}"))

    def by_key(self, key: str) -> tuple[SessionInfo, Gathering] | None:
        info, gathered = self.find(key), self.gather(key)
        return None if info is None or gathered is None else (info, gathered)

    def gather(self, session_id: str) -> Gathering | None:
        if not is_id(session_id):
            return None
        events = self._states / session_id / _EVENTS
        if not events.exists():
            return None
        gathered = Gathering()
        calls: dict[str, Mapping[str, Any]] = {}
        for event in json_lines(events):
            at, data = timestamp(event.get("timestamp")), mapping(event.get("data"))
            match event.get("type"):
                case "user.message":
                    gathered.asked(text(data.get("content")), at)
                case "assistant.message":
                    gathered.said(text(data.get("content")), at)
                case "tool.execution_start":
                    calls[text(data.get("toolCallId"))] = data
                case "tool.execution_complete":
                    started = calls.pop(text(data.get("toolCallId")), {})
                    gathered.called(
                        text(started.get("toolName")),
                        mapping(started.get("arguments")),
                        at,
                        output=text(mapping(data.get("result")).get("content")).rpartition("\n<shellId:")[0],
                        exit_code=integer(mapping(data.get("shellExecution")).get("exitCode")),
                        failed=data.get("success") is False,
                    )
                case "session.usage_record":
                    _count(gathered, mapping(data.get("usage")), event)
                case "abort":
                    gathered.cut_off()
                case _:
                    pass
        return gathered


def _count(gathered: Gathering, counts: Mapping[str, Any], event: Mapping[str, Any]) -> None:
    usage = Usage(
        input_tokens=count(counts.get("inputTokens")),
        cached_input_tokens=count(counts.get("cacheReadTokens")),
        output_tokens=count(counts.get("outputTokens")),
        reasoning_output_tokens=count(counts.get("reasoningTokens")),
    )
    gathered.used(usage, optional_text(counts.get("model")), timestamp(event.get("timestamp")))


def _info(path: Path) -> SessionInfo | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    fields = {name: _value(value) for name, colon, value in (line.partition(": ") for line in lines) if colon}
    if not fields.get("id"):
        return None
    return SessionInfo(
        session_id=fields["id"],
        agent="copilot",
        created_at=timestamp(fields.get("created_at")),
        updated_at=timestamp(fields.get("updated_at")) or changed_at(path),
        directory=fields.get("cwd"),
        name=fields.get("name"),
        originator=fields.get("client_name"),
        path=path.parent / _EVENTS,
    )


def _value(written: str) -> str:
    written = written.strip()
    if written.startswith('"'):
        try:
            return text(json.loads(written))
        except ValueError:
            return written
    return written[1:-1].replace("''", "'") if len(written) > 1 and written[0] == written[-1] == "'" else written
