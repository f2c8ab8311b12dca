"""Jobs with a verified outcome: Helmsman checks the result itself and never trusts a model's claim.

`helm.extras.outcomes.start(Wanted(kind="debug", …))` starts a job: a task that runs turns in worktrees. `jobs` and
`work` run it, by one procedure per kind. `check_discovery` finds a repository's check, `checks` runs it, `failures`
parses its output, `reproduction` compares failures with the reported one. `check_files` and `trials` run a check with
other files: as before the change, or with small mutations. `evidence`, `claims`, `interfaces` and `findings` compare
agents' claims with the facts.
"""

from __future__ import annotations

from helmsman.capabilities.outcomes.request import Wanted

__all__ = ["Wanted"]
