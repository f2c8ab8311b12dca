"""Names of the calls that a program may send to the hub."""

from __future__ import annotations

from typing import Final

VERBS: Final = (
    *("installed", "capabilities", "start", "say", "steer", "interrupt", "respond", "give_up", "fork", "hand"),
    *("history", "list", "session", "last_statuses"),
)
"""Verbs of `Helmsman` itself."""
PARTS: Final = ("tasks", "extras")
"""Parts built on the verbs. Their functions are called by path, such as `extras.changes.apply`."""
PAGE: Final = "page"
"""Call of another machine's dashboard: a request to the dashboard here, with the answer that the page would get."""
PAGE_CHANGES: Final = "page_changes"
"""Call for the changes since an event, for the same dashboard. Waits for a while if there are none."""
EVENTS: Final = "events"
"""The events of a session after a cursor, from its log."""
