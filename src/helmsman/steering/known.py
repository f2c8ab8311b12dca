"""Sessions that a service knows: those it started, and those of others that a client requested by id."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman import worktrees
from helmsman.agents.registry import usable
from helmsman.base.concurrency import OnceEach
from helmsman.errors import SessionNotFound
from helmsman.model.events import (
    Failure,
    MessageUnqueued,
    Notice,
    OptionsChanged,
    TaskLinked,
    TurnAdopted,
    TurnEnded,
    TurnRequested,
    TurnStarted,
    WorktreeAssigned,
)
from helmsman.model.options import TurnLimits
from helmsman.sessions.feed import Feed
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState
from helmsman.steering.memory import spent_so_far

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.model.events import Event
    from helmsman.model.options import SessionOptions
    from helmsman.sessions.session import Listeners, Verbs
    from helmsman.settings import Settings
    from helmsman.steering.memory import Memory, Remembered, SpentTurn
    from helmsman.store.log import StoredEvents
    from helmsman.tasks.model import Task
    from helmsman.tasks.writer import TaskWriter

_UNTOLD: Final = Failure(
    code="engine_lost",
    message="The process that ran this turn has ended, and the turn with it. Send the session a message to go on.",
    retryable=True,
)


class SessionRegistry:
    """Sessions of a process, for all clients, and the listeners to their events."""

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self.at_work: dict[str, Session] = {}
        """Those with a running turn or a queued message. Every start looks at them, and they are few among many."""
        self.elsewhere: dict[str, Callable[[], Awaitable[None]]] = {}
        """Functions that refresh sessions with a turn in another process: only the store has the end of that turn."""
        self.has_elsewhere = anyio.Event()
        """Set when `elsewhere` gets an entry, for the task that waits for the first."""
        self.sending: set[str] = set()
        """Sessions with a first queued message that is about to be sent."""
        self.restored = OnceEach[Session]()
        self.listeners: list[Callable[[Session, Event], None]] = []

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for the events of all sessions, until the returned function is called. Calling it
        twice is safe.
        """

        def stop() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        self.listeners.append(listener)
        return stop

    def on_event(self, session: Session, _event: Event) -> None:
        """Keep `at_work` true."""
        if session.state.is_running or session.queue:
            self.at_work[session.id] = session
        else:
            self.at_work.pop(session.id, None)


