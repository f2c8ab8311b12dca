"""Connections to a fleet's Postgres: few, opened on demand, reopened after a loss, and with bounded waits.

A client gets an error (`FleetUnavailable`) after a few tries if the database cannot be reached. A worker keeps trying until
the database is back (`keep_trying`).
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import asynccontextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString, Self, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
import anyio.to_thread
import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row

from helmsman.base.addresses import is_loopback
from helmsman.errors import FleetNotReady, FleetUnavailable, InvalidSetting
from helmsman.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

log = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Between two tries: who waits for the database has it soon after it is back."""
_DOOR_SECONDS: Final = 5.0
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


def checked_url(url: str) -> str:
    """The address of a Postgres, as all that use it understand it.

    Raises:
        InvalidSetting: It is none.
    """
    parts = urlsplit(url)
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        given = {}
    if parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/") or not given:
        raise InvalidSetting(
            "The address of a fleet has the form postgresql://USER@HOST/DATABASE. Put it into HELMSMAN_FLEET_URL."
        )
    url = "postgresql" + url[url.index(":") :]
    used = {**_defaults(given.get("service")), **given}
    if given.get("sslmode") == "disable" or _is_encrypted(given, used) or all(map(_is_here, _addresses(used))):
        return url
    # libpq's default falls back to plain text if the server, or a machine in the middle, offers no encryption.
    rest = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "sslmode"]
    return urlunsplit(urlsplit(url)._replace(query=urlencode([*rest, ("sslmode", "require")])))


def _defaults(service: Any) -> dict[str, Any]:
    """Return what libpq takes where the address says nothing: from the service file, then from variables."""
    if service is None:
        return {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.val}
    before = os.environ.get("PGSERVICE")
    os.environ["PGSERVICE"] = str(service)  # libpq reads its file of services for no other call
    try:
        return _defaults(None)
    finally:
        if before is None:
            del os.environ["PGSERVICE"]
        else:
            os.environ["PGSERVICE"] = before


def _is_encrypted(given: Mapping[str, Any], used: Mapping[str, Any]) -> bool:
    """Return whether libpq is certain to encrypt."""
    if "sslmode" not in given and used.get("sslrootcert") == "system":
        return True  # then libpq's default is to check the server
    return used.get("sslmode") in ("require", "verify-ca", "verify-full")


def _addresses(used: Mapping[str, Any]) -> list[str]:
    """Return the places that libpq connects to: `hostaddr` counts before `host`, one by one."""
    hosts, numbers = (str(used.get(name) or "").split(",") for name in ("host", "hostaddr"))
    return [number or host for host, number in zip_longest(hosts, numbers, fillvalue="")]


def _is_here(host: str) -> bool:
    """Return whether the connection to a host stays on this machine."""
    return not host or host.startswith(("/", "@")) or is_loopback(host)


class FleetDatabase:
    """A fleet's database for one process. Use it as an async context manager; nothing is connected before it is needed."""

    def __init__(self, url: str, *, name: str = "helmsman", most: int = 4) -> None:
        self.url = checked_url(url)
        self._name = name
        self._idle: list[tuple[DatabaseConnection, float]] = []
        """With when each was last used, which was longest ago first."""
        self._room = anyio.Semaphore(most)
        self._is_closed = False
        self._news: dict[tuple[str, str], None] = {}
        self._is_telling = False
        self.store = open_store(Path(), self.url)
        """The fleet's store: its schedules."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
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
        until = time.monotonic() + _DOOR_SECONDS
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return await do()
            except psycopg.errors.UndefinedTable as error:
                raise not_ready() from error
            except _GONE as error:
                if _PLAIN in str(error):
                    raise FleetNotReady(
                        "The fleet's database takes no encrypted connections, and code and prompts travel on them. Switch "
                        "TLS on there; ?sslmode=disable in HELMSMAN_FLEET_URL says that you want it so."
                    ) from error
                if time.monotonic() + pause > until:
                    raise unavailable(error) from error
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def keep_trying(self, do: Callable[[], Awaitable[ResultT]], what: str) -> ResultT:
        """Run an idempotent write until the database is reachable. To give up, cancel the call."""
        pause, told = _SHORTEST_PAUSE, False
        while True:
            try:
                return await do()
            except _GONE as error:
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
        if self._is_telling:
            return
        self._is_telling = True
        try:
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
