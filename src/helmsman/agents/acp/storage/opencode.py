"""Sessions of OpenCode: SQLite databases, read beside the OpenCode that may be writing them.

Sessions that were begun in OpenCode itself share `opencode.db`. Each session of Helmsman has a directory with a database,
which its sandbox may write: its contents are not trusted, and count for that session only. A file `<session>.place`
beside the directories names the one of a session.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.agents.acp.storage.reader import Gathering, SessionReader, is_id, used_in
from helmsman.agents.protocol import SessionInfo
from helmsman.base.files import replace_file, size_and_time
from helmsman.base.json_values import amount, count, integer, json_object, mapping, optional_text, text
from helmsman.errors import InvalidInput
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SESSIONS = "select id, title, directory, parent_id, version, time_created, time_updated, time_archived from session"
_BUSY_SECONDS = 2.0
_QUERY_SECONDS = 5.0
_INSTRUCTIONS = 10_000
"""Steps of SQLite between two looks at the clock."""
_DATABASE = "opencode.db"
_PLACE = ".place"
_ABANDONED_SECONDS = 86400.0


def place_of(places: Path, session_id: str) -> Path | None:
    """Return the directory with the database of a session; None if it has none to itself. Blocks, briefly."""
    if not is_id(session_id):
        return None
    try:
        return places / (places / f"{session_id}{_PLACE}").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None


def name_place(place: Path, session_id: str) -> None:
    """Note which session has its database in a directory, and remove those that no session has. Blocks, briefly."""
    if is_id(session_id):
        replace_file(place.with_name(f"{session_id}{_PLACE}"), place.name)
    named = set(_places(place.parent).values())
    for other in place.parent.iterdir():
        if other.is_dir() and other not in named and time.time() - other.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)


def _places(places: Path) -> dict[str, Path]:
    found = {path.stem: place_of(places, path.stem) for path in places.glob(f"*{_PLACE}")}
    return {session_id: place for session_id, place in found.items() if place is not None}


def forget_permissions(place: Path) -> None:
    """Remove approvals from the database of a session. Helmsman gives none that last, so a command has written them.

    Raises:
        InvalidInput: A command has changed the database itself.
    """
    if not (place / _DATABASE).exists():
        return
    try:
        with _opened(place / _DATABASE, "rw") as connection, connection:
            if connection.execute("select 1 from sqlite_master where type in ('trigger', 'view')").fetchall():
                raise sqlite3.DatabaseError("it has triggers or views")
            for table, change in _PERMISSIONS.items():
                if any(row[1] == "permission" or table == "permission" for row in _columns(connection, table)):
                    connection.execute(change)
    except sqlite3.Error as error:
        raise InvalidInput(
            f"The database of this OpenCode session at {place} is damaged, or a command has changed it: {error}. "
            "Start a new session."
        ) from error


_PERMISSIONS = {"permission": "delete from permission", "session": "update session set permission = null"}


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute("select * from pragma_table_info(?)", (table,)).fetchall()


@contextmanager
def _opened(database: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Open a database that a command may have written: it leads to no other file, and no query takes for ever."""
    if any(path.is_symlink() for path in (database, *(Path(f"{database}-{one}") for one in ("wal", "shm", "journal")))):
        raise sqlite3.DatabaseError("it has links")
    # Not `immutable`, which would miss rows in the log that OpenCode has not written back yet.
    address = f"{database.absolute().as_uri()}?mode={mode}"
    until = time.monotonic() + _QUERY_SECONDS
    with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
        connection.execute("pragma trusted_schema = off")
        connection.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
        yield connection


class OpenCodeReader(SessionReader):
    """See `helmsman.agents.acp.storage.reader.SessionReader`."""

    def __init__(self, database: Path, places: Path) -> None:
        self.home = self._database = database
        self._places = places
        self._known: dict[Path, tuple[tuple[int, int], list[SessionInfo]]] = {}

    def sessions(self) -> Iterator[SessionInfo]:
        own = _places(self._places)
        yield from (info for info in self._infos(self._database) if info.session_id not in own)
        for session_id, place in own.items():
            database = place / _DATABASE
            stamp, known = _stamp(database), self._known.get(database)
            if known is None or known[0] != stamp:
                known = self._known[database] = stamp, self._infos(database)
            yield from (info for info in known[1] if session_id in (info.session_id, info.parent_id))

    def find(self, session_id: str) -> SessionInfo | None:
        found = self._infos(self._database_of(session_id), " where id = ?", session_id)
        return next(iter(found), None)

    def _database_of(self, session_id: str) -> Path:
        place = place_of(self._places, session_id)
        return self._database if place is None else place / _DATABASE

    def gather(self, session_id: str) -> Gathering | None:
        if self.find(session_id) is None:
            return None
        gathered = Gathering()
        parts: dict[str, list[Mapping[str, Any]]] = {}
        for message_id, data in self._rows(
            session_id, "select message_id, data from part where session_id = ? order by id"
        ):
            parts.setdefault(message_id, []).append(json_object(text(data)) or {})
        query = "select id, time_created, data from message where session_id = ? order by time_created, id"
        for message_id, created, data in self._rows(session_id, query):
            _take(gathered, json_object(text(data)) or {}, parts.get(message_id, []), _time(created))
        return gathered

    def spent(self, session_id: str) -> Usage:
        found = self.by_key(session_id)
        return Usage() if found is None else used_in(found[1].turns)

    def stamps(self) -> Iterator[tuple[str, int, int]]:
        own = _places(self._places)
        query = "select session_id, count(*), max(time_updated) from message group by session_id"
        for session_id, messages, changed in _read(self._database, query):
            if session_id not in own:
                yield session_id, messages, 1_000_000 * changed
        yield from ((session_id, *_stamp(place / _DATABASE)) for session_id, place in own.items())

    def by_key(self, key: str) -> tuple[SessionInfo, Gathering] | None:
        info, gathered = self.find(key), Gathering()
        query = "select time_created, data from message where session_id = ? order by time_created, id"
        for created, data in self._rows(key, query):  # without messages and tool calls, which may be large
            _take(gathered, json_object(text(data)) or {}, [], _time(created))
        return None if info is None else (info, gathered)

    def _rows(self, session_id: str, query: str) -> list[tuple[Any, ...]]:
        return _read(self._database_of(session_id), query, session_id)

    def _infos(self, database: Path, where: str = "", *values: str) -> list[SessionInfo]:
        return [_info(database, row) for row in _read(database, _SESSIONS + where, *values)]


def _read(database: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        with _opened(database, "ro") as connection:
            return connection.execute(query, values).fetchall()
    except sqlite3.Error:  # no database, or one of another version
        return []


def _stamp(database: Path) -> tuple[int, int]:
    """Return the size of a database with its log, and when it changed."""
    stamps = [size_and_time(path) for path in (database, Path(f"{database}-wal")) if path.exists()]
    return sum(size for size, _ in stamps), max((changed for _, changed in stamps), default=0)


def _info(database: Path, row: tuple[Any, ...]) -> SessionInfo:
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
        path=database,
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
