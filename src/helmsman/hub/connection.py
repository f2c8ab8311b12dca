"""Connection of one client to the hub: lines in both directions. A client that does not read blocks no other client."""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from socket import recv_fds
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    import socket

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024
_MOST_DESCRIPTORS: Final = 4
_BACKLOG_BYTES: Final = 1024 * 1024
"""Maximum number of bytes queued for a client that does not read. Beyond it senders wait, and the hub stops
reading from it.
"""


class Connection:
    """Connected socket. Run `write_all` in a task group while there is anything to write."""

    def __init__(self, socket: socket.socket) -> None:
        socket.setblocking(False)
        self._socket = socket
        self._read = bytearray()
        self._waiting = bytearray()
        self._news = anyio.Event()
        self._progress = anyio.Event()
        self.is_gone = False
        self.descriptors: list[int] = []
        """Descriptors that the client has handed over, in order. The code that takes one closes it."""

    async def begins_with(self, word: bytes) -> bool:
        """Return whether the stream begins with this word. The bytes stay in the buffer."""
        while len(self._read) < len(word) and word.startswith(self._read):
            chunk = await self._receive()
            if not chunk:
                break
            self._read += chunk
        return self._read.startswith(word)

    def hand_on(self) -> tuple[socket.socket, bytes, list[int]]:
        """Return the socket, the bytes read and the descriptors received, for a server that takes over."""
        read, descriptors = bytes(self._read), self.descriptors
        self._read.clear()
        self.descriptors = []
        return self._socket, read, descriptors

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > _BACKLOG_BYTES and not self.is_gone

    async def line(self, most: float = math.inf) -> bytes | None:
        """Return the next line without its end, or None at the end of the stream, or if it is longer than `most` bytes.

        Waits while the client does not read.
        """
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if searched > most:
                return None
            while self.is_full:
                await self.progress()
            chunk = await self._receive()
            if not chunk:
                return None
            self._read += chunk
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    async def _receive(self) -> bytes:
        while True:
            try:
                return self._receive_now()
            except BlockingIOError:
                with suppress(OSError):
                    await anyio.wait_readable(self._socket)
            except OSError:
                return b""

    def _receive_now(self) -> bytes:
        data, descriptors, _, _ = recv_fds(self._socket, _CHUNK_BYTES, _MOST_DESCRIPTORS)
        for descriptor in descriptors:
            # Otherwise every agent would inherit it.
            os.set_inheritable(descriptor, False)
        self.descriptors += descriptors
        for descriptor in self.descriptors[_MOST_DESCRIPTORS:]:  # no client needs more, and the hub has a limit
            os.close(descriptor)
        del self.descriptors[_MOST_DESCRIPTORS:]
        return data

    def close(self) -> None:
        """Close the connection, and the descriptors that were not taken."""
        self._socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    def put(self, line: bytes) -> None:
        """Queue a line, in order, however much is queued already. With an empty queue it is sent immediately."""
        first = not self._waiting
        self._waiting += line + b"\n"
        if first:
            with suppress(OSError):  # the buffer is full, or the client is gone: the writer finds out
                del self._waiting[: self._socket.send(self._waiting[:_CHUNK_BYTES])]
        if self._waiting:
            self._news.set()

    async def send(self, line: bytes) -> None:
        """Send a line; waits while the client does not read.

        Raises:
            anyio.BrokenResourceError: The client is gone.
        """
        while self.is_full:
            await self.progress()
        if self.is_gone:
            raise anyio.BrokenResourceError
        self.put(line)

    async def progress(self) -> None:
        """Wait until the client has read something, or is gone."""
        await self._progress.wait()

    async def write_all(self) -> None:
        """Write the queued lines, until cancelled or the client is gone."""
        try:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                while self._waiting:
                    try:
                        del self._waiting[: self._socket.send(self._waiting[:_CHUNK_BYTES])]
                    except BlockingIOError:
                        await anyio.wait_writable(self._socket)
                    self._report_progress()
        except OSError:
            log.debug("a client is gone")
        finally:
            self.is_gone = True
            self._report_progress()

    async def written(self) -> None:
        """Wait until all is written, or the client is gone."""
        while self._waiting and not self.is_gone:
            await self.progress()

    def last_word(self, line: bytes) -> None:
        """Send a last line without waiting, after the queued ones, because the process ends."""
        with suppress(OSError):
            self._socket.send(self._waiting + line + b"\n")

    def _report_progress(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()
