"""Run the repository's `[worktree] setup` command (`helmsman.toml`) in a new worktree, to add what a checkout lacks.

The command comes from the repository, so a rule or an answer must allow it; "always" adds a rule for these words in
this repository. It runs before the first turn, in the sandbox of the session's own commands. Its result is stored with
the worktree and shown in the session; the turn then begins, even if it failed.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.agents.protocol import Capability
from helmsman.base.files import replace_file
from helmsman.capabilities.held_turns import HeldTurn, hold_turn
from helmsman.capabilities.repository_commands import STOPPED, CommandAllowance, consent_of, run_command
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.git.command import find_git
from helmsman.git.worktree import Worktree, set_up_of
from helmsman.settings import CONFIG_NAME, read_toml

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

SET_UP_SECONDS: Final = 900.0
_WAITS: Final = "Its worktree is being set up."
_WHY: Final = f"The repository's set-up command for new worktrees, of {CONFIG_NAME}."
_SHOWN_CHARS: Final = 2000
_KEYS: Final = frozenset({"setup"})


def setup_command(repository: Path) -> str | None:
    """Return the setup command in a repository's current file. Blocks.

    Raises:
        InvalidSetting: The file is invalid.
    """
    path = repository / CONFIG_NAME
    if not path.is_file():
        return None
    table = read_toml(path).get("worktree", {})
    command = table.get("setup") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not table.keys() <= _KEYS or not isinstance(command, str | None):
        raise InvalidSetting(f'[worktree] in {path} can say `setup = "…"`, and nothing else. Correct it.')
    return command.strip() or None if command else None


def set_up_with(tree: Worktree) -> str | None:
    """Return the command that a worktree was set up with; None where none ran well. Blocks, briefly."""
    try:
        said = set_up_of(tree).read_text(encoding="utf-8")
        command = setup_command(tree.repository)
    except (OSError, InvalidSetting):
        return None
    return command if command is not None and said.startswith(_done(command)) else None


def _done(command: str) -> str:
    return f"The worktree was set up ({command}) in "


class WorktreeSetup:
    """`helm.extras.worktree_setup`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    async def is_due(self, directories: Sequence[Path]) -> bool:
        """Return whether one of the worktrees that are made for work in these directories is to be set up."""

        def look() -> bool:
            found = (find_git(directory, self._helm.settings.state_dir) for directory in directories)
            return any(git is not None and any(_setup_or_problem(git.work_tree)) for git in found)

        return await anyio.to_thread.run_sync(look)

    async def defer_turn(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        """Return whether a requested turn must wait for the setup of its worktrees; then `go_on` is called."""
        tree = session.worktree
        if tree is None or not _can_ask(session):
            return False
        due: list[tuple[Worktree, str]] = []
        for one in tree.each:
            command, problem = await anyio.to_thread.run_sync(_due, one)
            if problem is not None:
                await self._report(session, one, f"The worktree was not set up: {problem}", "")
            if command is not None:
                due.append((one, command))
        if due:
            hold_turn(self._helm, session, task_id, _WAITS, partial(self._set_up, due), go_on)
        return bool(due)

    async def _set_up(self, due: Sequence[tuple[Worktree, str]], held: HeldTurn) -> None:
        for tree, command in due:
            if held.session.is_stopping:
                return
            await self._ask_and_run(tree, command, held)

    async def _ask_and_run(self, tree: Worktree, command: str, held: HeldTurn) -> None:
        session = held.session
        allowance = CommandAllowance.of(session, self._helm.agents)
        if allowance.writes == "nothing":
            await self._report(
                session, tree, f"The worktree was not set up ({command}): the session may not write.", ""
            )
            return
        refused = await consent_of(self._helm, session)(command, tree, allowance, _WHY)
        if refused == STOPPED:
            return
        if refused is not None:
            await self._report(session, tree, f"The worktree was not set up ({command}): {refused}.", "")
            return
        try:
            with held.at_work(f"set-up of {tree.name}"):
                result = await run_command(
                    command,
                    tree.path,
                    allowance,
                    settings=self._helm.settings,
                    env=self._helm.environment,
                    timeout=SET_UP_SECONDS,
                )
        except HelmsmanError as error:
            await self._report(session, tree, f"The worktree could not be set up ({command}): {error.message}", "")
            return
        if result.timed_out:
            said = f"The set-up of the worktree ({command}) did not end in {SET_UP_SECONDS:.0f} s."
        elif result.passed:
            said = f"{_done(command)}{result.seconds:.1f} s."
        else:
            said = f"The set-up of the worktree failed ({command}): exit code {result.exit_code}."
        await self._report(session, tree, said, result.output, shown=not result.passed)

    async def _report(self, session: Session, tree: Worktree, said: str, output: str, *, shown: bool = False) -> None:
        path = set_up_of(tree)
        try:
            await anyio.to_thread.run_sync(replace_file, path, f"{said}\n\n{output}".rstrip() + "\n")
        except OSError as error:
            log.warning("the result of the set-up of %s cannot be stored: %s", tree.path, error)
        if shown:
            said += f" It said, at the end (all of it is in {path}): {output.strip()[-_SHOWN_CHARS:]}"
        session.remark(said)
        session.warn((said,))


def _can_ask(session: Session) -> bool:
    """Return whether a session can ask before its first turn.

    Without questions there is no session yet, so no setup.
    """
    return session.engine is None or Capability.ASK not in session.engine.capabilities.lacking


def _due(tree: Worktree) -> tuple[str | None, str | None]:
    """Return the command that must run in a worktree, if it has not yet; or why it is unknown."""
    return (None, None) if set_up_of(tree).exists() else _setup_or_problem(tree.repository)


def _setup_or_problem(repository: Path) -> tuple[str | None, str | None]:
    try:
        return setup_command(repository), None
    except InvalidSetting as error:
        return None, error.message
