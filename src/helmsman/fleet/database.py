"""Connections to a fleet's Postgres: few, opened on demand, reopened after a loss, and with bounded waits.

A client gets an error (`FleetUnavailable`) after a few tries if the database cannot be reached. A worker keeps trying until
the database is back (`keep_trying`).
"""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString, Self, TypeVar

import anyio
import anyio.to_thread
import psycopg
from psycopg.rows import DictRow, dict_row

from helmsman.base.caller_context import FLEET_URL
from helmsman.errors import FleetNotReady, FleetUnavailable, RegistryUnavailable
from helmsman.store.address import checked_address
from helmsman.store.postgres import PostgresDatabase
from helmsman.tasks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

log = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Between two tries: who waits for the database has it soon after it is back."""
_CLIENT_SECONDS: Final = 5.0
"""Time for which a client's call retries before it fails because the database cannot be reached."""
_UNUSED_SECONDS: Final = 20.0
_TELL_SECONDS: Final = 1.0
_TELL: Final = "select pg_notify(channel, payload) from unnest(%s::text[], %s::text[]) as news (channel, payload)"
_GONE: Final = (psycopg.OperationalError, psycopg.InterfaceError)
_DOWN: Final = ("connection refused", "starting up", "shutting down", "is not yet accepting", "no such file")
"""Error texts of a server that is down for all clients, not only unreachable for this one."""
_PLAIN: Final = "server does not support SSL"

ResultT = TypeVar("ResultT")
DatabaseConnection = psycopg.AsyncConnection[DictRow]


