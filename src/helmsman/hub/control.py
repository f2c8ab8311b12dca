"""Requests of `helmsman hub` to the hub's HTTP API (`helmsman.httpd.api`): its status, and its end.

Commands answer in some milliseconds, so this is HTTP on a bare socket: one request for each connection.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helmsman._version import __version__
from helmsman.hub.launch import LATER, HubFailed, NoHub, Way, claim_place, connect

if TYPE_CHECKING:
    from _socket import socket
    from pathlib import Path

HUB_PATH: Final = "/v1/hub"
STAY_PATH: Final = f"{HUB_PATH}/stay"
STOP_PATH: Final = f"{HUB_PATH}/stop"
RESTART_PATH: Final = f"{HUB_PATH}/restart"

_SECONDS: Final = 10.0
_REPLACE_SECONDS: Final = 30.0
_REPLACE_POLL: Final = 0.002
_CHUNK_BYTES: Final = 65536
_LAST_BYTES: Final = 100
"""Number of bytes kept of a stream, for the last event in it."""
_ACTIONS: Final = {"status": ("GET", HUB_PATH), "stop": ("POST", STOP_PATH), "restart": ("POST", RESTART_PATH)}


class Response(NamedTuple):
    status: int
    content: dict[str, Any]

    @property
    def is_ok(self) -> bool:
        return self.status == 200


def request(state: str, method: str, path: str, content: object = None) -> Response | None:
    """Send one request to the hub of a state directory. Return None if no hub runs. Blocks for some seconds at most."""
    connection = connect(state)
    if connection is None:
        return None
    with closing(connection):
        connection.settimeout(_SECONDS)
        try:
            _send(connection, method, path, content)
            said = b""
            while part := connection.recv(_CHUNK_BYTES):
                said += part
        except ConnectionError:
            return None  # it ended just now
    head, _, body = said.partition(b"\r\n\r\n")
    try:
        return Response(int(head.split()[1]), dict(json.loads(body)))
    except (IndexError, ValueError, TypeError):
        return None  # it ended in the middle of its answer


def _send(connection: socket, method: str, path: str, content: object = None) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)


def ask_hub(state_dir: Path, action: str) -> dict[str, Any] | None:
    """Return the status of the hub of a state directory, which then stops or restarts; None if no hub runs."""
    response = request(str(state_dir), *_ACTIONS[action])
    return response.content if response is not None and response.is_ok else None


def keep_hub(state_dir: Path) -> None:
    """Keep a hub running there, one after the other, until a user stops one. Blocks.

    Raises:
        NoHub: There can be none.
        HubFailed: None comes up.
    """
    way = Way(str(state_dir))
    last = b""
    while not last.endswith(last_event(LATER)):
        last = b""
        with closing(way.connection()) as connection:
            try:
                _send(connection, "GET", f"{STAY_PATH}?pid={os.getpid()}")
                while part := connection.recv(_CHUNK_BYTES):
                    last = (last + part)[-_LAST_BYTES:]
                    way.welcomed()
            except ConnectionError:
                continue


def last_event(word: bytes) -> bytes:
    """Return the last chunk of an event stream: the hub ends with this word."""
    event = b"event: end\ndata: %s\n\n" % word
    return b"%x\r\n%s\r\n" % (len(event), event)


def replace_older(state: str) -> bool:
    """End the older hub that is there and take its place; False where there is one of our version. Blocks.

    An older client may start the older hub again before we have the lock. That one is ended as well.
    """
    deadline = time.monotonic() + _REPLACE_SECONDS
    while time.monotonic() < deadline:
        try:
            if claim_place(state):
                return True
            response = request(state, "POST", RESTART_PATH, {"version": __version__})
        except (OSError, NoHub, HubFailed):
            return False
        if response is not None and not response.is_ok:
            return False
        time.sleep(_REPLACE_POLL)
    return False
