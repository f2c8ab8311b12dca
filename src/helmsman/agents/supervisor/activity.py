"""Ask a supervisor what runs in its agent."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.watcher import Activity
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS: Final = 5.0


def ask_supervisor(address: Path) -> Activity:
    """Return what runs in the agent.

    Raises:
        EngineLost: The supervisor does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(address))
            connection.sendall(b"?\n")
            with connection.makefile("rb") as answer:
                working, waiting = json.loads(answer.readline())
        return Activity(tuple(map(str, working)), tuple(map(str, waiting)))
    except (OSError, ValueError, TypeError) as error:
        raise EngineLost(
            f"The supervisor at {address} does not answer: {error}. Look at `helmsman engines`."
        ) from error
