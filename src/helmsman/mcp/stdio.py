"""MCP on standard input and output, for one client. The client ends the server by closing its end of the pipe.

The SDK reads standard input on a worker thread, which can be neither cancelled nor abandoned: after a signal, a server would
stay until its client sends a line. So this module waits for the descriptor and reads the lines itself. It also writes them:
the SDK passes each line to a worker thread, which costs more than all other work on a message. Here, all lines that are
ready are one write. While the server runs, other output goes to standard error.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.lowlevel
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

from helmsman.base.concurrency import background_tasks
from helmsman.mcp.messages import NoMessage, duplicate_error, parse_message
from helmsman.mcp.server import build_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from helmsman.service import HelmsmanService

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024

_BACKLOG_BYTES: Final = 1024 * 1024
"""Limit of bytes that wait for a client that does not read. Above it, writers wait and the client is not read."""

_LAST_WORDS_SECONDS: Final = 2.0
"""Time for a client to read the last messages."""


async def serve_stdio(helm: HelmsmanService) -> None:
    """Serve one client, until it closes its pipe."""
    server = build_server(helm)
    async with _streams(has_channel=server.has_channel) as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def _streams(*, has_channel: bool) -> AbstractAsyncContextManager[tuple[Any, Any]]:
    """Return standard input and output as the SDK expects them, for the length of a block."""
    if sys.platform == "win32":  # pipes cannot be polled there, and servers are not ended by signals
        from mcp.server.stdio import stdio_server

        return stdio_server()
    return _pipes(has_channel=has_channel)


@asynccontextmanager
async def _pipes(*, has_channel: bool) -> AsyncIterator[tuple[_Incoming, _Outgoing]]:
    with _standard_input() as stdin, _standard_output() as stdout, anyio.CancelScope() as serving:
        # The end of the client ends the server, also while it waits for a request.
        outgoing = _Outgoing(stdout, on_gone=serving.cancel)
        async with background_tasks() as tasks:
            tasks.start_soon(outgoing.write)
            yield _Incoming(stdin, outgoing, has_channel=has_channel), outgoing
            # The last answers reach a client that closed only its end for requests.
            with anyio.move_on_after(_LAST_WORDS_SECONDS):
                await outgoing.written()


@contextmanager
def _standard_input() -> Iterator[int]:
    """Yield the client's end of standard input. Inside the block, child processes read nothing from it."""
    client = os.dup(0)
    # Agents started here would otherwise read the client's messages.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield client
    finally:
        os.dup2(client, 0)
        os.close(client)


@contextmanager
def _standard_output() -> Iterator[int]:
    """Yield the client's end of standard output. Inside the block, other output goes to standard error."""
    # What was printed before must not appear after the first message.
    sys.stdout.flush()
    client = os.dup(1)
    # A stray print would break the protocol.
    os.dup2(2, 1)
    try:
        yield client
    finally:
        sys.stdout.flush()
        os.dup2(client, 1)
        os.close(client)


class SdkStream:
    """Methods that the SDK requires of both streams in addition to messages."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Do nothing, because the enclosing block owns the descriptor."""
        await anyio.lowlevel.checkpoint()


