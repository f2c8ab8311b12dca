"""Store in an SQLite file, which all Helmsman processes of a user share.

A file that was removed is created again, and a damaged one is moved away. One process at a time opens the file.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import threading
import time
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from helmsman.base.files import file_identity, file_lock
from helmsman.errors import RegistryUnavailable
from helmsman.settings import ensure_state_dir
from helmsman.store import schema
from helmsman.store.database import Database, Size
from helmsman.store.leases import HUB, newest_epoch
from helmsman.store.schema import missing_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Fence

log = logging.getLogger(__name__)

T = TypeVar("T")

_BUSY_SECONDS: Final = 5.0
"""Time that SQLite waits for another process. Some of its steps do not wait: those are retried here."""
_PATIENCE_SECONDS: Final = 20.0
"""Transactions take a millisecond: a process that holds the file for this long is stuck."""
_RETRY_SECONDS: Final = 0.02

# SQLite reports a race between processes that open a WAL file as SQLITE_PROTOCOL.
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "Make room on its disk.",
    sqlite3.SQLITE_IOERR: "Make room on its disk, or check the disk.",
    sqlite3.SQLITE_READONLY: "Make it writable, or set HELMSMAN_STATE_DIR to a directory that is.",
    sqlite3.SQLITE_PERM: "Make it writable, or set HELMSMAN_STATE_DIR to a directory that is.",
    sqlite3.SQLITE_CANTOPEN: "Make it writable, or set HELMSMAN_STATE_DIR to a directory that is.",
    sqlite3.SQLITE_CORRUPT: "See what is damaged: helmsman hub store check",
    sqlite3.SQLITE_NOTADB: "See what is damaged: helmsman hub store check",
}
_PAGES_AT_ONCE: Final = 1000
_MOST_PROBLEMS: Final = 20
COMPANIONS: Final = ("", "-wal", "-shm")
"""Suffixes of the files of a database in WAL mode."""


def _value(connection: SqliteConnection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])


def _needs_shared_memory(place: str) -> bool:
    """Return whether the file cannot be read because its companion cannot be made: the disk is full or read-only."""
    try:
        with closing(sqlite3.connect(place, timeout=_BUSY_SECONDS, uri=True)) as connection:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        return _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
    return False


def _unavailable(path: Path, error: sqlite3.Error) -> RegistryUnavailable:
    code = _code(error)
    advice = "Try again in a moment." if code in _BUSY else _ADVICE.get(code, "Check its disk.")
    return RegistryUnavailable(f"The store {path} cannot be used: {error}. {advice}")


class SqliteDialect:
    """Expressions that differ from Postgres."""

    now: Final = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    row_lock: Final = ""
    """Its transactions have no other writers."""

    def byte_count(self, column: str) -> str:
        return f"length(CAST({column} AS BLOB))"

    def is_damage(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.Error) and _code(error) in DAMAGED


def _code(error: sqlite3.Error) -> int:
    # Extended codes have their group in the low byte.
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


class SqliteConnection(sqlite3.Connection):
    """Connection with its dialect."""

    dialect: ClassVar[SqliteDialect] = SqliteDialect()


class SqliteDatabase(Database):
    """Connection that the threads of this process share."""

    def __init__(self, path: Path, fence: Fence | None = None) -> None:
        super().__init__(fence)
        self.path = path
        self._lock = threading.Lock()
        self._connection: SqliteConnection | None = None
        self._identity: tuple[int, int] | None = None
        self._times_opened = 0

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self, work: Callable[[SqliteConnection], T]) -> T:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            raise self._unavailable("it is busy", "Try again in a moment.")
        try:
            damage: sqlite3.Error | None = None
            is_aside = False
            while True:
                try:
                    if damage is not None and not is_aside:
                        self._put_aside(damage)
                        is_aside = True
                    return work(self._connected())
                except sqlite3.Error as error:
                    code = _code(error)
                    if code in _BUSY and time.monotonic() < deadline:
                        time.sleep(random.uniform(0, _RETRY_SECONDS))  # noqa: S311 - only spreads the retries
                    elif code in DAMAGED and damage is None:
                        damage = error
                    else:
                        raise _unavailable(self.path, error) from error
                except TimeoutError as error:
                    raise self._unavailable("another process holds it", "Try again in a moment.") from error
                except OSError as error:
                    advice = _ADVICE[sqlite3.SQLITE_CANTOPEN]
                    raise self._unavailable(error.strerror or str(error), advice) from error
        finally:
            self._lock.release()

    def _write(self, work: Callable[[SqliteConnection], T]) -> T:
        def admitted(connection: SqliteConnection) -> T:
            if self._fence is not None:
                self._admit(newest_epoch(connection, HUB))
            return work(connection)

        return self.read(lambda connection: _transaction(connection, admitted))

    def version(self) -> tuple[int, ...]:
        def work(connection: SqliteConnection) -> tuple[int, ...]:
            # The pragma leaves out commits of this connection.
            by_others = int(connection.execute("PRAGMA data_version").fetchone()[0])
            return self._times_opened, by_others, connection.total_changes

        return self.read(work)

    def version_of_others(self) -> tuple[int, ...] | None:
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._connection is None or self._identity != file_identity(self.path):
                return None
            return self._times_opened, int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return None
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _unavailable(self, reason: str, advice: str) -> RegistryUnavailable:
        return RegistryUnavailable(f"The store {self.path} cannot be used: {reason}. {advice}")

    # --- upkeep ------------------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[SqliteConnection]:
        place = f"{self.path.absolute().as_uri()}?mode=ro"
        log_file = self.path.with_name(f"{self.path.name}-wal")
        if _needs_shared_memory(place) and not (log_file.exists() and log_file.stat().st_size):
            place += "&immutable=1"  # no process has written to it that has not closed it, and on this disk none can
        try:
            with closing(
                sqlite3.connect(place, _BUSY_SECONDS, uri=True, check_same_thread=False, factory=SqliteConnection)
            ) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute("BEGIN")
                yield connection
        except sqlite3.Error as error:
            raise _unavailable(self.path, error) from error

    def size(self) -> Size:
        files = (self.path.with_name(self.path.name + companion) for companion in COMPANIONS)
        taken = sum(file.stat().st_size for file in files if file.exists())
        with self.snapshot() as connection:
            return Size(taken, _value(connection, "PRAGMA freelist_count") * _value(connection, "PRAGMA page_size"))

    def damage(self, connection: StoreConnection) -> tuple[str, ...]:
        found = (row[0] for row in connection.execute(f"PRAGMA quick_check({_MOST_PROBLEMS})"))
        return tuple(problem for problem in found if problem != "ok")

    def reclaim(self) -> None:
        def some(connection: SqliteConnection) -> bool:
            before = _value(connection, "PRAGMA freelist_count")
            # The pragma frees pages while its rows are fetched.
            connection.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
            return _value(connection, "PRAGMA freelist_count") < before

        while self.read(some):
            pass
        # The file shrinks only when the write-ahead log is copied into it.
        self.read(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connected(self) -> SqliteConnection:
        if self._connection is not None and self._identity == file_identity(self.path):
            return self._connection
        self._disconnect()  # the file was removed or replaced
        ensure_state_dir(self.path.parent)
        with self._opening():
            return self._open()

    def _opening(self) -> AbstractContextManager[None]:
        """Lock the opening and moving of the file: stale companion files would corrupt a new one."""
        return file_lock(self.path.with_name(f"{self.path.name}.lock"), timeout=_PATIENCE_SECONDS)

    def _open(self) -> SqliteConnection:
        # Made here because SQLite would let others read it; its companions get the same mode. One that exists is left alone:
        # closing it would give back the locks of every other connection that this process has to it.
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self.path.chmod(0o600)
        self._identity = file_identity(self.path)
        connection = sqlite3.connect(
            self.path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=SqliteConnection
        )
        try:
            connection.row_factory = sqlite3.Row
            if connection.execute("PRAGMA page_count").fetchone()[0] == 0:  # later it cannot be changed
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a power cut loses nothing that was acknowledged
            connection.execute("PRAGMA secure_delete = ON")  # nothing of a deleted transcript stays in free pages
            _migrate(connection)
            if self._fence is not None:
                self._fence.enter(connection, self.lease_seconds)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._times_opened += 1
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _put_aside(self, error: sqlite3.Error) -> None:
        """Move a damaged file out of the way, once, however many processes find it damaged at the same time."""
        self._disconnect()
        with self._opening():
            # Another process has moved it.
            if file_identity(self.path) != self._identity:
                return
            name = f"{self.path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
            log.error("The store %s is damaged (%s): kept as %s, and a new one begun.", self.path, error, name)
            for companion in COMPANIONS:
                with suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + companion).rename(self.path.with_name(name + companion))


def _migrate(connection: SqliteConnection) -> None:
    """Migrate a file to the current version. A concurrent process finds the work done."""

    def missing() -> tuple[tuple[str, ...], ...]:
        return missing_versions(int(connection.execute("PRAGMA user_version").fetchone()[0]))

    def work(_: SqliteConnection) -> None:
        for statements in missing():
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {schema.CURRENT}")

    if missing():
        _transaction(connection, work)


def _transaction(connection: SqliteConnection, work: Callable[[SqliteConnection], T]) -> T:
    """Run `work` while no other connection can write."""
    # A transaction that begins by reading would fail, instead of waiting, if another one writes meanwhile.
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise
    return result
