"""Names of the calls that a program may send to the hub."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "helmsman-program 1"
LAST_WORDS: Final = (b"h", b"l")
"""Last bytes of a hub before it ends (`helmsman.hub.process`). They are no message."""
SESSION: Final = "session"
"""Key of a session's id, which replaces the session. The copy is sent with the answer."""
FUNCTION: Final = "function"
"""Stand-in for a function of the program: its number. The arguments of a call are sent as `called`."""
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
"""Name of the call that returns a session's events after a cursor."""
