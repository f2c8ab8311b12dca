"""Ask for an outcome, and Helmsman itself finds out whether it was reached: nothing is done because a model says so.

`helm.extras.outcomes.start(Wanted(kind="debug", …))` begins a job: a task that has turns run for it, in worktrees. `jobs`
and `work` run them, by a procedure for each kind. `check_discovery` says how a repository checks itself, `checks` runs that,
`failures` reads what it said, `reproduction` whether that is the failure somebody named. `check_files` and `trials` run a
check in a session's worktree with other files: as they were before, or with small mutations. `evidence`, `claims`,
`interfaces` and `findings` hold what agents say to what is there.
"""

from __future__ import annotations

from helmsman.capabilities.outcomes.wanted import Wanted

__all__ = ["Wanted"]
