"""MCP on standard input and output: one client, which ends the server by closing its end of the pipe.

The SDK reads standard input on a worker thread, and such a thread can be neither cancelled nor left behind: a server that
is told to end by a signal would stay until its client says something. So the lines are read here, by waiting for the
descriptor. They are written here too: the SDK hands each line to a worker thread, which costs more than all else that
Helmsman does with a message. While it serves, whatever else is printed goes to standard error.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from helmsman.mcp.server import build_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from helmsman.service import Helmsman

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024


async def serve_stdio(helm: Helmsman) -> None:
    """Serve one client, until it closes its pipe."""
    from mcp.server.stdio import stdio_server

    server = build_server(helm)
    with _standard_input() as stdin, _standard_output() as stdout:
        try:
            async with stdio_server(stdin, stdout) as (reader, writer):
                await server.run(reader, writer, server.create_initialization_options())
        except* BrokenPipeError:
            log.info("the client is gone")  # it closed both pipes while an answer was on its way


@contextmanager
def _standard_input() -> Iterator[Any]:
    """Standard input as the SDK wants it. Meanwhile children read nothing from it: it is the client's alone."""
    if sys.platform == "win32":  # no waiting for pipes there; nor does anyone end a server by a signal
        yield None
        return
    client = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield _Lines(client)
    finally:
        os.dup2(client, 0)
        os.close(client)


@contextmanager
def _standard_output() -> Iterator[Any]:
    """Standard output as the SDK wants it. Meanwhile whatever else is printed goes to standard error."""
    if sys.platform == "win32":
        yield None
        return
    sys.stdout.flush()
    client = os.dup(1)
    os.dup2(2, 1)
    try:
        yield _Output(client)
    finally:
        sys.stdout.flush()
        os.dup2(client, 1)
        os.close(client)


class _Output:
    """Writes to a descriptor without blocking: all that the SDK asks of an `anyio.AsyncFile`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def write(self, text: str) -> None:
        rest = memoryview(text.encode("utf-8"))
        while rest:
            await self._until_writable()
            rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]

    async def flush(self) -> None:
        """Nothing is held back."""

    async def _until_writable(self) -> None:
        """A pipe that is writable takes at least PIPE_BUF bytes, so a write of no more than that does not block."""
        if not select.select((), (self._descriptor,), (), 0)[1]:
            await anyio.wait_writable(self._descriptor)


class _Lines:
    """The lines of a descriptor: all that the SDK asks of an `anyio.AsyncFile`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def __aiter__(self) -> AsyncIterator[str]:
        line = bytearray()
        while chunk := await self._read():
            *ended, rest = chunk.split(b"\n")
            for end in ended:
                line += end
                yield line.decode("utf-8", "replace")
                line.clear()
            line += rest

    async def _read(self) -> bytes:
        try:
            await anyio.wait_readable(self._descriptor)
        except OSError:
            await anyio.lowlevel.checkpoint()  # a file or /dev/null: nothing to wait for, reading does not block
        return os.read(self._descriptor, _CHUNK_BYTES)
