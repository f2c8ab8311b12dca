"""Run the repository's `[worktree] setup` command (`helmsman.toml`) in a new worktree, to add what a checkout lacks, and
its `teardown` command when the worktree is applied or discarded.

The commands come from the repository, so a rule or an answer must allow them; "always" adds a rule for these words in
this repository. Both are asked about before the first turn: at the end no person may be there to ask. The set-up runs
then, in the sandbox of the session's own commands. Its result is stored with the worktree and shown in the session; the
turn then begins, even if it failed. The tear-down always runs in a sandbox.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.agents.protocol import Capability
from helmsman.base.files import replace_file
from helmsman.base.structs import replace
from helmsman.capabilities.repository_commands import (
    STOPPED,
    CommandAllowance,
    HeldTurn,
    consent_of,
    hold_turn,
    run_command,
)
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.git.command import find_git
from helmsman.git.worktree import Worktree, set_up_of, write_record
from helmsman.model.events import WorktreeAssigned
from helmsman.settings import CONFIG_NAME
from helmsman.steering.worktree_settings import PORT, WorktreeTable, repository_table

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
TEAR_DOWN_SECONDS: Final = 120.0
_WHY_LATER: Final = f"The repository's tear-down command, of {CONFIG_NAME}. It runs at apply and discard."


def set_up_with(tree: Worktree) -> str | None:
    """Return the command that a worktree was set up with; None where none ran well. Blocks, briefly."""
    try:
        said = set_up_of(tree).read_text(encoding="utf-8")
        command = repository_table(tree.repository).setup
    except (OSError, InvalidSetting):
        return None
    return command if command is not None and said.startswith(_done(command)) else None


def _done(command: str) -> str:
    # `set_up_with` looks for these words in the record.
    return f"The worktree was set up ({command}) in "


class WorktreeSetup:
    """`helm.extras.worktree_setup`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    async def is_due(self, directories: Sequence[Path]) -> bool:
        """Return whether one of the worktrees that are made for work in these directories is to be set up."""

        def look() -> bool:
            found = (find_git(directory, self._helm.settings.state_dir) for directory in directories)
            return any(git is not None and _is_due(git.work_tree) for git in found)

        return await anyio.to_thread.run_sync(look)

    async def defer_turn(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        """Return whether a requested turn must wait for the setup of its worktrees; then `go_on` is called."""
        tree = session.worktree
        if tree is None or not _can_ask(session):
            return False
        due: list[tuple[Worktree, WorktreeTable]] = []
        for one in tree.each:
            table, problem = await anyio.to_thread.run_sync(_due, one)
            if problem is not None:
                await self._report(session, one, f"The worktree was not set up: {problem}", "")
            if table.setup is not None or table.teardown is not None:
                due.append((one, table))
        if due:
            hold_turn(self._helm, session, task_id, _WAITS, partial(self._set_up, due), go_on)
        return bool(due)

    async def _set_up(self, due: Sequence[tuple[Worktree, WorktreeTable]], held: HeldTurn) -> None:
        for tree, table in due:
            if table.teardown is not None and not held.session.is_stopping:
                await self._ask_for_later(tree, table.teardown, held.session, is_alone=table.setup is None)
            if table.setup is not None and not held.session.is_stopping:
                await self._ask_and_run(tree, table.setup, held)

    async def _ask_for_later(self, tree: Worktree, command: str, session: Session, *, is_alone: bool) -> None:
        """Ask whether the tear-down command may run in the end, and record a yes with its words."""
        refused = await consent_of(self._helm, session)(command, tree, _allowance(self._helm, session), _WHY_LATER)
        # Not recorded, so that the next turn asks again.
        if refused == STOPPED:
            return
        if refused is None:
            tree = replace(tree, teardown=command, others=())
            await anyio.to_thread.run_sync(write_record, tree)
            if session.worktree is not None:
                # Only the first worktree of a session lists the others.
                first, *others = (tree if one.path == tree.path else one for one in session.worktree.each)
                told = replace(first, others=tuple(replace(one, others=()) for one in others))
                session.apply(WorktreeAssigned(session_id=session.id, worktree=told))
        will = "is torn down in the end" if refused is None else "is not torn down in the end"
        said = f"The worktree {will} ({command})" + ("." if refused is None else f": {refused}.")
        if is_alone:
            # It writes the record without which the session would be asked again. A set-up writes it otherwise.
            await self._report(session, tree, said, "")
        else:
            session.remark(said)

    async def _ask_and_run(self, tree: Worktree, command: str, held: HeldTurn) -> None:
        session = held.session
        allowance = CommandAllowance.of(session, self._helm.agents)
        if allowance.writes == "nothing":
            await self._report(
                session, tree, f"The worktree was not set up ({command}): the session may not write.", ""
            )
            return
        refused = await consent_of(self._helm, session)(command, tree, allowance, _WHY)
        # Not recorded, so that the next turn asks again.
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
                    more=_variables(session, tree),
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


async def tear_down(helm: Steering, tree: Worktree) -> tuple[str, ...]:
    """Run the tear-down commands that were approved for a session's worktrees. Return remarks.

    The set-up is due again before the next turn there.
    """
    session = None if tree.session_id is None else helm.sessions.get(tree.session_id)
    remarks: list[str] = []
    for one in tree.each:
        if one.teardown is None or not await anyio.to_thread.run_sync(one.path.is_dir):
            continue
        try:
            result = await run_command(
                one.teardown,
                one.path,
                CommandAllowance() if session is None else _allowance(helm, session),
                settings=helm.settings,
                env=helm.environment,
                timeout=TEAR_DOWN_SECONDS,
                more=_variables(session, one),
            )
        except HelmsmanError as error:
            remarks.append(f"The worktree could not be torn down ({one.teardown}): {error.message}")
            continue
        set_up_of(one).unlink(missing_ok=True)
        if result.timed_out:
            remarks.append(f"The tear-down ({one.teardown}) did not end in {TEAR_DOWN_SECONDS:.0f} s.")
        elif result.passed:
            remarks.append(f"The worktree was torn down ({one.teardown}) in {result.seconds:.1f} s.")
        else:
            said = f" It said: {result.output.strip()[-_SHOWN_CHARS:]}" if result.output.strip() else ""
            remarks.append(f"The tear-down failed ({one.teardown}): exit code {result.exit_code}.{said}")
    return tuple(remarks)


def _allowance(helm: Steering, session: Session) -> CommandAllowance:
    """Return the permissions of a tear-down: the sandbox in which it was approved, whatever the session may do since."""
    return dataclasses.replace(CommandAllowance.of(session, helm.agents), writes="workspace", writable_roots=())


def _variables(session: Session | None, tree: Worktree) -> dict[str, str]:
    known = {} if session is None else session.options.environment
    return {**known, **({} if tree.port is None else {PORT: str(tree.port)})}


def _can_ask(session: Session) -> bool:
    """Return whether a session can ask before its first turn.

    Without questions there is no session yet, so no setup.
    """
    return session.engine is None or Capability.ASK not in session.engine.capabilities.lacking


def _due(tree: Worktree) -> tuple[WorktreeTable, str | None]:
    """Return the commands of a worktree, if it was not set up yet; or why they are unknown."""
    return (WorktreeTable(), None) if set_up_of(tree).exists() else _table_or_problem(tree.repository)


def _table_or_problem(repository: Path) -> tuple[WorktreeTable, str | None]:
    try:
        return repository_table(repository), None
    except InvalidSetting as error:
        return WorktreeTable(), error.message


def _is_due(repository: Path) -> bool:
    table, problem = _table_or_problem(repository)
    return problem is not None or table.setup is not None or table.teardown is not None
