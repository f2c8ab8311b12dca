"""Sessions of OpenCode: a SQLite database, read beside the OpenCode that may be writing it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from helmsman.agents.acp.storage.reader import Gathering, SessionReader, used_in
from helmsman.agents.protocol import SessionInfo
from helmsman.base.json_values import amount, count, integer, json_object, mapping, optional_text, text
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SESSIONS = "select id, title, directory, parent_id, version, time_created, time_updated, time_archived from session"
_BUSY_SECONDS = 2.0


class OpenCodeReader(SessionReader):
    """See `helmsman.agents.acp.storage.reader.SessionReader`."""

    def __init__(self, database: Path) -> None:
        self.home = self._database = database

    def sessions(self) -> Iterator[SessionInfo]:
        return iter([self._info(row) for row in self._rows(_SESSIONS)])

    def find(self, session_id: str) -> SessionInfo | None:
        rows = self._rows(_SESSIONS + " where id = ?", session_id)
        return next((self._info(row) for row in rows), None)

    def gather(self, session_id: str) -> Gathering | None:
        if self.find(session_id) is None:
            return None
        gathered = Gathering()
        parts: dict[str, list[Mapping[str, Any]]] = {}
        for message_id, data in self._rows(
            "select message_id, data from part where session_id = ? order by id", session_id
        ):
            parts.setdefault(message_id, []).append(json_object(text(data)) or {})
        query = "select id, time_created, data from message where session_id = ? order by time_created, id"
        for message_id, created, data in self._rows(query, session_id):
            _take(gathered, json_object(text(data)) or {}, parts.get(message_id, []), _time(created))
        return gathered

    def spent(self, session_id: str) -> Usage:
        found = self.by_key(session_id)
        return Usage() if found is None else used_in(found[1].turns)

    def stamps(self) -> Iterator[tuple[str, int, int]]:
        query = "select session_id, count(*), max(time_updated) from message group by session_id"
        return ((session_id, count, 1_000_000 * changed) for session_id, count, changed in self._rows(query))

    def by_key(self, key: str) -> tuple[SessionInfo, Gathering] | None:
        info, gathered = self.find(key), Gathering()
        query = "select time_created, data from message where session_id = ? order by time_created, id"
        for created, data in self._rows(query, key):  # without the content of messages, which may be large
            _take(gathered, json_object(text(data)) or {}, [], _time(created))
        return None if info is None else (info, gathered)

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            with self._open() as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.Error:  # missing, or written by another version
            return []

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # Not `immutable`, which would miss content that OpenCode has not yet written back from its log.
        address = f"{self._database.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
            yield connection

    def _info(self, row: tuple[Any, ...]) -> SessionInfo:
        session_id, title, directory, parent, version, created, updated, archived = row
        return SessionInfo(
            session_id=session_id,
            agent="opencode",
            created_at=_time(created),
            updated_at=_time(updated),
            directory=optional_text(directory),
            name=optional_text(title),
            parent_id=optional_text(parent),
            engine_version=optional_text(version),
            archived=archived is not None,
            path=self._database,
        )


def _take(gathered: Gathering, message: Mapping[str, Any], parts: list[Mapping[str, Any]], at: datetime) -> None:
    said = "\n".join(text(part.get("text")) for part in parts if part.get("type") == "text")
    if message.get("role") == "user":
        gathered.asked(said, at)
        return
    for part in parts:
        if part.get("type") == "tool":
            state = mapping(part.get("state"))
            gathered.called(
                text(part.get("tool")),
                mapping(state.get("input")),
                at,
                output=text(state.get("output")),
                exit_code=integer(mapping(state.get("metadata")).get("exit")),
                failed=state.get("status") != "completed",
            )
    gathered.said(said, at)
    if mapping(message.get("error")).get("name") == "MessageAbortedError":
        gathered.cut_off()
    tokens = mapping(message.get("tokens"))
    if tokens:
        cache = mapping(tokens.get("cache"))
        read, thoughts = count(cache.get("read")), count(tokens.get("reasoning"))
        usage = Usage(
            input_tokens=count(tokens.get("input")) + read + count(cache.get("write")),
            cached_input_tokens=read,
            output_tokens=count(tokens.get("output")) + thoughts,
            reasoning_output_tokens=thoughts,
            cost_usd=amount(message.get("cost")) or None,  # 0 where it knows no price
        )
        gathered.used(usage, optional_text(message.get("modelID")), at)


def _time(milliseconds: object) -> datetime:
    return datetime.fromtimestamp((integer(milliseconds) or 0) / 1000, UTC)
