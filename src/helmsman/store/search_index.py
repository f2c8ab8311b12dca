"""Full-text index of transcripts: one SQLite file in the state directory, readable by its user only.

The index is a reader of the log: the stamp of a session holds the cursor up to which it is indexed. Everything in it can be
read again, so nothing is repaired: a file that is damaged, or has another schema, is removed and built again. Texts are
redacted before they are indexed. Calls block; connections are short, so that many processes can share the file.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from helmsman.settings import ensure_state_dir
from helmsman.store.sqlite import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

INDEX_NAME: Final = "search.sqlite3"
_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
    CREATE TABLE session (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, stamp TEXT NOT NULL, updated REAL NOT NULL);
    CREATE INDEX newest ON session (updated);
    CREATE VIRTUAL TABLE transcript USING fts5 (about, text, tokenize = "unicode61 remove_diacritics 2");
"""
_BUSY_SECONDS: Final = 5.0
# From this version on FTS5 can overwrite deleted words. Earlier ones drop them when they merge the index.
_SECURE_DELETE_SINCE: Final = (3, 42)
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
"""Scripts without spaces between words. Each character is a word of the index, and a query becomes a phrase."""
# Separates words for the tokenizer, is invisible in a text, and is taken out again on reading.
_BLANK: Final = "\u200b"


class IndexedSession(NamedTuple):
    """Session to index. `stamp` changes when its transcript may have changed."""

    session_id: str
    stamp: str
    updated: float
    about: str
    text: str


class Hit(NamedTuple):
    """Session that matches; `read` returns its text and its description, and must be called before the next hit is
    requested.
    """

    session_id: str
    read: Callable[[], tuple[str, str]]


def has_full_text() -> bool:
    """Return whether this SQLite supports full-text search."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return bool(connection.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0])


class SearchIndex:
    """Index file. Every method raises `sqlite3.Error` or `OSError` if it cannot be used."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / INDEX_NAME

    def stamps(self) -> dict[str, str]:
        """Return the indexed sessions with their stamps."""
        with self._open() as connection:
            return dict(connection.execute("SELECT id, stamp FROM session"))

    def put(self, entries: Iterable[IndexedSession]) -> None:
        """Index sessions, as one transaction."""
        with self._open() as connection:
            for entry in entries:
                _forget(connection, entry.session_id)
                added = connection.execute("INSERT INTO session (id, stamp, updated) VALUES (?, ?, ?)", entry[:3])
                texts = _spaced(entry.about), _spaced(entry.text)
                connection.execute(
                    "INSERT INTO transcript (rowid, about, text) VALUES (?, ?, ?)", (added.lastrowid, *texts)
                )

    def forget(self, session_ids: Iterable[str]) -> None:
        """Delete sessions, and leave nothing of their words in the file."""
        if not self.path.exists():
            return
        with self._open() as connection:
            for session_id in session_ids:
                _forget(connection, session_id)
            if sqlite3.sqlite_version_info < _SECURE_DELETE_SINCE:
                connection.execute("INSERT INTO transcript (transcript) VALUES ('optimize')")
        with self._open() as connection:
            # The write-ahead log still has the deleted pages.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def find(self, match: str) -> Iterator[Hit]:
        """Yield the sessions that match, newest first."""
        with self._open() as connection:
            found = connection.execute(
                "SELECT number, id FROM session "
                "WHERE number IN (SELECT rowid FROM transcript WHERE transcript MATCH ?) ORDER BY updated DESC",
                (match,),
            )
            for number, session_id in found:
                yield Hit(session_id, partial(_texts, connection, number))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        ensure_state_dir(self.path.parent)
        try:
            connection = self._connect()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode not in DAMAGED:
                raise
            self._remove()
            connection = self._connect()
        with closing(connection):
            try:
                with connection:
                    yield connection
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode in DAMAGED:
                    self._remove()  # the next search rebuilds it
                raise

    def _connect(self) -> sqlite3.Connection:
        with suppress(FileExistsError):
            # SQLite would create it with the permissions of the umask. Its companions get those of this file.
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # A power cut may cost the newest commits, which are indexed again.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
            if _version(connection) != _SCHEMA_VERSION:
                self._begin_anew(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_anew(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            if _version(connection) == _SCHEMA_VERSION:
                return  # another process was faster
            for table in ("transcript", "session"):
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            if sqlite3.sqlite_version_info >= _SECURE_DELETE_SINCE:
                connection.execute("INSERT INTO transcript (transcript, rank) VALUES ('secure-delete', 1)")
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    def _remove(self) -> None:
        for end in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _texts(connection: sqlite3.Connection, number: int) -> tuple[str, str]:
    text, about = connection.execute("SELECT text, about FROM transcript WHERE rowid = ?", (number,)).fetchone()
    return text.replace(_BLANK, ""), about.replace(_BLANK, "")


def _forget(connection: sqlite3.Connection, session_id: str) -> None:
    row = connection.execute("SELECT number FROM session WHERE id = ?", (session_id,)).fetchone()
    if row is not None:
        connection.execute("DELETE FROM transcript WHERE rowid = ?", row)
        connection.execute("DELETE FROM session WHERE number = ?", row)


def _spaced(text: str) -> str:
    return _UNSPACED.sub(rf"{_BLANK}\g<0>{_BLANK}", text)


def match_of(words: Iterable[tuple[str, bool]]) -> str:
    """Words as SQLite looks for them: all of them, in any order. Each is given with whether it may be a beginning."""
    return " AND ".join(
        '"' + _spaced(word).replace('"', '""') + '"' + ("*" if may_go_on else "") for word, may_go_on in words
    )
