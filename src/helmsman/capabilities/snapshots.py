"""Take a snapshot of the files before each turn, so that it can be rewound (`helmsman.capabilities.rewinding`).

It must be complete before an agent can change a file: it starts when a turn is requested, and is awaited right before
the agent gets the request; loading and recording in between take about as long. If it fails or takes too long, the turn
begins without it, and the session reports that once.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.from_thread
import anyio.to_thread

from helmsman.base.files import is_inside
from helmsman.base.git_view import repository_root
from helmsman.errors import HelmsmanError
from helmsman.model.options import ASKS, DEFAULT_AGENT, WRITES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.base.git import Git
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

_SECONDS: Final = 10.0
"""Timeout of a snapshot. Ten thousand files take some ten milliseconds once they have been read."""


class Snapshots:
    """`helm.extras.snapshots`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm
        self._tasks: dict[str, str] = {}
        """Tasks of running turns with a snapshot, by session."""
        self._told: set[tuple[str, str]] = set()

    def begin(self, session: Session, task_id: str, sandbox: str | None) -> Callable[[], Awaitable[None]]:
        """Start the snapshot before a turn. Return a function that waits for it and never raises."""
        if not self._is_wanted(session, sandbox):
            return _nothing
        done, is_late = anyio.Event(), False

        def all_is_read() -> bool:
            if not is_late:
                done.set()
            return not is_late

        def take() -> None:
            from helmsman.worktrees.turn_snapshots import take_before

            git = self.git_of(session)
            if git is not None:
                in_time = partial(anyio.from_thread.run_sync, all_is_read)
                take_before(git, session.id, task_id, leave_out=leave_out_of(session), is_in_time=in_time)

        async def run() -> None:
            try:
                await self._run(session, take)
            finally:
                done.set()

        async def wait() -> None:
            nonlocal is_late
            with anyio.move_on_after(_SECONDS) as scope:
                await done.wait()
            if scope.cancelled_caught:
                is_late = True
                self._warn_once(session, f"it takes more than {_SECONDS:.0f} s")
            self._tasks[session.id] = task_id

        self._helm.in_background(run)
        return wait

    def ended(self, session: Session) -> None:
        """Record the tree at the end of a turn as its work. Later changes are not the session's."""
        task_id = self._tasks.pop(session.id, None)
        if task_id is None:
            return

        def take() -> None:
            from helmsman.worktrees.turn_snapshots import take_after

            git = self.git_of(session)
            if git is not None:
                take_after(git, session.id, task_id, leave_out=leave_out_of(session))

        self._helm.in_background(partial(self._run, session, take))

    def git_of(self, session: Session) -> Git | None:
        """Return the working tree of a session; None if there is none, or if a part of it is outside the allowed roots.
        Blocks.

        Raises:
            WorktreeError: Git refuses to use it.
        """
        from helmsman.worktrees.turn_snapshots import git_of, read_snapshots

        state_dir = self._helm.settings.state_dir
        directory = None if session.directory is None else Path(session.directory)
        if directory is None or not directory.is_dir():
            return None
        git = git_of(directory, state_dir, read_snapshots(state_dir, session.id))
        roots = self._helm.allowed_roots
        return git if git is None or not roots or is_inside(git.work_tree, roots) else None

    def _is_wanted(self, session: Session, sandbox: str | None) -> bool:
        settings, options = self._helm.settings, session.options
        is_elsewhere = settings.codex_remote is not None and options.agent == DEFAULT_AGENT
        writes = options.writes or WRITES.get(sandbox or "")
        asks = options.asks or ASKS.get(session.state.approval_policy or "")
        only_reads = writes == "nothing" and asks == "never"  # a session that may ask can write what is approved
        if not settings.snapshots or is_elsewhere or session.planning or only_reads or session.directory is None:
            return False
        return repository_root(session.directory) is not None  # outside of git there are none: no thread need find out

    async def _run(self, session: Session, take: Callable[[], None]) -> None:
        try:
            with anyio.move_on_after(_SECONDS, shield=True):  # a process may end as soon as its turn has
                await anyio.to_thread.run_sync(take, abandon_on_cancel=True)
        except HelmsmanError as error:
            self._warn_once(session, error.message)
        except Exception:
            log.exception("no snapshot of the files of session %s could be taken", session.id)

    def _warn_once(self, session: Session, why: str) -> None:
        if (session.id, why) not in self._told:
            self._told.add((session.id, why))
            session.warn((f"The files of this turn cannot be taken back later: {why}",))


def leave_out_of(session: Session) -> tuple[str, ...]:
    """Return files that were copied into a session's worktree, which are not its work."""
    return () if session.worktree is None else session.worktree.included


async def _nothing() -> None:
    return
