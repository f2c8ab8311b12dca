"""Tell a call that kills hubs from hubs that are killed by something else.

A call is repeated for as long as its client waits. A call that several hubs died with is held back from the next hub for a
while. A hub that dies in that time clears the call. A hub that lives until it gets the call, and dies soon after, accuses
it. A call that was accused three times is given up. Pipes and programs decide by this.

Imported by pipes, which must start quickly: imports next to nothing.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ACCUSATIONS = 3
"""Number of hubs that lived without a call and died with it, after which the call is given up."""
QUICK_RETRIES = 2
"""Number of immediate repeats of a call. After that it is held back first."""
HOLD_SECONDS = 0.5
"""Seconds of the first hold. Each later hold is twice as long."""
LONGEST_HOLD_SECONDS = 64.0
MAY_BE_DONE = "It may have been done: look before you repeat it. The hub's log says more (helmsman hub log)."
GAVE_UP = f"{ACCUSATIONS} hubs of Helmsman ended while they worked on this, so it is not tried again. {MAY_BE_DONE}"


class Suspect:
    """Call, and the evidence against it from hubs that died."""

    __slots__ = ("accusations", "deaths", "held_until", "hold", "taken")

    def __init__(
        self,
        deaths: int = 0,
        accusations: int = 0,
        hold: float = 0.0,
        taken: float | None = None,
        held_until: float | None = None,
    ) -> None:
        """`taken` is when the hub began to work on the call, by the clock that all processes of the machine share."""
        self.deaths = deaths
        self.accusations = accusations
        self.hold = hold
        self.taken = taken
        self.held_until = held_until

    def values(self) -> list[float | None]:
        """Return the arguments that make the same suspect again, in another process."""
        return [self.deaths, self.accusations, self.hold, self.taken, self.held_until]

    @property
    def is_guilty(self) -> bool:
        return self.accusations >= ACCUSATIONS

    def take(self) -> None:
        """Note that the hub works on the call."""
        self.taken, self.held_until = time.monotonic(), None

    def hold_back(self) -> bool:
        """Begin to hold the call back from a new hub. Return False if it goes to the hub immediately."""
        if self.hold:
            self.held_until = time.monotonic() + self.hold
        return bool(self.hold)

    def release(self) -> None:
        """Let the hub have the call."""
        self.held_until = None

    def take_back(self) -> None:
        """Note that the hub has said goodbye, which says nothing about the call."""
        self.taken = self.held_until = None

    def clear(self) -> None:
        """Drop all suspicion: a hub has died without the call, or lived with it."""
        self.deaths, self.accusations, self.hold, self.taken, self.held_until = 0, 0, 0.0, None, None

    def note_death(self, *, alone: bool, at: float | None = None) -> None:
        """Note that the hub has died, now or `at` that time. `alone` says that it worked on no other call."""
        # This hub died although it never got the call.
        if self.held_until is not None:
            self.clear()
        if self.taken is None:
            return
        self.deaths += 1
        # Only a quick death of a hub that worked on nothing else is evidence.
        if self.hold and alone and (at or time.monotonic()) - self.taken < self.hold:
            self.accusations += 1
        if self.deaths > QUICK_RETRIES:
            self.hold = min(2 * self.hold or HOLD_SECONDS, LONGEST_HOLD_SECONDS)
        self.taken = None


def note_death(suspects: Iterable[Suspect]) -> None:
    """Note that a hub has died, for all calls that it was asked for or that were held back from it."""
    suspects = list(suspects)
    alone = sum(suspect.taken is not None for suspect in suspects) == 1
    for suspect in suspects:
        suspect.note_death(alone=alone)
