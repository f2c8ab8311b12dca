"""Whether an outcome was reached, found out by Helmsman itself and not believed: checks that are run, and claims held to
what is there.

`finding_checks` says how a repository checks itself, `checks` runs that, `failures` reads what it said, `reproduction`
whether that is the failure somebody named. `own_files` and `trials` run a check in a session's worktree with other files:
as they were before, or with small mutations. `evidence`, `claims`, `interfaces` and `findings` hold what agents say to what
is there.
"""
