"""A Codex that others started, or that outlives us: a WebSocket on a Unix socket, or to a host.

Each opener is an async context manager that yields a `base.jsonrpc.Transport` and, when the block ends, has closed the
connection.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.base.addresses import REMOTE_TOKEN, engine_address, is_loopback
from helmsman.base.line_framer import MAX_LINE_BYTES
from helmsman.errors import EngineLost, EngineProtocolError, InvalidSetting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from websockets.asyncio.client import ClientConnection

    from helmsman.base.jsonrpc import RequestId

CONNECT_TIMEOUT: Final = 10.0

_LISTENING: Final = "0A"
"""The state of a socket, in Linux's tables."""


class WebSocketTransport:
    """One JSON object per text message."""

    resumed = None

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def messages(self) -> AsyncIterator[list[bytes | str]]:
        from websockets.exceptions import ConnectionClosed

        try:
            async for message in self._connection:
                yield [message]
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == 1009:  # we refused it: "message too big"
                raise EngineProtocolError(
                    f"Codex sent a message of more than {MAX_LINE_BYTES} bytes. Start the session again; if it is "
                    "resumed, its history may be too large to be read as a whole."
                ) from error

    async def send(self, message: str, answering: RequestId | None = None) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise EngineLost("The connection to the Codex engine is closed. Send the next message to go on.") from error

    async def loss(self) -> EngineLost:
        code = self._connection.close_code
        return EngineLost(
            f"Codex has ended, or closed the connection (code {code}). Send the next message to go on.", close_code=code
        )


@asynccontextmanager
async def open_unix(path: Path) -> AsyncIterator[WebSocketTransport]:
    """Connect to an engine that listens on a Unix socket.

    Raises:
        EngineLost: Nobody answers there.
    """
    from websockets.asyncio.client import unix_connect

    # Codex before 0.166 drops a handshake that offers compression.
    connecting = unix_connect(str(path), uri="ws://localhost/", **_OPTIONS)
    async with _connected(connecting, f"at {path}") as connection:
        _refuse_strangers(connection, path)
        yield WebSocketTransport(connection)


def _refuse_strangers(connection: ClientConnection, path: Path) -> None:
    """An engine of another user would learn all we tell it, and could answer anything."""
    if not hasattr(socket, "SO_PEERCRED"):
        return  # where the system does not tell, the directory of the socket keeps others out
    its_socket: socket.socket = connection.transport.get_extra_info("socket")
    credentials = its_socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise EngineLost(
            f"The engine at {path} belongs to another user. Remove that path, and start an engine of your own."
        )


@asynccontextmanager
async def open_remote(url: str, *, token: str | None) -> AsyncIterator[WebSocketTransport]:
    """Connect to an engine on another host, or on a port of this one.

    Raises:
        InvalidSetting: The address is not one we connect to, or needs a token.
        EngineLost: Nobody answers there, or the token is refused.
    """
    from websockets.asyncio.client import connect

    parts = engine_address(url)
    host, port = parts.hostname or "", parts.port or 80
    if token is None and not is_loopback(host):
        raise InvalidSetting(f"An engine on another machine is only used with a token. Set {REMOTE_TOKEN}.")
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    where = f"at {url}"
    options = dict(_OPTIONS)
    if parts.scheme == "ws" and token is not None:
        # Connected first: whoever takes the port from here on is not who gets the token.
        options["sock"] = await _connected_socket(host, port, where)
        if any(uid not in (0, os.geteuid()) for uid in listeners_uids(port)):
            options["sock"].close()
            raise EngineLost(
                f"The port of the engine {where} belongs to another user, so the token was not sent. Use another port."
            )
    connecting = connect(url, additional_headers=headers, **options)
    async with _connected(connecting, where) as connection:
        yield WebSocketTransport(connection)


async def _connected_socket(host: str, port: int, where: str) -> socket.socket:
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            connected = await anyio.to_thread.run_sync(lambda: socket.create_connection((host, port), CONNECT_TIMEOUT))
    except OSError as error:
        raise EngineLost(f"No Codex engine answers {where}: {error}. Check that one is running.") from error
    connected.setblocking(False)
    return connected


def listeners_uids(port: int) -> set[int]:
    """Whose programs listen on a port of this machine, as Linux tells; elsewhere nobody is known."""
    uids: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                uids.add(int(fields[7]))
    return uids


_quiet = logging.getLogger(f"{__name__}.websocket")
_quiet.setLevel(logging.INFO)  # below that every header is logged, the token among them
_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": None,
    "max_size": MAX_LINE_BYTES,
    "open_timeout": CONNECT_TIMEOUT,
    "logger": _quiet,
}


@asynccontextmanager
async def _connected(connecting: Any, where: str) -> AsyncIterator[ClientConnection]:
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

    try:
        connection: ClientConnection = await connecting
    except InvalidStatus as error:
        status = error.response.status_code
        hint = "Check the token." if status in (401, 403) else "Check that a codex app-server listens there."
        raise EngineLost(f"The engine {where} refused the connection (HTTP {status}). {hint}") from error
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI, EOFError, ssl.SSLError) as error:
        raise EngineLost(
            f"No Codex engine answers {where}: {str(error) or type(error).__name__}. Check that one is running."
        ) from error
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()
