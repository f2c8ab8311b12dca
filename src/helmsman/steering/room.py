"""How many turns a door may have running at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.errors import TooManySessions

if TYPE_CHECKING:
    from collections.abc import Sequence


class Room:
    """How much of `MAX_SESSIONS` a door uses, beside the turns that are known to run."""

    def __init__(self) -> None:
        self.starting = 0

    def refuse_if_full(self, running: Sequence[str], most: int) -> None:
        """Make sure that one more may begin.

        Raises:
            TooManySessions: These sessions, and what is starting, are as many as there may be.
        """
        if len(running) + self.starting >= most:
            raise TooManySessions(
                f"{len(running) + self.starting} turns are running and MAX_SESSIONS is {most}. Wait for one to end, "
                "interrupt one, or raise the limit.",
                running=list(running),
            )
