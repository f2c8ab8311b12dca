"""Ask for an outcome, and Helmsman itself looks whether it was reached: nothing is done because a model says so.

`helm.extras.outcomes.start(Wanted(kind="debug", …))` begins a job: a task that has turns run for it, in worktrees.
"""

from __future__ import annotations

from helmsman.capabilities.outcomes.jobs import Outcomes
from helmsman.capabilities.outcomes.wanted import Wanted

__all__ = ["Outcomes", "Wanted"]
