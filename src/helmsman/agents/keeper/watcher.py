"""What a keeper has to be told of the agent it keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Activity(NamedTuple):
    """What is under way: what is at work, and what waits for somebody's answer. By the agent's own names."""

    working: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Watcher(Protocol):
    """Knows what is going on in a child. The order to the keeper names its class, as `module:Class`.

    Made, with the address of its socket, before the child starts, so its module imports little.
    """

    def __init__(self, socket: Path) -> None: ...

    def import_the_rest(self) -> None:
        """Import what is needed later while it is there: Helmsman may be upgraded or removed while its engines live."""
        ...

    def on_output(self, line: bytes) -> None:
        """The child, on a pipe, has said this."""
        ...

    def on_input(self, line: bytes) -> None:
        """The child, on a pipe, was told this."""
        ...

    def activity(self) -> Activity:
        """What is under way.

        Raises:
            EngineError: The child does not say.
        """
        ...

    def interrupt(self) -> Sequence[bytes]:
        """Stop what is under way; what is returned is to be said to a child on a pipe for it.

        Raises:
            EngineError: The child does not stop in time.
        """
        ...


def read_line(line: bytes) -> dict[str, Any]:
    """A line of JSON that a child said or was told; empty where it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
