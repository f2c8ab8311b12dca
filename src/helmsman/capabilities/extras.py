"""Capabilities beyond sessions and messages, one module each, for all front ends.

`helm.extras` provides them: `helm.extras.reviews.start(…)`, `helm.extras.changes.apply(…)`. Each is created on first use.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from helmsman.capabilities.account import AccountFacts
from helmsman.capabilities.budgets import Budgets
from helmsman.capabilities.changes import Changes, Workspaces
from helmsman.capabilities.configuration import AgentConfiguration
from helmsman.capabilities.limits import UsageLimits
from helmsman.capabilities.notices import Notices
from helmsman.capabilities.plans import Plans
from helmsman.capabilities.publishing import Publishing
from helmsman.capabilities.reviews import Reviews
from helmsman.capabilities.rewinding import Rewinding, Snapshots
from helmsman.capabilities.schedules import Schedules
from helmsman.capabilities.search import TranscriptSearch
from helmsman.capabilities.upkeep import MessageQueue, Upkeep
from helmsman.capabilities.usage_report import UsageReports
from helmsman.capabilities.worktree_setup import WorktreeSetup
from helmsman.model.nature import READS, verb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.outcomes.jobs import Outcomes
    from helmsman.steering.core import Steering


class Extras:
    """Capabilities of the service."""

    def __init__(self, helm: Steering, tasks: Tasks) -> None:
        self._helm = helm
        self._tasks = tasks

    @verb(READS)
    async def fleet(self) -> Mapping[str, Any] | None:
        """Return the machines of the fleet and its waiting work; None without a fleet."""
        return None

    upkeep = cached_property(lambda self: Upkeep(self._helm))
    """Forget turns, compact, rename, archive, goals."""
    account = cached_property(lambda self: AccountFacts(self._helm))
    """Account, rate limits and models."""
    configuration = cached_property(lambda self: AgentConfiguration(self._helm))
    """Codex's own configuration: read, and changed in the user's file."""
    reviews = cached_property(lambda self: Reviews(self._helm))
    """Codex's own review of a change."""
    plans = cached_property(lambda self: Plans(self._helm))
    """Plan first, and carry it out once that is approved."""
    changes = cached_property(lambda self: Changes(self._helm, self._tasks))
    """Changes of a session: diff, apply, discard."""
    message_queue = cached_property(lambda self: MessageQueue(self._helm))
    """Messages that wait for the end of a turn."""
    publishing = cached_property(lambda self: Publishing(self._helm, self.changes))
    """Commits, branches and pull requests of sessions."""
    snapshots = cached_property(lambda self: Snapshots(self._helm))
    """Snapshots of the files before each turn."""
    rewinding = cached_property(lambda self: Rewinding(self._helm, self.snapshots, self.upkeep))
    """Take a session back to before one of its turns: files, conversation, or both."""

    @cached_property
    def outcomes(self) -> Outcomes:
        """Ask for an outcome; Helmsman itself looks whether it was reached."""
        from helmsman.capabilities.outcomes.jobs import Outcomes  # takes 60 ms, and few hubs run a job

        return Outcomes(self._helm, self._tasks, self.budgets)

    limits = cached_property(lambda self: UsageLimits(self._helm))
    """Handling of turns that reach the account's usage limit."""
    schedules = cached_property(lambda self: Schedules(self._helm))
    """Schedules."""
    search = cached_property(lambda self: TranscriptSearch(self._helm))
    """Search in the transcripts of all sessions."""
    notices = cached_property(lambda self: Notices(self._helm))
    """Recipients of notifications, and the notifications sent to them."""
    worktree_setup = cached_property(lambda self: WorktreeSetup(self._helm))
    """Setup commands for new worktrees."""
    workspaces = cached_property(lambda self: Workspaces(self._helm, self.changes))
    """Working trees that come from other machines, and their results."""
    usage = cached_property(lambda self: UsageReports(self._helm, self._tasks.prices))
    """Tokens and cost by day, model, directory, session."""
    budgets = cached_property(lambda self: Budgets(self._helm, self.usage, self._tasks.prices))
    """Budgets."""
