"""Requests of commands to the hub's HTTP API, on a bare socket: commands answer in some milliseconds.

One request for each connection. A request may be a stream of events, for as long as the hub lives.
"""

from __future__ import annotations

import array
import json
import os
import time
from _socket import SCM_RIGHTS, SOL_SOCKET
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helmsman._version import __version__
from helmsman.base.json_values import json_object
from helmsman.hub.launch import LATER, HubConnector, HubFailed, NoHub, claim_place, connect

if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HUB_PATH: Final = "/v1/hub"
STAY_PATH: Final = f"{HUB_PATH}/stay"
LISTEN_PATH: Final = f"{HUB_PATH}/listeners"
STOP_PATH: Final = f"{HUB_PATH}/stop"
RESTART_PATH: Final = f"{HUB_PATH}/restart"
BRIDGES_PATH: Final = "/v1/bridges"
PROGRAMS_PATH: Final = "/v1/programs"

_SECONDS: Final = 10.0
_REPLACE_SECONDS: Final = 30.0
_REPLACE_POLL: Final = 0.002
_CHUNK_BYTES: Final = 65536
END: Final = "end"
"""Last event of a stream. Its data say whether the client starts the next hub."""
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
        except (ConnectionError, TimeoutError):
            return None  # it ended just now, or is stuck
    head, _, body = said.partition(b"\r\n\r\n")
    try:
        return Response(int(head.split()[1]), dict(json.loads(body)))
    except (IndexError, ValueError, TypeError):
        return None  # it ended in the middle of its answer


def _send(connection: socket, method: str, path: str, content: object = None, descriptors: Sequence[int] = ()) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    sent = 0
    if descriptors:
        passed = array.array("i", descriptors)
        sent = connection.sendmsg([request], [(SOL_SOCKET, SCM_RIGHTS, passed)])
    connection.sendall(request[sent:])


class Refused(Exception):
    """Raised if the hub has answered a request for a stream with a problem."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content.get("detail", ""))
        self.code = str(content.get("code", ""))


def events(
    connection: socket, method: str, path: str, content: object = None, descriptors: Sequence[int] = ()
) -> Iterator[tuple[str, str]]:
    """Send a request and yield the name and data of each event in its answer, until the hub ends. Blocks.

    Raises:
        Refused: The answer is a problem.
    """
    try:
        _send(connection, method, path, content, descriptors)
        lines = _lines(connection)
        status = next(lines, b"").split()
        # Up to the empty line that ends the head of the response.
        head = {line.partition(b":")[0].lower(): line for line in iter(partial(next, lines, b""), b"")}
        if status[1:2] != [b"200"]:
            if status[1:2] and b"content-length" in head:
                raise Refused(json_object(next(lines, b"")) or {})
            return
        name = ""
        for line in lines:
            field, _, value = line.decode().partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, value
    except OSError:
        return


def _lines(connection: socket) -> Iterator[bytes]:
    """Yield the lines of a response, without their ends. Sizes of chunks are among them."""
    read = b""
    while part := connection.recv(_CHUNK_BYTES):
        *lines, read = (read + part).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
    if read:
        yield read


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
    way, word = HubConnector(str(state_dir)), ""
    while word != LATER.decode():
        with closing(way.connection()) as connection:
            for name, data in events(connection, "GET", f"{STAY_PATH}?pid={os.getpid()}"):
                way.welcomed()
                word = data if name == END else ""


def last_event(word: bytes) -> bytes:
    """Return the last chunk of an event stream: the hub ends with this word."""
    event = b"event: %s\ndata: %s\n\n" % (END.encode(), word)
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