class KnownSessions:
    """View of the sessions of a process for one client.

    `take_over` attaches a session to the engine in which an earlier hub left its turn, and returns whether the engine runs
    it.
    """

    def __init__(
        self,
        settings: Settings,
        session_registry: SessionRegistry,
        memory: Memory,
        writer: TaskWriter,
        verbs: Verbs,
        take_over: Callable[[Session, Task, Sequence[SpentTurn]], Awaitable[bool]],
    ) -> None:
        self._settings = settings
        self._session_registry = session_registry
        self._memory = memory
        self._writer = writer
        self._verbs = verbs
        self._take_over = take_over

    def fresh(
        self, session_id: str, options: SessionOptions, *, directory: str | None, limits: TurnLimits | None = None
    ) -> Session:
        """Return a session that has just been opened. Listeners get its events when its first turn is under way (`add`)."""
        session = self._make(SessionState(session_id, directory=directory), listeners=None)
        usual = TurnLimits.of(self._settings.first_event_timeout, self._settings.inactivity_timeout)
        held = usual if limits is None else limits
        session.apply(OptionsChanged(session_id=session_id, options=options, limits=held))
        return session

    def add(self, session: Session) -> None:
        """The session is there from now on."""
        self._session_registry.by_id[session.id] = session
        session.introduce(self._session_registry.listeners)

    async def get(self, session_id: str) -> Session:
        """Return the current state of a session by its id, known or found on disk.

        Raises:
            SessionNotFound: There is none.
            InvalidInput: It works outside the allowed roots of this client.
        """
        known = self._session_registry.by_id.get(session_id)
        if known is None:
            known = await self._session_registry.restored.get(session_id, lambda: self._restore(session_id))
            self._memory.refuse_outside(known)  # another client may have asked first
            return known
        self._memory.refuse_outside(known)
        await self._catch_up(known)
        return known

    async def _catch_up(self, session: Session) -> None:
        """Others may have gone on with a session since we last looked at it."""
        if self._runs_here(session):
            return  # without a checkpoint: a caller cancelled from here on has had its effect
        async with session.catching_up:
            version = self._writer.version_of_others()
            if version is not None and version == session.seen_version and not session.state.is_running:
                return  # no other process has written since
            news = await self._memory.news(session.id, session.task_ids, is_running=session.state.is_running)
            if news is None:
                session.mark_seen(version)
            elif not self._runs_here(session):
                await self._bring_up_to_date(session, news)

    async def _bring_up_to_date(self, session: Session, now: Remembered, *, again: bool = True) -> None:
        for task_id in now.task_ids:
            session.fold(TaskLinked(session_id=session.id, task_id=task_id))
        self._session_registry.elsewhere.pop(session.id, None)
        task, logged = now.running, now.logged.after(session.feed.cursor)
        session.replay(logged.events, logged.cursor, logged.source)
        if task is None:
            if session.state.has_turn:  # also one that was only shown here: its readers hear how it ended
                session.apply(TurnAdopted(session_id=session.id, turn_id=session.state.turn_id))
                for event in now.ending or now.outside:
                    if not isinstance(event, TurnRequested | TurnStarted):
                        session.apply(event)
            elif now.outside:
                session.mark_history(lacks=True)
                for event in now.outside:
                    session.fold(event)
            if session.state.is_running:
                session.apply(TurnEnded(session_id=session.id, outcome="failed", failure=_UNTOLD))
            session.fold(spent_so_far(session.id, now.spent))
            return
        if not await self._take_over(session, task, now.spent):
            is_news = not session.state.is_running
            if is_news and again and (later := await self._memory.of(session.id)) is not None:
                # It may have ended between the read of its record and the check of its engine.
                await self._bring_up_to_date(session, later, again=False)
                return
            session.runs_elsewhere(runner := self._writer.who_runs(task))
            if is_news:
                session.fold(TurnRequested(session_id=session.id, text=task.instruction))
            session.fold(Notice(session_id=session.id, kind="engine", message=runner))
            session.fold(spent_so_far(session.id, now.spent))
            self._session_registry.elsewhere[session.id] = partial(self._catch_up, session)
            self._session_registry.has_elsewhere.set()

    def _runs_here(self, session: Session) -> bool:
        if session.state.is_running and usable(session.engine):
            return True  # also a turn that another client began in our engine
        return (
            session.has_queued_turns or not session.begun.is_set() or self._writer.running_task(session.id) is not None
        )

    def forget(self, session_id: str) -> None:
        """Unload a session. The next request loads it from disk."""
        self._session_registry.by_id.pop(session_id, None)
        self._session_registry.at_work.pop(session_id, None)
        self._session_registry.elsewhere.pop(session_id, None)
        self._session_registry.restored.forget(session_id)

    def _make(self, state: SessionState, listeners: Listeners | None) -> Session:
        async def read_log(cursor: int) -> StoredEvents:
            await self._writer.write()
            return await self._memory.log_of(state.session_id, since=cursor)

        return Session(state, Feed(self._settings.event_buffer_size, read_log), self._verbs, listeners)

    async def _restore(self, session_id: str) -> Session:
        """A session that others began, as it is now."""
        known = await self._memory.of(session_id)
        if known is None:
            raise SessionNotFound(f"There is no session {session_id}. List the sessions to see which there are.")
        tree = await anyio.to_thread.run_sync(worktrees.adopt, self._settings.state_dir, session_id, known.directory)
        if session_id in self._session_registry.by_id:  # it was started here in the meantime
            return self._session_registry.by_id[session_id]
        state = SessionState(
            session_id,
            directory=known.directory,
            model=known.model,
            name=known.name,
            options=known.options,
            limits=TurnLimits.of(self._settings.first_event_timeout, self._settings.inactivity_timeout),
            opened_by=known.opened_by,
            task_ids=known.task_ids,
            created_at=known.created_at,
            changed_at=known.changed_at,
        )
        session = self._make(state, self._session_registry.listeners)
        session.replay(known.logged.events, known.logged.cursor, known.logged.source)
        if session.worktree != tree:  # it was made or removed while the session was not loaded
            session.fold(WorktreeAssigned(session_id=session_id, worktree=tree))
        session.fold(OptionsChanged(session_id=session_id, options=self._memory.usable(session.options)))
        for queued in session.queue:
            if queued.task_id not in known.unfinished:
                session.fold(MessageUnqueued(session_id=session_id, task_id=queued.task_id))
        await self._bring_up_to_date(session, known)
        return self._session_registry.by_id.setdefault(session_id, session)
