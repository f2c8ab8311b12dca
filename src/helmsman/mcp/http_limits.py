"""What one connection may cost before anybody knows who it is: time and a place, both bounded.

A client that opens a connection and says nothing, or sends its request letter by letter, holds a file descriptor for as
long as it likes, and a few hundred of those stop the server for everyone. So a request has to arrive within a time, head
and body, and there is only so much room for connections.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import anyio
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

log = logging.getLogger(__name__)

HEAD_SECONDS: Final = 15.0
"""From the connection, or the first byte of a later request, to the end of the request's head."""
BODY_SECONDS: Final = 60.0
"""For all of a body; the largest that is taken needs half a megabyte a second."""
MAX_CONNECTIONS: Final = 200
"""A client needs two or three. Systems give a process as few as 256 files, and Codex needs some."""


class BoundedConnection(H11Protocol):
    """A connection that has to say what it wants, on a server with room for so many."""

    _head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            log.warning("more than %d connections: one more was closed", MAX_CONNECTIONS)
            transport.abort()
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        earlier: RequestResponseCycle | None = self.cycle
        super().data_received(data)
        current: RequestResponseCycle | None = self.cycle
        if current is not earlier:
            self._head_came()
        elif current is None or current.response_complete:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


class BoundedBody:
    """Answers a request whose body does not arrive in time; whoever was reading it is cancelled."""

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
