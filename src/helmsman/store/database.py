"""Interface of the store. `helmsman.store.sqlite` and `helmsman.store.postgres` implement it.

`Database.read` and `Database.write` run a function on a connection, `write` as one transaction that no other writer
interleaves with. They reconnect, wait for other writers, and turn every other error of the database into
`RegistryUnavailable`. They may run a function again, so functions do nothing but SQL.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from helmsman.base.structs import Value
from helmsman.errors import RegistryUnavailable
from helmsman.store import leases

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from helmsman.store.connection import StoreConnection

T = TypeVar("T")


class Size(NamedTuple):
    """Size of the store, and how much of it is free for new data; None if the database does not say."""

    bytes: int
    free_bytes: int | None


class Fence(Value, frozen=True):
    """Keeps a hub that was replaced from writing. The store accepts nothing of an epoch older than its newest.

    `on_refused` is called on the writing thread when that happens; it need not return. A store that several machines reach
    belongs to its `owner` until the lease ends (`helmsman.store.leases`).
    """

    epoch: int
    on_refused: Callable[[int], object]
    owner: str = ""

    def enter(self, connection: StoreConnection, lease_seconds: float | None) -> None:
        """Refuse earlier hubs from now on.

        Raises:
            RegistryUnavailable: A hub of another owner has a lease.
        """
        leases.enter(connection, leases.HUB, self.owner, self.epoch, lease_seconds)

    def check(self, newest: int) -> None:
        """Compare with the newest epoch in the store.

        Raises:
            RegistryUnavailable: This hub was replaced.
        """
        if newest > self.epoch:
            self.on_refused(newest)
            raise RegistryUnavailable(
                f"A later hub (epoch {newest}) has replaced this one (epoch {self.epoch}). Ask that one instead."
            )


class Commits:
    """Wakes readers after each commit. A reader takes `next` before it reads, and then misses none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def next(self) -> asyncio.Event:
        """Return an event that the next commit sets."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            known = next((one for of, one in self._waiting if of is loop), None)
            # One event per loop: those of asyncio are not safe across threads, and all readers of a loop share it.
            if known is None:
                self._waiting.append((loop, event))
            return known or event

    def notify(self) -> None:
        """Wake all readers. May be called on any thread."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            # `call_soon_threadsafe` raises on a closed loop, and the readers after it must still wake.
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


class Database(ABC):
    """Store that the threads of this process share. It is opened on first use."""

    lease_seconds: float | None = None
    """Lifetime of a hub's lease without renewal. None if only one machine can reach the store."""

    def __init__(self, fence: Fence | None = None) -> None:
        self._fence = fence
        self._commits = Commits()
        # There is one connection. More threads would only wait for it.
        self.one_at_a_time = anyio.CapacityLimiter(1)

    @property
    @abstractmethod
    def name(self) -> str:
        """Path of the file, or the address without its password."""

    @abstractmethod
    def read(self, work: Callable[[StoreConnection], T]) -> T:
        """Return what `work` returns.

        Raises:
            RegistryUnavailable: The store cannot be read.
        """

    @abstractmethod
    def _write(self, work: Callable[[StoreConnection], T]) -> T:
        """Run `work` in a transaction that no other writer interleaves with. Calls `_admit` first."""

    def write(self, work: Callable[[StoreConnection], T]) -> T:
        """Return what `work` returns, with everything that it wrote committed, or nothing. Wake readers if it wrote.

        Raises:
            RegistryUnavailable: The store cannot be written.
        """

        def counted(connection: StoreConnection) -> tuple[T, bool]:
            before = connection.total_changes
            return work(connection), connection.total_changes > before

        result, has_changed = self._write(counted)
        # After the commit, so that a reader that wakes finds it.
        if has_changed:
            self.wake_readers()
        return result

    async def read_soon(self, work: Callable[[StoreConnection], T]) -> T:
        """Read on a thread."""
        return await anyio.to_thread.run_sync(self.read, work, limiter=self.one_at_a_time)

    async def write_soon(self, work: Callable[[StoreConnection], T]) -> T:
        """Write on a thread."""
        return await anyio.to_thread.run_sync(self.write, work, limiter=self.one_at_a_time)

    def wake_readers(self) -> None:
        """Wake the readers that wait for a commit. May be called on any thread."""
        self._commits.notify()

    def _admit(self, newest_epoch: int) -> None:
        """Refuse a transaction of a hub that was replaced."""
        if self._fence is not None:
            self._fence.check(newest_epoch)

    def next_commit(self) -> asyncio.Event:
        """Return an event that the next commit sets. Take it before reading.

        Commits of other processes set it on Postgres only: on SQLite, other processes ask the hub.
        """
        return self._commits.next()

    def newest_epoch(self) -> int:
        """Return the epoch of the newest hub that used the store; 0 where there was none, or it cannot be read. Blocks."""
        try:
            with self.snapshot() as connection:
                return leases.newest_epoch(connection, leases.HUB)
        except RegistryUnavailable:
            return 0

    @abstractmethod
    def version(self) -> tuple[int, ...]:
        """Return a token that differs whenever this process or another may have changed anything."""

    @abstractmethod
    def version_of_others(self) -> tuple[int, ...] | None:
        """Return a token that differs whenever another connection may have changed anything.

        Never waits: None where it would.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect. A later call connects again."""

    # --- upkeep ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[StoreConnection]:
        """Open the store as it is at this moment, for reading alone. Nothing is created or repaired.

        Raises:
            RegistryUnavailable: It cannot be read.
        """

    @abstractmethod
    def size(self) -> Size:
        """Return how large the store is."""

    @abstractmethod
    def damage(self, connection: StoreConnection) -> tuple[str, ...]:
        """Return descriptions of damage, as far as the database can tell. Blocks for seconds."""

    @abstractmethod
    def reclaim(self) -> None:
        """Return free space to the disk, in small steps.

        Raises:
            RegistryUnavailable: The store cannot be written.
        """


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
