"""What `helmsman hub` asks of the hub: how it is, to end, or to stay. A line each way, on the socket that doors use."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman._version import __version__
from helmsman.hub.launch import LATER, NEXT, Way, connect

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub

CONTROL: Final = "helmsman-control 1"
_SECONDS: Final = 10.0
_LAST_BYTES: Final = 100
"""So much of what a hub says is kept, for its last word."""
_WORDS: Final = {"stop": LATER, "restart": NEXT}
_STAY: Final = "stay"


async def serve_control(hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
    """Answer one request."""
    if refused is not None:
        return
    asked = fields[0] if fields else ""
    connection.put(json.dumps(_status(hub)).encode())
    await connection.written()
    if asked in _WORDS:
        hub.end(_WORDS[asked], f"helmsman hub {asked}")
    if asked == _STAY:
        hub.doors[connection] = _Stays(fields[1] if len(fields) > 1 else "?")
        while await connection.line() is not None:
            pass


@dataclass(frozen=True)
class _Stays:
    """A process for which the hub is there, whatever else needs it."""

    pid: str

    @property
    def description(self) -> Mapping[str, Any]:
        return {"kind": "run", "pid": self.pid, "version": __version__, "directory": "/"}


def _status(hub: Hub) -> dict[str, Any]:
    return {
        "version": __version__,
        "pid": os.getpid(),
        "epoch": hub.epoch,
        "stateDirectory": str(hub.state_dir),
        "uptimeSeconds": round(time.time() - hub.started_at, 1),
        "memoryBytes": _memory(),
        "sessionsAtWork": hub.work(),
        "nextScheduleAt": None if (next_at := hub.next_at()) is None else next_at.isoformat(timespec="seconds"),
        "noticesPending": hub.notices(),
        "doors": [dict(door.description) for door in hub.doors.values()],
    }


def _memory() -> int | None:
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file on a disk
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def keep_hub(state_dir: Path) -> None:
    """Have a hub there, one after the other, until one is told to stop. Blocks.

    Raises:
        NoHub: There can be none.
        HubFailed: None comes up.
    """
    way = Way(str(state_dir))
    last = b""
    while last != LATER:
        connection = way.connection()
        try:
            connection.sendall(f"{CONTROL}\t{_STAY}\t{os.getpid()}\n".encode())
            said = b""
            while part := connection.recv(65536):
                said = (said + part)[-_LAST_BYTES:]
                way.welcomed()
            last = said.strip().rpartition(b"\n")[2]
        except ConnectionError:
            last = b""
        finally:
            connection.close()


def ask_hub(state_dir: Path, request: str) -> dict[str, Any] | None:
    """What the hub of a state directory answers; None where there is none. Blocks for some seconds at most."""
    connection = connect(str(state_dir))
    if connection is None:
        return None
    try:
        connection.settimeout(_SECONDS)
        connection.sendall(f"{CONTROL}\t{request}\n".encode())
        said = b""
        while not said.endswith(b"\n"):
            part = connection.recv(65536)
            if not part:
                return None
            said += part
        answer: dict[str, Any] = json.loads(said)
    except ConnectionError:
        return None  # it ended just now
    else:
        return answer
    finally:
        connection.close()
