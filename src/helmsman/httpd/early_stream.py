"""Response of MCP 2026-07-28 that starts before its answer is ready.

If a connection breaks before a response has started, the Python SDK considers its whole connection lost; if a stream
ends, only its request. The server side of the SDK starts a response after 15 seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_EARLY_SECONDS: Final = 0.01
"""Delay before a stream starts. A faster answer is sent as a plain response."""
_COMMENT: Final = b": ping\r\n\r\n"


class EarlyStream:
    """Starts a response early. An invalid request is detected before the app waits for more input, and keeps its status."""

    @classmethod
    async def serve(cls, app: ASGIApp, scope: Scope, receive: Receive, send: Send, first: bytes) -> None:
        """Serve a request. A stream begins with the event `first`."""
        async with anyio.create_task_group() as tasks:
            early = cls(receive, send, first)
            tasks.start_soon(early.begin_soon)
            await app(scope, early.receive, early.send)
            tasks.cancel_scope.cancel()

    def __init__(self, receive: Receive, send: Send, first: bytes) -> None:
        self._first = first
        self._receive = receive
        self._send = send
        self._is_read = False
        self._at_work = anyio.Event()
        self._in_turn = anyio.Lock()
        self._is_begun = self._is_early = self._is_stream = False
        self._body = b""

    async def receive(self) -> Message:
        if self._is_read:
            self._at_work.set()
        message = await self._receive()
        self._is_read = not message.get("more_body", False)
        return message

    async def begin_soon(self) -> None:
        await self._at_work.wait()
        await anyio.sleep(_EARLY_SECONDS)
        async with self._in_turn:
            if not self._is_begun:
                self._is_early = True
                headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache, no-transform")]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._send({"type": "http.response.body", "body": self._first or _COMMENT, "more_body": True})

    async def send(self, message: Message) -> None:
        async with self._in_turn:
            if message["type"] == "http.response.start":
                self._is_begun = True
                self._is_stream = (
                    Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
                )
                if self._is_early:
                    return
                if self._is_stream and self._first:
                    await self._send(message)
                    message = {"type": "http.response.body", "body": self._first, "more_body": True}
            # The status has been sent, so a plain answer or error becomes an event.
            elif self._is_early and not self._is_stream:
                self._body += message.get("body", b"")
                if message.get("more_body", False):
                    return
                event = b"event: message\r\ndata: " + self._body + b"\r\n\r\n" if self._body else b""
                message = {"type": "http.response.body", "body": event}
            await self._send(message)
