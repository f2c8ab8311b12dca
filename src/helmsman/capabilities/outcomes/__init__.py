"""Jobs with a verified outcome: Helmsman checks the result itself and never trusts a model's claim.

`helm.extras.outcomes.start(Wanted(kind="debug", …))` starts a job: a task that runs turns in worktrees. `jobs` starts and
resumes it, `work` runs its steps, once each. `solving` has the jobs that end with a change, `steps` plans and loops, and
`reviewing` reviews. `checks` finds and runs a repository's check, `failures` parses its output, `reproduction` compares
failures with the reported one. `check_files` and `experiments` run a check with other files: as before the change, or with
small mutations. `differential` compares interfaces and what functions return, with `probe` in the repository's Python.
`judging` asks another agent about a verified change. `claims` compares agents' claims with the facts, `reports` has
the reports of jobs and of agents. `prompts.toml` has what agents are asked.
"""

from __future__ import annotations

from helmsman.capabilities.outcomes.request import Wanted

__all__ = ["Wanted"]
