"""What Helmsman itself says to an agent, without anybody's asking: after a failed attempt, a limit, a failed check.

Whoever shows a conversation can tell it from what a person said.
"""

from __future__ import annotations

from typing import Final

CONTINUE: Final = "Continue where you left off."
"""After an attempt at a step that did not succeed."""
GO_ON: Final = "The usage limit that ended your last turn is lifted. Go on where you left off."
MORE_GRANTED: Final = (
    "You were stopped because a budget was used up, and more has been granted. Go on where you left off."
)
NOT_HELD: Final = "What you did was verified, and it does not hold. This was seen:"
UNREADABLE: Final = "Your report cannot be read."

_BEGINNINGS: Final = (NOT_HELD, UNREADABLE)


def is_own(message: str) -> bool:
    """Whether Helmsman has said this by itself."""
    return message in (CONTINUE, GO_ON, MORE_GRANTED) or message.startswith(_BEGINNINGS)
