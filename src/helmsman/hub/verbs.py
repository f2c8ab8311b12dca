"""What a program may ask of the hub, by name."""

from __future__ import annotations

from typing import Final

VERBS: Final = (
    *("codex", "capabilities", "start", "say", "steer", "interrupt", "respond", "give_up", "fork"),
    *("history", "list", "session"),
)
"""What `Helmsman` itself is asked for."""
PARTS: Final = ("tasks", "extras")
"""What stands on it. Whatever these can be asked for is asked for by its path, such as `extras.changes.apply`."""
