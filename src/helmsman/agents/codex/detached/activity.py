"""What is going on in an engine that listens, asked in passing: one connection, a few requests, synchronous.

For those who look after engines (`helmsman.agents.keeper`, `helmsman engines`) and do not work with them.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.keeper.watcher import Activity
from helmsman.base.line_framer import MAX_LINE_BYTES
from helmsman.errors import EngineLost, EngineTimeout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ_TIMEOUT: Final = 5.0
INTERRUPT_TIMEOUT: Final = 5.0
_POLL: Final = 0.05


def read_activity(socket: Path) -> Activity:
    """What runs in the engine.

    Raises:
        EngineError: It does not answer.
    """
    with _asking(socket, READ_TIMEOUT) as asking:
        return _read_activity(asking)


def interrupt_turns(socket: Path) -> None:
    """Stop all turns, with the commands they left running, so that each is recorded as interrupted.

    Raises:
        EngineError: The engine does not answer, or does not stop them in time.
    """
    with _asking(socket, INTERRUPT_TIMEOUT) as asking:
        for thread_id in _texts(asking.request("thread/loaded/list").get("data")):
            _interrupt(asking, thread_id)
        while (now := _read_activity(asking)).working or now.waiting:
            time.sleep(_POLL)


def _read_activity(asking: _Asking) -> Activity:
    working: list[str] = []
    waiting: list[str] = []
    for thread_id in _texts(asking.request("thread/loaded/list").get("data")):
        thread = asking.request("thread/read", threadId=thread_id, includeTurns=False).get("thread")
        if not isinstance(thread, dict):  # its first turn has only just begun, and Codex has nothing to read yet
            working.append(thread_id)
            continue
        status = thread.get("status")
        if isinstance(status, dict) and status.get("type") == "active":
            (waiting if status.get("activeFlags") else working).append(thread_id)
    return Activity(tuple(working), tuple(waiting))


def _interrupt(asking: _Asking, thread_id: str) -> None:
    turns = asking.request("thread/turns/list", threadId=thread_id, limit=1).get("data")
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and turn.get("status") == "inProgress":
            asking.request("turn/interrupt", threadId=thread_id, turnId=turn.get("id"))
    asking.request("thread/backgroundTerminals/clean", threadId=thread_id)


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


class _Asking:
    """A connection for requests only: what the engine says of its own accord is passed over."""

    def __init__(self, connection: Any, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._asked = 0

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer; a refusal counts as an empty one."""
        self._asked += 1
        self._connection.send(json.dumps({"id": self._asked, "method": method, "params": params}))
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            message = json.loads(self._connection.recv(timeout=left))
            if isinstance(message, dict) and message.get("id") == self._asked and "method" not in message:
                result = message.get("result")
                return result if isinstance(result, dict) else {}


@contextmanager
def _asking(socket: Path, timeout: float) -> Iterator[_Asking]:
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import unix_connect

    deadline = time.monotonic() + timeout
    try:
        with unix_connect(
            str(socket),
            uri="ws://localhost/",
            compression=None,
            open_timeout=timeout,
            close_timeout=1,
            max_size=MAX_LINE_BYTES,
        ) as connection:
            asking = _Asking(connection, deadline)
            client = {"name": "helmsman-keeper", "title": "Helmsman", "version": "1"}
            asking.request("initialize", clientInfo=client, capabilities={"experimentalApi": True})
            connection.send(json.dumps({"method": "initialized"}))
            yield asking
    except TimeoutError as error:
        raise EngineTimeout(
            f"The engine at {socket} did not answer within {timeout:g} s. If it goes on: helmsman engines stop."
        ) from error
    except (OSError, EOFError, ValueError, WebSocketException) as error:
        raise EngineLost(f"No Codex engine answers at {socket}: {error}. Check that one is running.") from error
