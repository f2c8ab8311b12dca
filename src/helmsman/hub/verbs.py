"""What a program may ask of the hub, by name."""

from __future__ import annotations

from typing import Final

VERBS: Final = (
    *("installed", "capabilities", "start", "say", "steer", "interrupt", "respond", "give_up", "fork", "hand"),
    *("history", "list", "session", "last_statuses"),
)
"""What `Helmsman` itself is asked for."""
PARTS: Final = ("tasks", "extras")
"""What stands on it. Whatever these can be asked for is asked for by its path, such as `extras.changes.apply`."""
PAGE: Final = "page"
"""What the dashboard of another machine asks for: a request to the dashboard here, answered as the page would be."""
PAGE_CHANGES: Final = "page_changes"
"""What has changed since, for the same; waits for a while if nothing has."""
EVENTS: Final = "events"
"""The events of a session after a cursor, from its log."""
