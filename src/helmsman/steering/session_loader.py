"""Load sessions that this process has not seen: from the log, the tasks, and the agent's own record.

A session outlives the processes that use it. A caller that requests one by its id gets its current state: the options of its
caller, its tasks, the end of its last turn, and, while a detached engine runs it, the engine to attach to.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from helmsman.agents.registry import usable
from helmsman.base.files import is_inside, refuse_outside
from helmsman.base.structs import Value, replace
from helmsman.errors import RegistryUnavailable, SessionBusy, SessionNotFound
from helmsman.git import lifecycle
from helmsman.model.events import (
    Event,
    MessageUnqueued,
    Notice,
    OptionsChanged,
    TaskLinked,
    TurnAdopted,
    TurnEnded,
    TurnRequested,
    WorktreeAssigned,
)
from helmsman.model.inputs import session_options
from helmsman.model.options import SessionOptions, TurnLimits
from helmsman.sessions.feed import Feed
from helmsman.sessions.history import SpentTurn, spent_so_far
from helmsman.sessions.session import Session
from helmsman.sessions.state import STATUS_AFTER, SessionState, SessionStatus
from helmsman.steering.turn_recovery import (
    UNKNOWN_END,
    events_of_last_turn,
    is_unlogged,
    unreported,
    with_unsent_queued,
)
from helmsman.store.log import StoredEvents
from helmsman.tasks.model import Task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from helmsman.agents.protocol import SessionIndex, SessionInfo
    from helmsman.base.clients import McpClient
    from helmsman.sessions.session import Listeners
    from helmsman.steering.shared import Shared
    from helmsman.steering.turn_recovery import TurnRecovery, TurnService

log = logging.getLogger(__name__)


class StoredSession(Value, frozen=True, kw_only=True):
    """Session as another process left it. `running` is its running task, if a process or engine still works on it.

    `state` is what its tasks and its agent say, and `logged` is its log. If no task runs, `last_turn` has the events of its
    last turn, from its last task and its agent's record; `is_outside` says that the agent's own program ran it, so the log
    lacks it.
    """

    state: SessionState
    running: Task | None
    logged: StoredEvents
    last_turn: tuple[Event, ...]
    is_outside: bool
    unfinished: frozenset[str]
    """Its tasks that run or wait."""
    spent: Sequence[SpentTurn]


class SessionLoader:
    """Loads sessions for one client, and keeps those that are loaded up to date with other processes.

    `recovery` finds out what became of a turn that no process follows, and attaches to the engine that runs it.
    """

    def __init__(self, shared: Shared, service: TurnService, recovery: TurnRecovery) -> None:
        self._service = service
        self._settings = service.settings
        self._allowed_roots = service.settings.session_roots
        self._registry = shared.session_registry
        self._agent_records = shared.agent_records
        self._writer = shared.task_writer
        self._recovery = recovery

    # --- loaded sessions ---------------------------------------------------------------------------------------------

    def fresh(
        self, session_id: str, options: SessionOptions, *, directory: str | None, limits: TurnLimits | None = None
    ) -> Session:
        """Return a session that has just been opened. Listeners get its events when its first turn is under way (`add`)."""
        session = self._make(SessionState(session_id, directory=directory), listeners=None)
        held = TurnLimits.of(self._settings) if limits is None else limits
        session.apply(OptionsChanged(session_id=session_id, options=options, limits=held))
        return session

    def add(self, session: Session) -> None:
        """Add a session."""
        self._registry.by_id[session.id] = session
        session.introduce(self._registry.listeners)

    async def get(self, session_id: str) -> Session:
        """Return the current state of a session by its id, known or found on disk.

        Raises:
            SessionNotFound: It does not exist.
            InvalidInput: It works outside the allowed roots of this client.
        """
        known = self._registry.by_id.get(session_id)
        if known is None:
            known = await self._registry.restored.get(session_id, lambda: self._restore(session_id))
            self.refuse_outside(known)  # another client may have asked first
            return known
        self.refuse_outside(known)
        await self._catch_up(known)
        return known

    async def _catch_up(self, session: Session) -> None:
        """Bring a session up to date with what other processes have done in it."""
        if self._runs_here(session):
            return  # without a checkpoint: a caller cancelled from here on has had its effect
        async with session.catching_up:
            version = self._writer.database.version_of_others()
            if version is not None and version == session.seen_version and not session.state.is_running:
                return  # no other process has written since
            newer = await self.changed(session.id, session.task_ids, is_running=session.state.is_running)
            if newer is None:
                session.mark_seen(version)
            elif not self._runs_here(session):
                await self._bring_up_to_date(session, newer)

    async def _bring_up_to_date(self, session: Session, now: StoredSession, *, again: bool = True) -> None:
        for task_id in now.state.task_ids:
            # Folded, not applied: the log has these events already, or must not have them.
            session.fold(TaskLinked(session_id=session.id, task_id=task_id))
        self._registry.elsewhere.pop(session.id, None)
        task, logged = now.running, now.logged.after(session.feed.cursor)
        session.replay(logged.events, logged.cursor, logged.source)
        if task is None:
            if session.state.has_turn:  # also one that was only shown here: its readers hear how it ended
                session.apply(TurnAdopted(session_id=session.id, turn_id=session.state.turn_id))
                for event in unreported(session.state, now.last_turn):
                    session.apply(event)
            elif now.is_outside:
                session.mark_history(lacks=True)
                for event in now.last_turn:
                    session.fold(event)
            if session.state.is_running:
                session.apply(TurnEnded(session_id=session.id, outcome="failed", failure=UNKNOWN_END))
            session.fold(spent_so_far(session.id, now.spent))
            return
        if not await self._recovery.attach(session, task, now.spent):
            is_news = not session.state.is_running
            if is_news and again and (later := await self.stored(session.id)) is not None:
                # It may have ended between the read of its record and the check of its engine.
                await self._bring_up_to_date(session, later, again=False)
                return
            session.runs_elsewhere(runner := self._writer.who_runs(task))
            if is_news:
                session.fold(TurnRequested(session_id=session.id, text=task.instruction))
            session.fold(Notice(session_id=session.id, kind="engine", message=runner))
            session.fold(spent_so_far(session.id, now.spent))
            self._registry.elsewhere[session.id] = partial(self._catch_up, session)
            self._registry.has_elsewhere.set()

    def _runs_here(self, session: Session) -> bool:
        if session.state.is_running and usable(session.engine):
            return True  # also a turn that another client began in our engine
        return (
            session.has_queued_turns or not session.begun.is_set() or self._writer.running_task(session.id) is not None
        )

    def forget(self, session_id: str) -> None:
        """Unload a session. The next request loads it from disk."""
        self._registry.by_id.pop(session_id, None)
        self._registry.at_work.pop(session_id, None)
        self._registry.elsewhere.pop(session_id, None)
        self._registry.restored.forget(session_id)

    def _make(self, state: SessionState, listeners: Listeners | None) -> Session:
        async def read_log(cursor: int) -> StoredEvents:
            await self._writer.write()
            return await self.log_of(state.session_id, since=cursor)

        return Session(state, Feed(self._settings.event_buffer_size, read_log), self._service, listeners)

    async def _restore(self, session_id: str) -> Session:
        """Load the current state of a session that another process began."""
        known = await self.stored(session_id)
        if known is None:
            raise SessionNotFound(f"There is no session {session_id}. List the sessions to see which there are.")
        state_dir, place = self._settings.state_dir, known.state.directory
        tree = await anyio.to_thread.run_sync(lifecycle.adopt, state_dir, session_id, place)
        if session_id in self._registry.by_id:  # it was started here in the meantime
            return self._registry.by_id[session_id]
        session = self._make(known.state, self._registry.listeners)
        session.replay(known.logged.events, known.logged.cursor, known.logged.source)
        if session.worktree != tree:  # it was made or removed while the session was not loaded
            session.fold(WorktreeAssigned(session_id=session_id, worktree=tree))
        session.fold(OptionsChanged(session_id=session_id, options=self.usable(session.options)))
        # A task may have ended, or have been taken back, without an event in this log.
        for queued in session.queue:
            if queued.task_id not in known.unfinished:
                session.fold(MessageUnqueued(session_id=session_id, task_id=queued.task_id))
        await self._bring_up_to_date(session, known)
        return self._registry.by_id.setdefault(session_id, session)

    # --- stored sessions ---------------------------------------------------------------------------------------------

    async def stored(self, session_id: str) -> StoredSession | None:
        """Return the stored state of a session, or None if it does not exist.

        Raises:
            InvalidInput: It works outside the allowed roots.
        """
        if not session_id.isprintable():  # nor can it be looked up: half of a surrogate pair is no text
            return None
        info = await self._agent_records.find(session_id)
        tasks = await self._tasks(session_id)
        if info is None and not tasks:
            return None
        directory = _directory(info, tasks)
        if directory is not None:
            refuse_outside(directory, self._allowed_roots, "session_id")
        last = next(filter(_was_a_turn, tasks), None)
        # The registry says so. Whether its process still lives is looked up.
        if last is not None and last.is_running:
            last = await self._recovery.now(last)
        running = last if last is not None and last.is_running else None
        turn = await self._agent_records.turn(session_id) if running is None else None
        waiting = {task.id for task in tasks if task.is_waiting}
        logged = with_unsent_queued(await self.log_of(session_id), waiting)
        last_turn = () if running is not None else events_of_last_turn(session_id, last, turn)
        state = SessionState(
            session_id,
            directory=directory,
            model=info.model if info is not None else tasks[0].model,
            name=info.name if info is not None else None,
            options=self._options(directory, tasks, info),
            limits=TurnLimits.of(self._settings),
            opened_by=await self._owner(session_id),
            # The registry has the newest first.
            task_ids=tuple(task.id for task in reversed(tasks)),
            created_at=_created_at(info, tasks),
            changed_at=_changed_at(info, tasks),
        )
        return StoredSession(
            state=state,
            running=running,
            logged=logged,
            last_turn=last_turn,
            is_outside=bool(last_turn) and is_unlogged(logged, turn),
            unfinished=frozenset(task.id for task in tasks if task.is_running),
            spent=await self._service.spent_by(session_id),
        )

    async def statuses(
        self, sessions: Sequence[tuple[SessionInfo, Sequence[Task]]], indexes: Mapping[str, SessionIndex]
    ) -> dict[str, SessionStatus]:
        """Return the outcome of the last turn of sessions that are not running, each given with its tasks."""
        turns = await self._agent_records.last_turns([info for info, _ in sessions], indexes)
        ended: dict[str, SessionStatus] = {}
        for info, tasks in sessions:
            last = next(filter(_was_a_turn, tasks), None)
            events = events_of_last_turn(info.session_id, last, turns[info.session_id])
            ends = (STATUS_AFTER[event.outcome] for event in events if isinstance(event, TurnEnded))
            ended[info.session_id] = next(ends, "done")
        return ended

    async def log_of(self, session_id: str, since: int = 0) -> StoredEvents:
        """Return the log of a session after a cursor, as far as it can be read."""
        try:
            return await self._writer.registry(lambda registry: registry.events(session_id, since))
        except RegistryUnavailable as error:
            log.warning("the log of session %s cannot be read: %s", session_id, error)
            return StoredEvents()

    def refuse_outside(self, session: Session) -> None:
        """Make sure that this client may read a session.

        Raises:
            InvalidInput: It works outside the allowed roots.
        """
        if (place := _asked_for(session)) is not None:
            refuse_outside(place, self._allowed_roots, "session_id")

    def is_inside(self, session: Session) -> bool:
        """Return whether this client may read a session."""
        return self.is_place_inside(_asked_for(session))

    def is_place_inside(self, place: str | Path | None) -> bool:
        """Return whether this client may read sessions in a directory. True if the directory is unknown."""
        return not self._allowed_roots or place is None or is_inside(place, self._allowed_roots)

    async def changed(self, session_id: str, task_ids: Sequence[str], *, is_running: bool) -> StoredSession | None:
        """Return the current stored state of a session, or None if it cannot be new to a caller that knows these tasks."""
        await self._writer.write()
        tasks = await self._tasks(session_id)
        if not tasks or (tasks[0].id in task_ids and not tasks[0].is_running and not is_running):
            return None
        return await self.stored(session_id)

    async def _owner(self, session_id: str) -> McpClient | None:
        """Return the MCP client that owns a session. Without the registry a person owns it: that gives no client more
        rights.
        """
        try:
            return await self._writer.registry(lambda registry: registry.owner_of(session_id))
        except RegistryUnavailable:
            return None

    async def _tasks(self, session_id: str) -> tuple[Task, ...]:
        try:
            return await self._writer.registry(lambda registry: registry.tasks_of_session(session_id))
        except RegistryUnavailable as error:
            log.warning("the tasks of session %s are not known: %s", session_id, error)
            return ()

    def _options(self, directory: str | None, tasks: Sequence[Task], info: SessionInfo | None) -> SessionOptions:
        place = Path(directory) if directory is not None and Path(directory).is_dir() else None
        agent = tasks[0].agent if tasks else None if info is None else info.agent
        checked = session_options(place, {"agent": agent}, self._allowed_roots)
        if tasks and place is not None:  # as it was given: where it leads now is compared before each turn
            checked = replace(checked, cwd=place)
        # Refused options were never in force: use those of the last turn that began.
        begun = next((task for task in tasks if task.turn_id is not None), tasks[-1] if tasks else None)
        kept = None if begun is None else begun.options
        return checked if kept is None else self.usable(replace(kept, agent=checked.agent, cwd=checked.cwd, tools=()))

    def usable(self, options: SessionOptions) -> SessionOptions:
        """Return the options of a loaded session without missing directories, limited to this client's roots."""
        there = tuple(root for root in options.writable_roots if root.is_dir())
        return self.narrowed(options if there == options.writable_roots else replace(options, writable_roots=there))

    def narrowed(self, options: SessionOptions) -> SessionOptions:
        """Limit the options of a session to this client's roots. Other clients may have had wider roots, or none."""
        roots = self._allowed_roots
        if not roots:
            return options
        inside = tuple(root for root in options.writable_roots if is_inside(root, roots))
        # Full access, configuration and trust reach beyond any roots, so they do not pass to another client.
        writes = None if options.writes == "anything" else options.writes
        return replace(
            options, writable_roots=inside, writes=writes, config={}, trust_repository=False, unenforced=False
        )


