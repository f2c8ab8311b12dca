"""Tests that input from a connection to the hub is bounded."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from helmsman.hub.connection import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here.")]


async def test_a_line_that_is_too_long_and_more_descriptors_than_anybody_needs_are_not_taken() -> None:
    ours, theirs = socket.socketpair()
    with theirs, closing(Connection(ours)) as connection, anyio.fail_after(20):
        before = len(list(Path("/dev/fd").iterdir()))
        for _ in range(10):
            socket.send_fds(theirs, [b"x"], [0, 0, 0])
            await anyio.lowlevel.checkpoint()
        theirs.sendall(b"\nshort\n" + b"long" * 1000)
        assert await connection.line(1000) == b"x" * 10
        assert len(connection.descriptors) == 4
        assert len(list(Path("/dev/fd").iterdir())) == before + 4
        assert await connection.line(1000) == b"short"
        assert await connection.line(1000) is None