class FleetDatabase:
    """A fleet's database for one process. Use it as an async context manager; nothing is connected before it is needed."""

    def __init__(self, url: str, *, name: str = "helmsman", most: int = 4) -> None:
        self.url = checked_address(url, FLEET_URL)
        self._name = name
        self._idle: list[tuple[DatabaseConnection, float]] = []
        """With when each was last used, which was longest ago first."""
        self._room = anyio.Semaphore(most)
        self._is_closed = False
        self._news: dict[tuple[str, str], None] = {}
        self._is_telling = False
        self.store = PostgresDatabase(self.url, is_shared=True, program=name)
        """The fleet's store."""
        self.registry = Registry(Path(), database=self.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Set first: connections that are in use are closed when they come back.
        self._is_closed = True
        await anyio.to_thread.run_sync(self.store.close)
        while self._idle:
            await self._idle.pop()[0].close()

    async def connect(self) -> DatabaseConnection:
        """A connection of one's own, such as one that listens. Every statement is a transaction, unless one is begun."""
        return await psycopg.AsyncConnection.connect(
            self.url,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=_CONNECT_SECONDS,
            application_name=self._name,
            prepare_threshold=None,  # a prepared statement fails after an upgrade has added a column
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=15_000,
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[DatabaseConnection]:
        """One of the few connections. It is not used again after an error that may have cost it."""
        async with self._room:
            connection = self._idle.pop()[0] if self._idle else await self.connect()
            try:
                yield connection
            except BaseException as error:
                # A cancelled or otherwise broken statement leaves the connection in an unknown state.
                if not isinstance(error, psycopg.Error) or isinstance(error, _GONE):
                    useless = [connection]
                    if isinstance(error, _GONE):  # after a restart of the server the idle connections are lost as well
                        useless += [idle for idle, _ in self._idle]
                        self._idle.clear()
                    with anyio.CancelScope(shield=True):
                        for one in useless:
                            with suppress(psycopg.Error):
                                await one.close()
                raise
            finally:
                # An error of the statement itself leaves the connection usable.
                if not connection.closed:
                    if self._is_closed:
                        await connection.close()
                    else:
                        self._idle.append((connection, time.monotonic()))
                        await self._close_unused()

    async def _close_unused(self) -> None:
        """Of many workers' connections those count that are there for nothing."""
        while self._idle and time.monotonic() - self._idle[0][1] > _UNUSED_SECONDS:
            with anyio.CancelScope(shield=True), suppress(psycopg.Error):
                await self._idle.pop(0)[0].close()

    async def all(self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[DictRow]:
        """The rows of one statement."""
        async with self.connection() as connection:
            return await (await connection.execute(sql, values)).fetchall()

    async def one(self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()) -> DictRow | None:
        """The first row of one statement."""
        async with self.connection() as connection:
            return await (await connection.execute(sql, values)).fetchone()

    async def soon(self, do: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run a read or an idempotent write. Retry for a few seconds while the database cannot be reached.

        Raises:
            FleetUnavailable: It stays away.
            FleetNotReady: The database is not set up.
        """
        until = time.monotonic() + _CLIENT_SECONDS
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return await do()
            # The database exists, but has no fleet.
            except psycopg.errors.UndefinedTable as error:
                raise not_ready() from error
            except _GONE as error:
                # Retrying cannot help: the server has no TLS.
                if _PLAIN in str(error):
                    raise FleetNotReady(
                        "The fleet's database takes no encrypted connections, and code and prompts travel on them. Switch "
                        "TLS on there; ?sslmode=disable in HELMSMAN_FLEET_URL says that you want it so."
                    ) from error
                if time.monotonic() + pause > until:
                    raise unavailable(error) from error
            except RegistryUnavailable as error:
                if time.monotonic() + pause > until:
                    raise unavailable(error) from error
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def tasks(self, do: Callable[[Registry], ResultT]) -> ResultT:
        """Do something with the fleet's tasks that may be done again.

        Raises:
            FleetUnavailable: The database cannot be reached.
        """
        return await self.soon(partial(anyio.to_thread.run_sync, do, self.registry))

    async def keep_trying(self, do: Callable[[], Awaitable[ResultT]], what: str) -> ResultT:
        """Run an idempotent write until the database is reachable. To give up, cancel the call."""
        pause, told = _SHORTEST_PAUSE, False
        while True:
            try:
                return await do()
            except _GONE as error:
                # Once for each outage, which may last for hours.
                if not told:
                    log.warning("the fleet's database is away, %s waits: %s", what, first_line(error))
                    told = True
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def notify(self, *news: tuple[str, str]) -> None:
        """Notify the listeners of a channel about stored changes. A notification may be lost, so listeners also poll.

        It is sent outside the transaction that stores the change: Postgres serializes transactions that notify, each with
        its own wait for the disk. Notifications requested during a send are combined.
        """
        self._news.update(dict.fromkeys(news))
        # The caller that is sending takes these along.
        if self._is_telling:
            return
        self._is_telling = True
        try:
            # A lost notification costs seconds, so neither errors nor cancellation may hold up the caller.
            with anyio.move_on_after(_TELL_SECONDS, shield=True), suppress(psycopg.Error):
                while self._news:
                    told, self._news = tuple(self._news), {}
                    await self.all(_TELL, ([channel for channel, _ in told], [payload for _, payload in told]))
        finally:
            self._is_telling = False

    @asynccontextmanager
    async def listening(self, *channels: str) -> AsyncIterator[AsyncIterator[str]]:
        """Payloads of notifications, until the connection is lost (`psycopg.OperationalError`)."""
        connection = await self.connect()
        try:
            for channel in channels:
                # `listen` takes no parameters, so the name is quoted here.
                await connection.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel)))
            yield self._payloads(connection)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def _payloads(self, connection: DatabaseConnection) -> AsyncIterator[str]:
        async for notice in connection.notifies():
            yield notice.payload


def is_down(error: BaseException) -> bool:
    """Return whether the server is down for all clients, not only unreachable for this one."""
    return any(word in str(error).lower() for word in _DOWN)


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def unavailable(error: BaseException) -> FleetUnavailable:
    return FleetUnavailable(
        f"The fleet's database cannot be reached: {first_line(error)}. Running work continues; try again, or look at "
        "HELMSMAN_FLEET_URL."
    )


def not_ready() -> FleetNotReady:
    return FleetNotReady("This database has no fleet yet. Set it up once: helmsman fleet init postgresql://…")