def _directory(info: SessionInfo | None, tasks: Sequence[Task]) -> str | None:
    """Return the directory of a session. A session that was carried here works in the directory of its last task here."""
    told = None if info is None else info.directory
    if not tasks and told is not None:  # begun in the agent's own program: from now on it is where it leads now
        return os.path.realpath(told)
    return told if not tasks or (told is not None and Path(told).is_dir()) else tasks[0].directory or told


def _created_at(info: SessionInfo | None, tasks: Sequence[Task]) -> datetime:
    times = [task.created_at for task in tasks[-1:]]
    if info is not None:
        times.append(info.created_at or info.updated_at)
    return min(times)


def _changed_at(info: SessionInfo | None, tasks: Sequence[Task]) -> datetime:
    worked = [task for task in tasks if not task.is_waiting]
    # A task that waits has not changed the session.
    if not worked and info is not None:
        return info.updated_at
    return max(task.completed_at or task.last_event_at or task.created_at for task in worked or tasks)


def _asked_for(session: Session) -> str | Path | None:
    """Return the directory that the work was requested for. All worktrees are in one place, whatever their repository."""
    if (tree := session.worktree) is not None and tree.directory.is_relative_to(tree.path):
        return tree.repository / tree.directory.relative_to(tree.path)
    return session.options.cwd or session.directory


def _was_a_turn(task: Task) -> bool:
    """Return whether this task was a turn. A message that was queued and taken back, or refused during a turn, was not."""
    if task.is_waiting:
        return False
    was_refused = task.error is not None and task.error.get("code") == SessionBusy.code
    return task.turn_id is not None or not (task.status == "canceled" or was_refused)
