"""Connections to the hub of another machine, all over one stream: the two ends of `ssh`.

`helmsman hub connect` is the other end (`helmsman.hub.bridge`). A frame is the number of a channel, the length of what
follows, and that. The first frame of a channel connects it there; an empty one closes it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.errors import EngineProtocolError
from helmsman.hub.bridge import FRAME, FRAME_BYTES

if TYPE_CHECKING:
    from helmsman.hub.http_client import ByteStream, SocketStream

_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Number of bytes of one channel that may wait for their reader."""


class Channels:
    """Channels of one stream. Run `run` in a task."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._numbers = itertools.count(1)
        self._open: dict[int, _Channel] = {}
        self._sending = anyio.Lock()
        self._is_over = False

    async def run(self) -> None:
        """Pass frames to their channels, until the stream ends.

        Raises:
            EngineProtocolError: The stream holds something else.
        """
        read = bytearray()
        try:
            while chunk := await self._stream.receive():
                read += chunk
                while len(read) >= FRAME.size:
                    number, length = FRAME.unpack_from(read)
                    # A stream that speaks no frames would be read as a huge length.
                    if length > FRAME_BYTES:
                        raise EngineProtocolError("it sent an invalid frame")
                    if len(read) < FRAME.size + length:
                        break
                    self._put(number, bytes(read[FRAME.size : FRAME.size + length]))
                    del read[: FRAME.size + length]
        finally:
            self.close()

    def _put(self, number: int, data: bytes) -> None:
        channel = self._open.get(number)
        if channel is not None and not channel.put(data):
            raise EngineProtocolError("it sent more than is read")
        if not data:
            self._open.pop(number, None)

    async def connect(self) -> ByteStream:
        """Return a connection to the hub there."""
        if self._is_over:
            raise ConnectionResetError("the line has broken")
        number = next(self._numbers)
        channel = self._open[number] = _Channel(self, number)
        return channel

    async def send(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), FRAME_BYTES):
            piece = data[start : start + FRAME_BYTES]
            # For each piece, so that a large request does not hold up the others.
            async with self._sending:
                # Another task may have closed the channel while this one waited.
                if self._is_over or number not in self._open:
                    raise ConnectionResetError("the line has broken")
                await self._stream.send(FRAME.pack(number, len(piece)) + piece)

    def forget(self, number: int) -> None:
        """Close a channel, as far as that goes without waiting."""
        if self._open.pop(number, None) is not None and not self._is_over:
            self._stream.send_now(FRAME.pack(number, 0))

    def close(self) -> None:
        """End all channels."""
        self._is_over = True
        self._stream.close()
        for channel in self._open.values():
            # Waiting readers get the end.
            channel.put(b"")
        self._open.clear()


class _Channel:
    """Connection over a channel."""

    def __init__(self, channels: Channels, number: int) -> None:
        self._channels = channels
        self._number = number
        self._read = bytearray()
        self._is_over = False
        self._news = anyio.Event()

    def put(self, data: bytes) -> bool:
        """Append received bytes. Return False if too many are unread."""
        self._read += data
        self._is_over = self._is_over or not data
        self._news.set()
        return len(self._read) <= _WAITING_BYTES

    async def receive(self) -> bytes:
        while not self._read and not self._is_over:
            self._news = anyio.Event()
            await self._news.wait()
        data = bytes(self._read)
        self._read.clear()
        return data

    async def send(self, data: bytes) -> None:
        await self._channels.send(self._number, data)

    def close(self) -> None:
        self._channels.forget(self._number)
