"""Requests of commands to the hub's HTTP API, on a bare socket: commands answer in some milliseconds.

One request for each connection. A request may be a stream of events, for as long as the hub lives. Commands that only ask
import this, so it imports little.
"""

from __future__ import annotations

import json
import os
import time
from _socket import SCM_RIGHTS, SOL_SOCKET
from contextlib import closing
from functools import partial

from helmsman._version import __version__
from helmsman.hub.launch import LATER, HubConnector, HubFailed, NoHub, claim_place, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any

HUB_PATH = "/v1/hub"
STAY_PATH = f"{HUB_PATH}/stay"
LISTEN_PATH = f"{HUB_PATH}/listeners"
STOP_PATH = f"{HUB_PATH}/stop"
RESTART_PATH = f"{HUB_PATH}/restart"
BRIDGES_PATH = "/v1/bridges"
PROGRAMS_PATH = "/v1/programs"

OK = 200
_SECONDS = 10.0
_REPLACE_SECONDS = 30.0
_REPLACE_POLL = 0.002
_CHUNK_BYTES = 65536
END = "end"
"""Last event of a stream. Its data say whether the client starts the next hub."""
_ACTIONS = {"status": ("GET", HUB_PATH), "stop": ("POST", STOP_PATH), "restart": ("POST", RESTART_PATH)}


def request(state: str, method: str, path: str, content: object = None) -> tuple[int, dict[str, Any]] | None:
    """Send one request to the hub of a state directory. Return None if no hub runs. Blocks for some seconds at most."""
    connection = connect(state)
    if connection is None:
        return None
    try:
        status, answer = exchange(connection, method, path, content, seconds=_SECONDS, rest=_SECONDS)
    except TimeoutError:
        return None  # it is stuck
    return (status, answer) if status else None


def exchange(
    connection: socket, method: str, path: str, content: object = None, *, seconds: float, rest: float | None = None
) -> tuple[int, dict[str, Any]]:
    """Send a request and close the connection. Return the status and the content of the answer.

    The hub has so many `seconds` to begin its answer, and for each part of the `rest`; None is no limit. The status is 0 if
    it ended before the end of its answer.

    Raises:
        TimeoutError: It does not answer in time.
    """
    said = b""
    try:
        connection.settimeout(seconds)
        # With 1.0 the answer comes in one piece that ends with the connection.
        _send(connection, method, path, content, version="1.0")
        while part := connection.recv(_CHUNK_BYTES):
            connection.settimeout(rest)
            said += part
    except TimeoutError:
        raise
    except OSError:
        return 0, {}
    finally:
        connection.close()
    head, _, body = said.partition(b"\r\n\r\n")
    try:
        return int(head.split()[1]), dict(json.loads(body))
    except (IndexError, ValueError, TypeError):
        return 0, {}


def _send(
    connection: socket,
    method: str,
    path: str,
    content: object = None,
    descriptors: Sequence[int] = (),
    version: str = "1.1",
) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{method} {path} HTTP/{version}\r\nHost: hub\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    sent = 0
    if descriptors:
        import array  # only for listeners

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
                from helmsman.base.json_values import json_object  # only for a refusal

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
    answer = request(str(state_dir), *_ACTIONS[action])
    return answer[1] if answer is not None and answer[0] == OK else None


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
            answer = request(state, "POST", RESTART_PATH, {"version": __version__})
        except (OSError, NoHub, HubFailed):
            return False
        if answer is not None and answer[0] != OK:
            return False
        time.sleep(_REPLACE_POLL)
    return False
