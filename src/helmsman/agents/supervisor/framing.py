"""How an agent separates its messages: lines on its standard streams, or a WebSocket on a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Final, Protocol

from helmsman.base.line_framer import MAX_LINE_BYTES, LineFramer

if TYPE_CHECKING:
    from pathlib import Path

    from websockets.client import ClientProtocol

_CONNECT_SECONDS: Final = 10.0
_READ_BYTES: Final = 64 * 1024


class Framing(Protocol):
    ends_with_connection: bool
    """Whether the agent is of no use once its output is closed. One on standard streams ends by itself."""

    def decode(self, data: bytes) -> list[bytes]:
        """Return the messages that these bytes complete, each without a line break."""
        ...

    def encode(self, line: bytes) -> bytes:
        """Return a message as bytes."""
        ...

    def reply(self) -> bytes:
        """Return the bytes that the protocol itself has to send after `decode`."""
        ...


class LineFraming:
    """A message is a line."""

    ends_with_connection = False

    def __init__(self) -> None:
        self._lines = LineFramer(drops_long=True)

    def decode(self, data: bytes) -> list[bytes]:
        return self._lines.feed(data)

    def encode(self, line: bytes) -> bytes:
        return line + b"\n"

    def reply(self) -> bytes:
        return b""


class WebSocketFraming:
    """A message is a text message of a WebSocket. Made by `connect_websocket` only."""

    ends_with_connection = True

    def __init__(self, protocol: ClientProtocol) -> None:
        self._protocol = protocol
        self._parts: list[bytes] = []
        self._messages: list[bytes] = []

    def decode(self, data: bytes) -> list[bytes]:
        self.receive(data)
        messages, self._messages = self._messages, []
        return messages

    def receive(self, data: bytes) -> None:
        from websockets.frames import DATA_OPCODES, Frame

        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
                self._parts.append(bytes(event.data))
                if event.fin:
                    whole = b"".join(self._parts)
                    self._messages.append(whole.replace(b"\n", b" "))  # white space between JSON values
                    self._parts.clear()

    def encode(self, line: bytes) -> bytes:
        self._protocol.send_text(line)
        return self.reply()

    def reply(self) -> bytes:
        return b"".join(self._protocol.data_to_send())


def connect_websocket(path: Path) -> tuple[WebSocketFraming, socket.socket]:
    """Connect to an agent that listens. Blocks for a bounded time.

    Raises:
        OSError: The agent does not answer, refuses, or belongs to another user.
    """
    from websockets.client import ClientProtocol
    from websockets.protocol import State
    from websockets.uri import parse_uri

    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(str(path))
        _refuse_other_users(connection, path)
        protocol = ClientProtocol(parse_uri("ws://localhost/"), max_size=MAX_LINE_BYTES)
        protocol.send_request(protocol.connect())
        framing = WebSocketFraming(protocol)
        connection.sendall(framing.reply())
        while protocol.state is State.CONNECTING and (data := connection.recv(_READ_BYTES)):
            framing.receive(data)
        _require_open(protocol, path)
    except BaseException:
        connection.close()
        raise
    return framing, connection


def _require_open(protocol: ClientProtocol, path: Path) -> None:
    from websockets.protocol import State

    if protocol.state is not State.OPEN:
        raise ConnectionError(f"the agent refused the connection at {path}: {protocol.handshake_exc}")


def _refuse_other_users(connection: socket.socket, path: Path) -> None:
    """Refuse a socket of another user, who would read all input and could answer anything."""
    if hasattr(socket, "SO_PEERCRED"):  # elsewhere the private directory of the socket has to do
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _pid, uid, _gid = struct.unpack("3i", credentials)
        if uid != os.geteuid():
            raise PermissionError(f"the socket at {path} belongs to another user")
