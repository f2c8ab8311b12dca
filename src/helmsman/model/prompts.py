"""Prompts that Helmsman sends on its own: after a failed attempt, a limit, a failed check.

Transcripts can tell them apart from messages of users.
"""

from __future__ import annotations

from typing import Final

CONTINUE: Final = "Continue where you left off."
"""Sent after a failed attempt at a step."""
GO_ON: Final = "The usage limit that ended your last turn is lifted. Go on where you left off."
MORE_GRANTED: Final = (
    "You were stopped because a budget was used up, and more has been granted. Go on where you left off."
)
NOT_HELD: Final = "What you did was verified, and it does not hold. This was seen:"
UNREADABLE: Final = "Your report cannot be read."

_BEGINNINGS: Final = (NOT_HELD, UNREADABLE)


def is_own(message: str) -> bool:
    """Return whether Helmsman itself sent this message."""
    return message in (CONTINUE, GO_ON, MORE_GRANTED) or message.startswith(_BEGINNINGS)
