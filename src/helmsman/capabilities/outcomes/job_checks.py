"""Which check a job has, and who runs it in a session's worktree."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman.base.git import find_git
from helmsman.capabilities.outcomes.check_discovery import find_check
from helmsman.capabilities.outcomes.checks import CheckRunner
from helmsman.capabilities.repository_commands import CommandAllowance
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.capabilities.outcomes.reports import CheckData
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.sessions.session import Session


async def find_the_check(work: Work) -> CheckData:
    """The command that verifies, and where: the one that was given, in the directory that was given; or that of the
    nearest directory around it in the repository whose files make it plain.

    Raises:
        InvalidInput: There is none.
    """
    wanted = work.wanted

    def look() -> CheckData:
        git = find_git(Path(wanted.directory), work.helm.settings.state_dir)
        root = None if git is None else git.work_tree.resolve()
        place = Path(wanted.directory).resolve()
        if root is None or not place.is_relative_to(root):
            root = place
        if wanted.check is not None:
            return {"command": wanted.check, "why": "It was given.", "folder": _below(root, place)}
        for folder in (place, *place.parents):
            if (found := find_check(folder)) is not None:
                return {"command": found.command, "why": found.why, "folder": _below(root, folder)}
            if folder == root:
                break
        raise InvalidInput(
            f"How the repository around {wanted.directory} checks itself is not plain from its files. Name the command "
            "that does (check, on the shell --check), for example `make test`.",
            parameter="check",
        )

    check: CheckData = await work.once("check", partial(anyio.to_thread.run_sync, look))
    return check


def _below(root: Path, folder: Path) -> str:
    below = folder.relative_to(root).as_posix()
    return "" if below == "." else below


def runner_for(work: Work, session: Session, folder: str) -> CheckRunner:
    """Runs checks in this folder of a session's worktree, with what the session may do and no more.

    Raises:
        InvalidInput: It has no worktree any more.
    """
    if session.worktree is None:
        raise InvalidInput(f"The worktree of session {session.id} is gone, so nothing can be verified. Ask again.")
    return CheckRunner(
        session.worktree,
        work.consent(session),
        replace(CommandAllowance.of(session, work.helm.agents), folder=folder),
        settings=work.helm.settings,
        env=work.helm.environment,
        since=work.known(_ready(session)),
    )


async def note_ready(work: Work, session: Session) -> None:
    """Write down when a session's worktree was ready for its agent: set up, and checked as it was."""

    async def now() -> float:
        return time.time()

    await work.once(_ready(session), now)


def _ready(session: Session) -> str:
    return f"ready {session.id}"
