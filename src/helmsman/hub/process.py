"""Process of the hub: how it detaches from its starter, which clients it accepts, and how it ends.

It always ends abruptly: it sends clients to the next hub, and then the process is gone. In an orderly shutdown the MCP
sessions would answer every call in flight with an error, and the pipes would pass that on. All its knowledge is in the
store, in supervisors and in the pipes; a hub that is killed, stopped, replaced or idle leaves the same behind.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

import anyio

from helmsman import _version
from helmsman._version import __version__
from helmsman.base.concurrency import background_tasks
from helmsman.hub.admission import why_not_served
from helmsman.hub.connection import Connection
from helmsman.hub.launch import LATER, LISTENER_FD, LOCK, LOCK_FD, LOG, NEXT, UP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from datetime import datetime

    from anyio.abc import TaskGroup

    from helmsman.base.processes import Process
    from helmsman.settings import Settings

log = logging.getLogger(__name__)

_HELLO_SECONDS: Final = 30.0
_STRANGERS_BYTES: Final = 1024 * 1024
"""Maximum number of bytes in the hello of a refused process. An agent's command could fill our memory otherwise."""
_OWN_PROTOCOLS: Final = b"helmsman-"
_LOOK_SECONDS: Final = 5.0
"""Interval in seconds at which the hub checks its log and its lock."""
_LOG_BYTES: Final = 1024 * 1024


class OpenClient(Protocol):
    """Connected client, as `helmsman hub` shows it."""

    @property
    def description(self) -> Mapping[str, Any]: ...


class ClientConnection(Protocol):
    """Connection of a client."""

    def last_word(self, word: bytes) -> None:
        """Tell it that the hub ends, as far as that goes without waiting."""
        ...


Serve: TypeAlias = "Callable[[Hub, Connection, list[str], str | None], Awaitable[None]]"
"""Serves a connection that began with these fields, to its end; the text says why it is refused, if it is."""
ServeHttp: TypeAlias = "Callable[[Connection, str | None], Awaitable[None]]"
"""Serves a connection that speaks HTTP, in the same way."""


OTHER_STORE: Final = "its settings name another store (HELMSMAN_STORE) than the hub's: helmsman hub stop ends this hub"


