"""Find the check of a job, and create its runner for a session."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.base.caller_context import environment
from helmsman.base.git import find_git
from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.check_discovery import find_check
from helmsman.capabilities.outcomes.checks import CheckRunner
from helmsman.capabilities.repository_commands import CommandAllowance
from helmsman.capabilities.worktree_setup import set_up_with
from helmsman.errors import InvalidInput
from helmsman.settings import CONFIG_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.outcomes.reports import CheckData
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.sessions.session import Session


_FIRST_WORD: Final = re.compile(r"\s*([A-Za-z0-9_.+-]+)(?=\s|$)")
_BUILT_IN: Final = frozenset(
    re.findall(
        r"\S+", "if for while case until test true false exit cd set export unset eval exec command trap umask ."
    )
)


async def find_the_check(work: Work) -> CheckData:
    """Return the command that verifies the job, and its directory.

    A given check runs in the given directory; otherwise the check of the nearest directory with one is used, up to the
    root of the repository.

    Raises:
        InvalidInput: There is no check, or its program is not installed.
    """
    wanted = work.wanted

    def look() -> CheckData:
        git = find_git(Path(wanted.directory), work.helm.settings.state_dir)
        root = None if git is None else git.work_tree.resolve()
        place = Path(wanted.directory).resolve()
        if root is None or not place.is_relative_to(root):
            root = place
        if wanted.check is not None:
            _require_program(wanted.check, root, work.helm.environment)
            return {"command": wanted.check, "why": "It was given.", "folder": _below(root, place)}
        for folder in (place, *place.parents):
            if (found := find_check(folder)) is not None:
                _require_program(found.command, root, work.helm.environment)
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


def _require_program(command: str, root: Path, env: Mapping[str, str] | None) -> None:
    """Reject a check without an installed program before the job begins.

    Commands that need a shell, or a program that a set-up command may install, are left to the first run of the check.

    Raises:
        InvalidInput: There is no such program.
    """
    first = _FIRST_WORD.match(command)
    if first is None or first[1] in _BUILT_IN or (root / CONFIG_NAME).is_file():
        return
    if shutil.which(first[1], path=(environment() if env is None else env).get("PATH")) is None:
        raise InvalidInput(
            f"`{first[1]}` is not installed, so the check `{command}` cannot run. Install it, or name another check.",
            parameter="check",
        )


def _below(root: Path, folder: Path) -> str:
    below = folder.relative_to(root).as_posix()
    return "" if below == "." else below


def runner_for(work: Work, session: Session, folder: str) -> CheckRunner:
    """Return a runner for a session's checks, in this directory of a clean room, with the session's permissions.

    Raises:
        InvalidInput: The session's worktree is gone.
    """
    if session.worktree is None:
        raise InvalidInput(f"The worktree of session {session.id} is gone, so nothing can be verified. Ask again.")
    return CheckRunner(
        session.worktree,
        work.consent(session),
        replace(CommandAllowance.of(session, work.helm.agents), folder=folder),
        settings=work.helm.settings,
        env=work.helm.environment,
        set_up=set_up_with(session.worktree),
    )
