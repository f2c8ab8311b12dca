"""Limits of unauthenticated connections: time and number.

A client that opens a connection and sends nothing, or sends its request byte by byte, holds a file descriptor, and a few
hundred of those stop the server for all clients. So strangers, that is all connections whose requests have not shown a token
or a cookie, have a small separate pool. They leave it within seconds. When it is full, the stranger that has been silent
longest is dropped for the next one. A genuine client sends its request immediately and becomes a member.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

import anyio
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import ssl

    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
    from uvicorn.server import ServerState

log = logging.getLogger(__name__)

STRANGER_SECONDS: Final = 10.0
"""Seconds from a connection's start to the end of its business, unless it becomes a member."""
MAX_STRANGERS: Final = 64
ACCEPTED_AT_ONCE: Final = 16
"""Limit of connections accepted per turn of the event loop.

A new connection is read three turns after it was accepted, so with this limit a flood cannot push it out of the pool before
that.
"""
HEAD_SECONDS: Final = 15.0
"""Seconds for the head of a member's next request, from its first byte."""
BODY_SECONDS: Final = 60.0
"""Seconds for a whole body. The largest allowed one needs half a megabyte per second."""
MAX_MEMBERS: Final = 150
"""Client needs two or three. Some systems limit a process to 256 files, and Codex needs some of them."""

CONNECTION: Final = "helmsman.connection"
"""Name of the connection in the state of a request's scope."""


@dataclass(slots=True)
class _Pools:
    strangers: dict[BoundedConnection, None] = field(default_factory=dict)
    """Oldest first."""
    members: set[BoundedConnection] = field(default_factory=set)


_pools: WeakKeyDictionary[ServerState, _Pools] = WeakKeyDictionary()


class BoundedConnection(H11Protocol):
    """Connection that must authenticate, on a server with a limited number of connections."""

    _due: asyncio.TimerHandle | None = None
    _opened: asyncio.Transport

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app_state = {**self.app_state, CONNECTION: self}
        self._pools = _pools.setdefault(self.server_state, _Pools())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.enter(transport)

    def enter(self, transport: asyncio.Transport) -> None:
        """Take a stranger's place, unless it has one since before TLS was agreed on."""
        strangers = self._pools.strangers
        if self in strangers:
            return
        self._opened = transport
        if len(strangers) >= MAX_STRANGERS:
            log.warning(
                "more than %d connections that have not said who they are: the oldest was closed", MAX_STRANGERS
            )
            next(iter(strangers)).end()
        strangers[self] = None
        self._due = self.loop.call_later(STRANGER_SECONDS, self.end)

    def admit(self) -> bool:
        """Make it a member's connection; False where there is no room for one more."""
        members = self._pools.members
        if self in members:
            return True
        # It may have been dropped from the pool meanwhile.
        if len(members) >= MAX_MEMBERS or self not in self._pools.strangers:
            return False
        del self._pools.strangers[self]
        members.add(self)
        self._head_came()
        return True

    def data_received(self, data: bytes) -> None:
        earlier: RequestResponseCycle | None = self.cycle
        super().data_received(data)
        if self not in self._pools.members:
            return  # its one deadline stays
        current: RequestResponseCycle | None = self.cycle
        if current is not earlier:
            self._head_came()
        # These are bytes of the next request, whose head is not complete.
        elif current is not None and current.response_complete and self._due is None:
            self._due = self.loop.call_later(HEAD_SECONDS, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def end(self) -> None:
        """Close it, whatever it is in the middle of."""
        self._leave()
        self._opened.abort()

    def _leave(self) -> None:
        self._head_came()
        self._pools.strangers.pop(self, None)
        self._pools.members.discard(self)

    def _head_came(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class TlsConnection(asyncio.Protocol):
    """Performs the TLS handshake and counts the client as a stranger.

    asyncio alone would keep a silent client for a minute, uncounted.
    """

    def __init__(self, context: ssl.SSLContext, **options: Any) -> None:
        self._context = context
        self._connection = BoundedConnection(**options)
        self._agreeing: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast("asyncio.Transport", transport)
        opened.pause_reading()  # the first words are for TLS
        self._connection.enter(opened)
        self._agreeing = asyncio.get_running_loop().create_task(self._agree(opened))

    def data_received(self, data: bytes) -> None:
        self._early += data  # between the end of the handshake and our hearing of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.end()

    async def _agree(self, opened: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            agreed = await loop.start_tls(opened, self, self._context, server_side=True)
        except (OSError, EOFError):  # no TLS, or the client has disconnected
            agreed = None
        if agreed is None or agreed.is_closing():
            self._connection.end()
            return
        agreed.set_protocol(self._connection)
        self._connection.connection_made(agreed)
        if self._early:
            self._connection.data_received(self._early)


def admitted(scope: Scope) -> bool:
    """Make the connection of a request a member's; False where there is no room for one more."""
    connection: BoundedConnection | None = scope.get("state", {}).get(CONNECTION)
    return connection is None or connection.admit()  # None: the application is called without a server


class BoundedBody:
    """Answers a request whose body does not arrive in time, and cancels its handler."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = reading = False

        async def send_on(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        with anyio.CancelScope() as arriving:

            async def receive_on() -> Message:
                nonlocal reading
                if not reading:
                    reading = True
                    arriving.deadline = anyio.current_time() + BODY_SECONDS
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    arriving.deadline = math.inf  # all of it is here: the answer may take as long as it likes
                return message

            await self._app(scope, receive_on, send_on)
        if arriving.cancelled_caught and not started:
            refusal = {"code": "too_slow", "message": "The request did not arrive in time. Send it again."}
            await JSONResponse(refusal, status_code=408, headers={"Connection": "close"})(scope, receive, send)