class NotServed(Exception):
    """Reason why a process is not served. `go_to` is the state directory of the hub that would serve it, if any."""

    def __init__(self, why: str, go_to: Path | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.go_to = go_to


class Hub:
    """Hub process. `clients` are the served connections, which their servers enter there."""

    def __init__(self, state_dir: Path, supervisors: Callable[[], Collection[Process]], last_epoch: int = 0) -> None:
        """`last_epoch` is the newest epoch known from sources other than the lock."""
        self.state_dir = state_dir
        self.follows_a_death = os.pread(LOCK_FD, 100, 0).split()[3:4] == [UP]
        """True if the previous hub was killed or crashed."""
        self.epoch = _next_epoch(last_epoch)
        self.store: str | None = None
        """Address of its Postgres store (`Settings.store`)."""
        self.started_at = time.time()
        self.idle = 60.0
        self.clients: dict[ClientConnection, OpenClient] = {}
        self.work: Callable[[], int] = lambda: 0
        """Return the number of sessions with a running turn, an open question or a queued message."""
        self.next_at: Callable[[], datetime | None] = lambda: None
        """Return the time at which scheduled or paused work begins."""
        self.notices: Callable[[], int] = lambda: 0
        """Return the number of notices that wait to be sent."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called when this hub ends and none is wanted after it."""
        self.flush: Callable[[], None] = lambda: None
        """Called last. It may block for a bounded time."""
        self._installed = _installed()
        self._supervisors = supervisors
        self._used_at = time.monotonic()
        self._left = anyio.Event()
        self._connected = 0

    async def run(self, protocols: Mapping[str, Serve], http: ServeHttp) -> NoReturn:
        """Serve clients, until idle or asked to end. The first word of a hello selects the protocol.

        A connection that begins with anything else speaks HTTP.
        """
        listener = socket.socket(fileno=LISTENER_FD)
        listener.setblocking(False)
        log.info("hub %s of %s begins, epoch %s, version %s", os.getpid(), self.state_dir, self.epoch, __version__)
        async with background_tasks() as tasks:
            tasks.start_soon(self._check_itself)
            tasks.start_soon(self._end_by_signal)
            try:
                await self._accept(listener, protocols, http, tasks)
            finally:  # a part that all clients need has failed, and they would wait for it forever
                self.end(NEXT, "it has failed", is_orderly=False)

    async def _accept(
        self, listener: socket.socket, protocols: Mapping[str, Serve], http: ServeHttp, tasks: TaskGroup
    ) -> NoReturn:
        while True:
            try:
                connected, _ = listener.accept()
            except BlockingIOError:
                await anyio.wait_readable(listener)
                continue
            except OSError as error:  # out of descriptors: waiting clients are accepted when one is free
                log.warning("no client can be accepted: %s", error)
                await anyio.sleep(1)
                continue
            tasks.start_soon(self._serve, connected, protocols, http)

    async def _serve(self, connected: socket.socket, protocols: Mapping[str, Serve], http: ServeHttp) -> None:
        connection = Connection(connected)
        self._connected += 1
        try:
            with closing(connection):
                # The client gets the reason in its own protocol, so the connection is not closed here.
                refused = why_not_served(connected, self._supervisors())
                if refused is not None:
                    log.warning("a process was refused: %s", refused)
                with anyio.move_on_after(_HELLO_SECONDS) as greeting:
                    if not await connection.begins_with(_OWN_PROTOCOLS):
                        greeting.deadline = math.inf
                        await http(connection, refused)
                        return
                    hello = await connection.line(math.inf if refused is None else _STRANGERS_BYTES)
                    fields = hello.decode("utf-8", "surrogateescape").split("\t") if hello else [""]
                    serve = protocols.get(fields[0])
                    if serve is None:
                        return
                    # The time limit is for the hello alone.
                    with anyio.CancelScope(shield=True):
                        async with background_tasks() as tasks:
                            tasks.start_soon(connection.write_all)
                            await serve(self, connection, fields[1:], refused)
        except Exception:
            log.exception("a client connection failed")
        finally:
            self.clients.pop(connection, None)
            self._connected -= 1
            self._used_at = time.monotonic()
            self._left.set()

    def admit(self, settings: Settings) -> None:
        """Apply the settings of a process that has connected.

        Raises:
            NotServed: They want no hub, or another one.
        """
        if not settings.detach:
            raise NotServed("its settings want no hub (detach)")
        self.idle = settings.hub_idle
        if settings.state_dir.resolve() != self.state_dir.resolve():
            raise NotServed(f"its settings want the hub of {settings.state_dir}", settings.state_dir)
        if settings.store != self.store:
            raise NotServed(OTHER_STORE)

    def end(self, word: bytes, reason: str, *, is_orderly: bool = True) -> NoReturn:
        """Send clients to the next hub, or away, and end the process."""
        log.info("the hub ends: %s", reason)
        if is_orderly:
            _enter(self.epoch, b"over")
        if word == LATER:
            self.on_stop()
        for connection in list(self.clients):
            connection.last_word(word)
        self.flush()
        logging.shutdown()
        os._exit(0)

    async def _end_by_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                self.end(NEXT, f"signal {number}")

    async def _check_itself(self) -> None:
        while True:
            # Taken before the counts are looked at: a client that leaves now must be noticed.
            self._left = anyio.Event()
            idle = time.monotonic() - self._used_at
            if self._connected or self.work() or self.notices() or self.next_at() is not None:
                self._used_at = time.monotonic()
                idle = 0.0
            elif idle >= self.idle:
                self.end(NEXT, "idle")
            # With a new lock file a second hub could start.
            if not _is_ours(self.state_dir / LOCK):
                self.end(NEXT, "its lock was removed")
            if _installed() not in (self._installed, None):
                self.end(NEXT, "another version was installed in its place")
            rotate_log(self.state_dir / LOG)
            with anyio.move_on_after(min(_LOOK_SECONDS, max(self.idle - idle, 0.01))):
                await self._left.wait()


def rotate_log(path: Path) -> None:
    """Begin the log anew when it has become long; the one before it is kept."""
    with suppress(OSError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
            # The log is the stderr of this process.
            fresh = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.dup2(fresh, 2)
            os.close(fresh)


def _next_epoch(last: int) -> int:
    """Return an epoch greater than the last hub's, or the time if the last one is unknown. It is written into the lock with
    its holder.
    """
    with suppress(ValueError, IndexError):
        last = max(last, int(os.pread(LOCK_FD, 100, 0).split()[0]))
    return _enter(max(last + 1, int(time.time() * 1000)), UP)


def _enter(epoch: int, how: bytes) -> int:
    os.ftruncate(LOCK_FD, 0)
    os.pwrite(LOCK_FD, f"{epoch} {os.getpid()} {__version__} ".encode() + how + b"\n", 0)
    return epoch


def _installed() -> bytes | None:
    """Return the content of the version file where this hub was imported from, or None while it is missing.

    A hub imports modules when they are first needed, and must not take them from another version.
    """
    try:
        return Path(_version.__file__).read_bytes()
    except OSError:
        return None


def _is_ours(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(LOCK_FD))
    except OSError:
        return False
