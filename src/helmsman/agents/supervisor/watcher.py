"""What a supervisor has to know of its agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Activity(NamedTuple):
    """The sessions, by the agent's own ids, that are at work, and those that wait for an answer."""

    working: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Watcher(Protocol):
    """Knows what runs in an agent, from its input and output. The order to the supervisor names the class: `module:Class`.

    It is created before the agent starts, so its module imports little.
    """

    def on_output(self, line: bytes) -> None:
        """Handle a line from the agent."""
        ...

    def on_input(self, line: bytes) -> None:
        """Handle a line to the agent."""
        ...

    def activity(self) -> Activity:
        """Return what runs."""
        ...

    def interrupt(self) -> Sequence[bytes]:
        """Return the lines that make the agent stop what runs."""
        ...


def read_line(line: bytes) -> dict[str, Any]:
    """Return a line as a JSON object, or an empty one if it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
