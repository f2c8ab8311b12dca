"""What Codex can do beyond start and say, one module a capability, for every front door alike.

`Helmsman.extras` has them: `helm.extras.reviews.start(…)`, `helm.extras.changes.apply(…)`. Each part is made when it is
first used.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helmsman.extras.account import AccountFacts
    from helmsman.extras.changes import Changes
    from helmsman.extras.plans import Plans
    from helmsman.extras.reviews import Reviews
    from helmsman.extras.upkeep import Upkeep
    from helmsman.extras.usage import UsageReports
    from helmsman.service import Helmsman


class Extras:
    """The rest of what Codex can do."""

    def __init__(self, helm: Helmsman) -> None:
        self._helm = helm

    @cached_property
    def upkeep(self) -> Upkeep:
        """Forget turns, compact, rename, archive, goals."""
        from helmsman.extras.upkeep import Upkeep

        return Upkeep(self._helm)

    @cached_property
    def account(self) -> AccountFacts:
        """The account, its rate limits, the models."""
        from helmsman.extras.account import AccountFacts

        return AccountFacts(self._helm)

    @cached_property
    def reviews(self) -> Reviews:
        """Codex's own review of a change."""
        from helmsman.extras.reviews import Reviews

        return Reviews(self._helm)

    @cached_property
    def plans(self) -> Plans:
        """Plan first, and carry it out once that is approved."""
        from helmsman.extras.plans import Plans

        return Plans(self._helm)

    @cached_property
    def changes(self) -> Changes:
        """What a session changed: diff, apply, discard."""
        from helmsman.extras.changes import Changes

        return Changes(self._helm)

    @cached_property
    def usage(self) -> UsageReports:
        """Tokens and cost by day, model, directory, session."""
        from helmsman.extras.usage import UsageReports

        return UsageReports(self._helm)
