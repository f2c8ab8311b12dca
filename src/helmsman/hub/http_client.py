"""HTTP client of a hub, over any stream of bytes: a Unix socket, or a channel to another machine."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import h11

from helmsman.errors import EngineProtocolError

if TYPE_CHECKING:
    import _socket
    from collections.abc import AsyncIterator, Awaitable, Callable

_CHUNK_BYTES: Final = 256 * 1024
_MOST_CONNECTIONS: Final = 32
"""Number of requests of one program that are under way together, without streams."""
_OK: Final = 200


class ByteStream(Protocol):
    """Connection to a hub."""

    async def receive(self) -> bytes:
        """Return the next bytes; none at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: The other side is gone.
        """
        ...

    def close(self) -> None: ...


class SocketStream:
    """Connected socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, connected: _socket.socket) -> SocketStream:
        """Take over a connected socket."""
        return cls(*await asyncio.open_connection(sock=_with_methods(connected)))

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK_BYTES)
        except OSError:
            return b""

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def send_now(self, data: bytes) -> None:
        """Send bytes as far as that goes without waiting."""
        with suppress(OSError, RuntimeError):
            self._writer.write(data)

    def close(self) -> None:
        with suppress(OSError, RuntimeError):  # the event loop may be closed
            self._writer.close()


def _with_methods(connected: _socket.socket) -> Any:
    """Return a socket of the module that asyncio knows."""
    import socket  # pipes make their sockets without it, to start quickly

    return socket.socket(fileno=connected.detach())


class HttpConnection:
    """One HTTP/1.1 connection, which serves one request at a time."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._state = h11.Connection(h11.CLIENT)

    async def begin(self, method: str, target: str, content: object = None, **headers: str) -> int:
        """Send a request with this content: bytes, or what becomes JSON. Return the status of the response.

        Raises:
            OSError: The connection has ended.
            EngineProtocolError: The other side does not speak HTTP, or has named what no request can hold.
        """
        body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        about = [("Host", "hub"), ("Content-Length", str(len(body))), ("Content-Type", "application/json"), *named]
        try:
            request = self._state.send(h11.Request(method=method, target=target, headers=about))
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            raise EngineProtocolError(f"it named what no request can hold: {error}") from error
        data = self._state.send(h11.Data(data=body)) if body else b""
        await self._stream.send((request or b"") + (data or b"") + (self._state.send(h11.EndOfMessage()) or b""))
        # Informational responses (1xx) may come first.
        while not isinstance(event := await self._next(), h11.Response):
            pass
        return event.status_code

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body of the response, as it comes."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> Any:
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                if not (data := await self._stream.receive()):
                    raise ConnectionResetError("the hub has closed the connection")
                self._state.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise EngineProtocolError(f"it does not speak HTTP: {error}") from error
        if isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError("the hub has closed the connection")
        return event

    def is_reusable(self) -> bool:
        """Prepare for the next request. Return whether there can be one."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return True

    def close(self) -> None:
        self._stream.close()


class HttpClient:
    """Requests to one hub. Connections are used again."""

    def __init__(self, connect: Callable[[], Awaitable[ByteStream]], most: float = math.inf) -> None:
        """`most` is the number of bytes that are accepted as one response or event."""
        self._connect = connect
        self._most = most
        self._idle: list[HttpConnection] = []
        self._places = anyio.CapacityLimiter(_MOST_CONNECTIONS)
        self._is_closed = False

    async def request(
        self, method: str, target: str, content: object = None, *, is_repeatable: bool = True
    ) -> tuple[int, bytes]:
        """Return the status and the body of the response.

        Raises:
            OSError: The hub is gone.
            EngineProtocolError: The response is invalid.
        """
        async with self._places:
            # The hub may be closing an idle connection just now, so only a request that may be sent twice uses one.
            while is_repeatable and self._idle:
                with suppress(OSError):  # the hub closes connections that are idle for long
                    return await self._respond(self._idle.pop(), method, target, content)
            return await self._respond(HttpConnection(await self._connect()), method, target, content)

    async def _respond(
        self, connection: HttpConnection, method: str, target: str, content: object
    ) -> tuple[int, bytes]:
        is_kept = False
        try:
            status = await connection.begin(method, target, content)
            body = await self._whole(connection)
            is_kept = connection.is_reusable() and not self._is_closed
        finally:
            if not is_kept:
                connection.close()
        self._idle += [connection] * is_kept
        return status, body

    async def _whole(self, connection: HttpConnection) -> bytes:
        body = bytearray()
        async for piece in connection.pieces():
            body += piece
            if len(body) > self._most:
                raise EngineProtocolError(f"it said more than {self._most} bytes at once")
        return bytes(body)

    async def events(self, method: str, target: str, content: object = None, **headers: str) -> HubEvents:
        """Return a stream of server-sent events. The caller closes it.

        Raises:
            NoStream: The response is another one.
            OSError: The hub is gone.
            EngineProtocolError: The response is invalid.
        """
        connection = HttpConnection(await self._connect())
        is_stream = False
        try:
            status = await connection.begin(method, target, content, **headers)
            is_stream = status == _OK
            body = b"" if is_stream else await self._whole(connection)
        finally:
            if not is_stream:
                connection.close()
        if not is_stream:
            raise NoStream(status, body)
        return HubEvents(connection, self._most)

    def close(self) -> None:
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class NoStream(Exception):
    """Raised if a request for a stream gets another response."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class HubEvents:
    """Server-sent events, as they come: the name, the data and the id of each."""

    def __init__(self, connection: HttpConnection, most: float) -> None:
        self._connection = connection
        self._most = most
        self._pieces = connection.pieces()
        self._read = bytearray()

    async def next(self) -> tuple[str, str, str] | None:
        """Return the next event, or None at the end of the stream. One without a name is a sign of life.

        Raises:
            OSError: The connection has ended.
            EngineProtocolError: The stream holds something else.
        """
        while True:
            searched = 0
            while (end := self._read.find(b"\n\n", searched)) < 0:
                # The end of an event may lie across two pieces.
                searched = max(len(self._read) - 1, 0)
                if searched > self._most:
                    raise EngineProtocolError(f"it said more than {self._most} bytes at once")
                piece = await anext(self._pieces, None)
                if piece is None:
                    return None
                self._read += piece
            block = bytes(self._read[:end])
            del self._read[: end + 2]
            fields = dict(_field(line) for line in block.split(b"\n"))
            name, data, number = (fields.get(key, b"").decode("utf-8", "replace") for key in (b"event", b"data", b"id"))
            return name, data, number

    def close(self) -> None:
        self._connection.close()


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
