"""The SQLite file of the store: opened when it is first needed, and shared by all Helmsman processes of a user.

`Database.read` and `Database.write` run a function on the connection, `write` as one transaction. They wait while
another process writes, reopen a file that was removed, put a damaged one aside, and turn every other error of SQLite into
`RegistryUnavailable`. They may run a function again, so functions do nothing but SQL.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from helmsman.base.files import file_identity, file_lock
from helmsman.base.structs import Value
from helmsman.errors import RegistryUnavailable
from helmsman.settings import ensure_state_dir
from helmsman.store.schema import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

T = TypeVar("T")

_BUSY_SECONDS: Final = 5.0
"""How long SQLite itself waits for another process. Some of its steps do not wait at all: those are tried again here."""
_PATIENCE_SECONDS: Final = 20.0
"""Transactions take a millisecond: whoever holds the file for this long is stuck."""
_RETRY_SECONDS: Final = 0.02

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "Make room on its disk.",
    sqlite3.SQLITE_IOERR: "Make room on its disk, or check the disk.",
    sqlite3.SQLITE_READONLY: "Make it writable, or set HELMSMAN_STATE_DIR to a directory that is.",
    sqlite3.SQLITE_PERM: "Make it writable, or set HELMSMAN_STATE_DIR to a directory that is.",
    sqlite3.SQLITE_CANTOPEN: "Make it writable, or set HELMSMAN_STATE_DIR to a directory that is.",
    sqlite3.SQLITE_CORRUPT: "See what is damaged: helmsman store check",
    sqlite3.SQLITE_NOTADB: "See what is damaged: helmsman store check",
}
COMPANIONS: Final = ("", "-wal", "-shm")
"""A database in WAL mode is up to three files."""


class Fence(Value, frozen=True):
    """Keeps a hub that was replaced from writing: the file knows the newest epoch there was, and takes nothing of an older.

    `on_refused` is called, on whichever thread writes, when that happens; it need not return.
    """

    epoch: int
    on_refused: Callable[[int], object]

    def enter(self, connection: sqlite3.Connection) -> None:
        """From now on nothing is taken of hubs that were there before."""
        connection.execute("UPDATE hub SET epoch = ? WHERE epoch < ?", (self.epoch, self.epoch))

    def check(self, connection: sqlite3.Connection) -> None:
        newest = int(connection.execute("SELECT epoch FROM hub").fetchone()[0])
        if newest > self.epoch:
            self.on_refused(newest)
            raise RegistryUnavailable(
                f"A later hub (epoch {newest}) has replaced this one (epoch {self.epoch}). Ask that one instead."
            )


def newest_epoch(path: Path) -> int:
    """The epoch of the newest hub that has used this file; 0 where nobody has, or it cannot be read. Blocks."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", timeout=_BUSY_SECONDS, uri=True)) as connection:
            return int(connection.execute("SELECT epoch FROM hub").fetchone()[0])
    except (sqlite3.Error, TypeError, ValueError):
        return 0


@contextmanager
def opened_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file as it is at this moment. Nothing is changed, and a damaged one is not put aside.

    Raises:
        RegistryUnavailable: It cannot be read.
    """
    place = f"{path.absolute().as_uri()}?mode=ro"
    log_file = path.with_name(f"{path.name}-wal")
    if _needs_shared_memory(place) and not (log_file.exists() and log_file.stat().st_size):
        place += "&immutable=1"  # no process has written to it that has not closed it, and on this disk none can
    try:
        with closing(sqlite3.connect(place, timeout=_BUSY_SECONDS, uri=True, check_same_thread=False)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise _unavailable(path, error) from error


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


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error says that the file is damaged."""
    return _code(error) in DAMAGED


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


class Database:
    """One connection that the threads of this process take turns with."""

    def __init__(self, path: Path, *, fence: Fence | None = None) -> None:
        self.path = path
        self._fence = fence
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._times_opened = 0

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` finds.

        Raises:
            RegistryUnavailable: The file cannot be read.
        """
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
                        time.sleep(random.uniform(0, _RETRY_SECONDS))  # noqa: S311 - only so that not all come back at once
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

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` returns; all it wrote is there, for every process, or nothing.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """

        def fenced(connection: sqlite3.Connection) -> T:
            if self._fence is not None:
                self._fence.check(connection)
            return work(connection)

        return self.read(lambda connection: transaction(connection, fenced))

    def version(self) -> tuple[int, int, int]:
        """Different whenever anything may have changed since, in this process or another. Costs microseconds."""

        def work(connection: sqlite3.Connection) -> tuple[int, int, int]:
            by_others = int(connection.execute("PRAGMA data_version").fetchone()[0])
            return self._times_opened, by_others, connection.total_changes

        return self.read(work)

    def version_of_others(self) -> tuple[int, int] | None:
        """Different whenever anybody but this connection may have changed anything. Never waits: None where it would."""
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
        """Let go of the file. A later call opens it again."""
        with self._lock:
            self._disconnect()

    def _unavailable(self, reason: str, advice: str) -> RegistryUnavailable:
        return RegistryUnavailable(f"The store {self.path} cannot be used: {reason}. {advice}")

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and self._identity == file_identity(self.path):
            return self._connection
        self._disconnect()  # the file is not there any more, or another one is
        ensure_state_dir(self.path.parent)
        with self._opening():
            return self._open()

    def _opening(self) -> AbstractContextManager[None]:
        """One process at a time opens the file or moves it: the companions of a file that is being replaced would ruin
        the new one.
        """
        return file_lock(self.path.with_name(f"{self.path.name}.lock"), timeout=_PATIENCE_SECONDS)

    def _open(self) -> sqlite3.Connection:
        # Made here because SQLite would let others read it; its companions get the same mode. One that exists is left alone:
        # closing it would give back the locks of every other connection that this process has to it.
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self.path.chmod(0o600)
        self._identity = file_identity(self.path)
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            if connection.execute("PRAGMA page_count").fetchone()[0] == 0:  # later it cannot be changed
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a power cut loses nothing that was acknowledged
            connection.execute("PRAGMA secure_delete = ON")  # nothing of a deleted transcript stays in free pages
            migrate(connection)
            if self._fence is not None:
                self._fence.enter(connection)
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
            if file_identity(self.path) != self._identity:
                return
            name = f"{self.path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
            log.error("The store %s is damaged (%s): kept as %s, and a new one begun.", self.path, error, name)
            for companion in COMPANIONS:
                with suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + companion).rename(self.path.with_name(name + companion))


def transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` with everybody else kept from writing: what it reads is what it changes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise
    return result


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(time: datetime) -> int:
    """Return a time as the store holds it."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(stored: int) -> datetime:
    """Return the time that the store holds as this number."""
    return _EPOCH + timedelta(microseconds=stored)


def encodable(text: str) -> str:
    """Return text without halves of surrogate pairs, which can be neither stored nor looked up."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
