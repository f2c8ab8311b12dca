"""Channels over one stream: a request arrives once, whichever end closes a channel, and a wrong one harms no other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from helmsman.errors import EngineProtocolError
from helmsman.hub.bridge import FRAME
from helmsman.hub.channels import Channels
from helmsman.hub.http_client import HttpClient, SocketStream
from helmsman.hub.launch import _listen

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here.")]

SECONDS = 30
_PASSES = """
import sys
from helmsman.hub.bridge import _Passing
from helmsman.hub.launch import connect
try:
    _Passing(sys.argv[1], connect(sys.argv[1])).run()
except ConnectionResetError:
    pass  # the client is gone
"""


def frame(number: int, data: bytes = b"") -> bytes:
    return FRAME.pack(number, len(data)) + data


@dataclass
class Bridge:
    process: subprocess.Popen[bytes]
    client: socket.socket
    hub: socket.socket

    def accepted(self) -> socket.socket:
        connection, _ = self.hub.accept()
        connection.settimeout(SECONDS)
        return connection


@contextmanager
def bridge(state: Path) -> Iterator[Bridge]:
    """A bridge between a client and a hub, which are both this test."""
    client, theirs = socket.socketpair()
    with client, socket.socket(fileno=_listen(str(state))) as hub:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _PASSES, str(state)], stdin=theirs.fileno(), stdout=theirs.fileno()
            )
        client.settimeout(SECONDS)
        hub.settimeout(SECONDS)
        passing = Bridge(process, client, hub)
        try:
            with passing.accepted():
                yield passing
        finally:
            client.close()
            process.wait(SECONDS)


async def test_nothing_is_sent_on_a_channel_that_the_other_end_has_closed() -> None:
    ours, theirs = socket.socketpair()
    with theirs, anyio.fail_after(SECONDS):
        theirs.setblocking(False)
        channels = Channels(await SocketStream.of(ours))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channels.run)
            channel = await channels.connect()
            await channel.send(b"request")
            assert theirs.recv(100) == frame(1, b"request")
            theirs.send(frame(1, b"response") + frame(1))
            assert await channel.receive() + await channel.receive() == b"response"
            with pytest.raises(ConnectionResetError):
                await channel.send(b"request")
            channel.close()
            await (await channels.connect()).send(b"request")
            assert theirs.recv(100) == frame(2, b"request")
            channels.close()


def test_a_bridge_passes_no_request_on_for_a_channel_that_is_closed(tmp_path: Path) -> None:
    with bridge(tmp_path) as passing:
        passing.client.sendall(frame(1, b"first"))
        with passing.accepted() as first:
            assert first.recv(100) == b"first"
        assert passing.client.recv(FRAME.size) == frame(1)
        passing.client.sendall(frame(1, b"late") + frame(2, b"second"))
        with passing.accepted() as second:
            assert second.recv(100) == b"second"


def test_a_bridge_waits_for_no_channel_that_has_got_the_descriptor_of_another(tmp_path: Path) -> None:
    with bridge(tmp_path) as passing:
        passing.client.sendall(frame(1, b"first"))
        with passing.accepted() as first:
            assert first.recv(100) == b"first"
            passing.process.send_signal(signal.SIGSTOP)
            os.waitpid(passing.process.pid, os.WUNTRACED)
            first.sendall(b"response")
            passing.client.sendall(frame(1) + frame(2, b"half "))
            passing.process.send_signal(signal.SIGCONT)
            with passing.accepted() as second:
                assert second.recv(100) == b"half "
                passing.client.sendall(frame(2, b"and half"))
                assert second.recv(100) == b"and half"


async def test_a_name_that_no_request_can_hold_is_an_error_of_the_other_side() -> None:
    ours, theirs = socket.socketpair()
    with theirs:

        async def connect() -> SocketStream:
            return await SocketStream.of(ours.dup())

        http = HttpClient(connect)
        with ours:
            for name in ("a b", "a\r\nb", "\u00e9", "\ud800"):
                with pytest.raises(EngineProtocolError, match="no request can hold"):
                    await http.request("PUT", f"/v1/programs/1/tools/{name}")