class _Outgoing(SdkStream):
    """Messages on their way to a descriptor. A caller who is cancelled leaves no half message behind."""

    def __init__(self, descriptor: int, *, on_gone: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_gone = on_gone
        self._waiting = bytearray()
        self._news = anyio.Event()
        self._progress = anyio.Event()
        self._gone = False
        self.open_requests: set[str | int] = set()
        """Ids of the client's open requests."""

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > _BACKLOG_BYTES and not self._gone

    async def progress(self) -> None:
        """Wait until the client has read something, or reads no more."""
        await self._progress.wait()

    async def send(self, message: SessionMessage) -> None:
        # Above the limit, the sender waits, and the SDK stops reading in turn.
        while self.is_full:
            await self.progress()
        # The SDK expects this error from a stream whose other end is gone.
        if self._gone:
            raise anyio.BrokenResourceError
        content = message.message
        if isinstance(content, JSONRPCResponse | JSONRPCError) and content.id is not None:
            # Before the answer is queued, so that the client may use the id again when it reads it.
            self.open_requests.discard(content.id)
        self.put(content)

    def put(self, message: JSONRPCMessage) -> None:
        """Queue a message, which is written when the client reads."""
        self._waiting += message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        self._news.set()

    async def write(self) -> None:
        """Write queued messages until cancelled, or until the client closes its end."""
        try:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                while self._waiting:
                    await self._until_writable()
                    del self._waiting[: os.write(self._descriptor, self._waiting[: select.PIPE_BUF])]
                    self._report_progress()
        except BrokenPipeError:
            log.info("the client is gone")  # it closed both pipes while an answer was on its way
            self._on_gone()
        finally:
            self._gone = True
            self._report_progress()

    async def written(self) -> None:
        """Wait until all is written, or the client has closed its end."""
        while self._waiting and not self._gone:
            await self.progress()

    def _report_progress(self) -> None:
        # Replaced, because an event stays set.
        self._progress.set()
        self._progress = anyio.Event()

    async def _until_writable(self) -> None:
        """Wait until the pipe is writable.

        It then takes at least PIPE_BUF bytes, so a write of at most that size does not block.
        """
        if not select.select((), (self._descriptor,), (), 0)[1]:
            await anyio.wait_writable(self._descriptor)


class _Incoming(SdkStream):
    """Messages from a descriptor. An invalid line is answered with an error."""

    def __init__(self, descriptor: int, outgoing: _Outgoing, *, has_channel: bool) -> None:
        self._has_channel = has_channel
        self._descriptor = descriptor
        self._outgoing = outgoing
        self._messages = self._read_messages()

    def __aiter__(self) -> AsyncIterator[SessionMessage | Exception]:
        return self._messages

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _read_messages(self) -> AsyncIterator[SessionMessage | Exception]:
        line = bytearray()
        while chunk := await self._read():
            *ended, rest = chunk.split(b"\n")
            for end in ended:
                line += end
                # Backpressure: requests of a client that reads no answers are not taken.
                if not await self._is_heard():
                    return
                message = self._parsed(bytes(line))
                line.clear()
                if message is not None:
                    yield message
            line += rest

    def _parsed(self, line: bytes) -> SessionMessage | None:
        """Return the message in a line; None for a line that the SDK does not see, which is answered here."""
        try:
            message = parse_message(line, has_channel=self._has_channel)
        except NoMessage as wrong:
            if wrong.answer is not None:
                self._outgoing.put(wrong.answer)
            return None
        if not isinstance(message, JSONRPCRequest):
            return SessionMessage(message)
        open_requests, request_id = self._outgoing.open_requests, message.id
        # An id in use: the answers could not be told apart.
        if request_id in open_requests:
            self._outgoing.put(duplicate_error(request_id))
            return None
        open_requests.add(request_id)

        async def unanswered() -> None:
            open_requests.discard(request_id)

        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=unanswered))

    async def _is_heard(self) -> bool:
        """Wait while the client does not read, so that its requests do not pile up.

        Return False if it has closed its end.
        """
        while self._outgoing.is_full:
            with anyio.move_on_after(_LAST_WORDS_SECONDS) as waiting:
                await self._outgoing.progress()
            if waiting.cancelled_caught and _hung_up(self._descriptor):
                return False
        return True

    async def _read(self) -> bytes:
        try:
            await anyio.wait_readable(self._descriptor)
        except OSError:
            await anyio.lowlevel.checkpoint()  # a file or /dev/null: nothing to wait for, reading does not block
        return os.read(self._descriptor, _CHUNK_BYTES)


def _hung_up(descriptor: int) -> bool:
    """Return whether the other end is closed, even if there is still data to read."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))
