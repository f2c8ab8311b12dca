"""Capabilities beyond sessions and messages, one module each, for all front ends.

`Helmsman.extras` provides them: `helm.extras.reviews.start(…)`, `helm.extras.changes.apply(…)`. Each is created on
first use.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.account import AccountFacts
    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.budgets import Budgets
    from helmsman.capabilities.changes import Changes, Workspaces
    from helmsman.capabilities.configuration import AgentConfiguration
    from helmsman.capabilities.limits import UsageLimits
    from helmsman.capabilities.notices import Notices
    from helmsman.capabilities.outcomes.jobs import Outcomes
    from helmsman.capabilities.plans import Plans
    from helmsman.capabilities.publishing import Publishing
    from helmsman.capabilities.reviews import Reviews
    from helmsman.capabilities.rewinding import Rewinding, Snapshots
    from helmsman.capabilities.schedules import Schedules
    from helmsman.capabilities.search import TranscriptSearch
    from helmsman.capabilities.upkeep import MessageQueue, Upkeep
    from helmsman.capabilities.usage_report import UsageReports
    from helmsman.capabilities.worktree_setup import WorktreeSetup
    from helmsman.steering.core import Steering


class Extras:
    """Capabilities of the service."""

    def __init__(self, helm: Steering, tasks: Tasks) -> None:
        self._helm = helm
        self._tasks = tasks

    async def fleet(self) -> Mapping[str, Any] | None:
        """Return the machines of the fleet and its waiting work; None without a fleet."""
        return None

    @cached_property
    def upkeep(self) -> Upkeep:
        """Forget turns, compact, rename, archive, goals."""
        from helmsman.capabilities.upkeep import Upkeep

        return Upkeep(self._helm)

    @cached_property
    def account(self) -> AccountFacts:
        """Account, rate limits and models."""
        from helmsman.capabilities.account import AccountFacts

        return AccountFacts(self._helm)

    @cached_property
    def configuration(self) -> AgentConfiguration:
        """Codex's own configuration: read, and changed in the user's file."""
        from helmsman.capabilities.configuration import AgentConfiguration

        return AgentConfiguration(self._helm)

    @cached_property
    def reviews(self) -> Reviews:
        """Codex's own review of a change."""
        from helmsman.capabilities.reviews import Reviews

        return Reviews(self._helm)

    @cached_property
    def plans(self) -> Plans:
        """Plan first, and carry it out once that is approved."""
        from helmsman.capabilities.plans import Plans

        return Plans(self._helm)

    @cached_property
    def changes(self) -> Changes:
        """Changes of a session: diff, apply, discard."""
        from helmsman.capabilities.changes import Changes

        return Changes(self._helm, self._tasks)

    @cached_property
    def message_queue(self) -> MessageQueue:
        """Messages that wait for the end of a turn."""
        from helmsman.capabilities.upkeep import MessageQueue

        return MessageQueue(self._helm)

    @cached_property
    def publishing(self) -> Publishing:
        """Commits, branches and pull requests of sessions."""
        from helmsman.capabilities.publishing import Publishing

        return Publishing(self._helm, self.changes)

    @cached_property
    def snapshots(self) -> Snapshots:
        """Snapshots of the files before each turn."""
        from helmsman.capabilities.rewinding import Snapshots

        return Snapshots(self._helm)

    @cached_property
    def rewinding(self) -> Rewinding:
        """Take a session back to before one of its turns: files, conversation, or both."""
        from helmsman.capabilities.rewinding import Rewinding

        return Rewinding(self._helm, self.snapshots, self.upkeep)

    @cached_property
    def outcomes(self) -> Outcomes:
        """Ask for an outcome; Helmsman itself looks whether it was reached."""
        from helmsman.capabilities.outcomes.jobs import Outcomes

        return Outcomes(self._helm, self._tasks, self.budgets)

    @cached_property
    def limits(self) -> UsageLimits:
        """Handling of turns that reach the account's usage limit."""
        from helmsman.capabilities.limits import UsageLimits

        return UsageLimits(self._helm)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules."""
        from helmsman.capabilities.schedules import Schedules

        return Schedules(self._helm)

    @cached_property
    def search(self) -> TranscriptSearch:
        """Search in the transcripts of all sessions."""
        from helmsman.capabilities.search import TranscriptSearch

        return TranscriptSearch(self._helm)

    @cached_property
    def notices(self) -> Notices:
        """Recipients of notifications, and the notifications sent to them."""
        from helmsman.capabilities.notices import Notices

        return Notices(self._helm)

    @cached_property
    def worktree_setup(self) -> WorktreeSetup:
        """Setup commands for new worktrees."""
        from helmsman.capabilities.worktree_setup import WorktreeSetup

        return WorktreeSetup(self._helm)

    @cached_property
    def workspaces(self) -> Workspaces:
        """Working trees that come from other machines, and their results."""
        from helmsman.capabilities.changes import Workspaces

        return Workspaces(self._helm, self.changes)

    @cached_property
    def usage(self) -> UsageReports:
        """Tokens and cost by day, model, directory, session."""
        from helmsman.capabilities.usage_report import UsageReports

        return UsageReports(self._helm, self._tasks.prices)

    @cached_property
    def budgets(self) -> Budgets:
        """Budgets."""
        from helmsman.capabilities.budgets import Budgets

        return Budgets(self._helm, self.usage, self._tasks.prices)
