"""Which check a job has, and who runs it in a session's worktree."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman.base.git import find_git
from helmsman.capabilities.outcomes.checks import CheckRunner
from helmsman.capabilities.outcomes.finding_checks import find_check
from helmsman.capabilities.repository_commands import CommandAllowance
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.capabilities.outcomes.reports import CheckData
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.sessions.session import Session


async def find_the_check(work: Work) -> CheckData:
    """The command that verifies: the one that was given, or the repository's own where that is plain.

    Raises:
        InvalidInput: There is none.
    """
    wanted = work.wanted
    if wanted.check is not None:
        return {"command": wanted.check, "why": "It was given."}

    def look() -> CheckData:
        git = find_git(Path(wanted.directory), work.helm.settings.state_dir)
        found = None if git is None else find_check(git.work_tree)
        if found is None:
            raise InvalidInput(
                f"How the repository around {wanted.directory} checks itself is not plain from its files. Give the command "
                "as check, for example `make test`.",
                parameter="check",
            )
        return {"command": found.command, "why": found.why}

    check: CheckData = await work.once("check", partial(anyio.to_thread.run_sync, look))
    return check


def runner_for(work: Work, session: Session) -> CheckRunner:
    """Runs checks in a session's worktree, with what the session may do and no more.

    Raises:
        InvalidInput: It has no worktree any more.
    """
    if session.worktree is None:
        raise InvalidInput(f"The worktree of session {session.id} is gone, so nothing can be verified. Ask again.")
    return CheckRunner(
        session.worktree,
        work.consent(session),
        CommandAllowance.of(session),
        settings=work.helm.settings,
        env=work.helm.environment,
    )
