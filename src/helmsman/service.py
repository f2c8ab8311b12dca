"""`Helmsman`: the one service that every front door calls.

It owns the engine (opened at the first need, opened again when it was lost), the sessions it has seen, and the questions
that wait for an answer. It decides; front doors parse, call and format.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import anyio
import anyio.to_thread

from helmsman.concurrency import background_tasks
from helmsman.engines import find_agent, open_engine, session_index
from helmsman.errors import (
    HelmsmanError,
    InvalidInput,
    SessionBusy,
    SessionNotFound,
    TooManySessions,
)
from helmsman.events import (
    EngineGone,
    Failure,
    Notice,
    QuestionAsked,
    SettingsApplied,
    TurnEnded,
    TurnRequested,
    TurnStarted,
)
from helmsman.inputs import session_options, turn_input
from helmsman.sessions.audit import AuditLog
from helmsman.sessions.desk import Desk
from helmsman.sessions.feed import Feed
from helmsman.sessions.rule_book import RuleBook
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState
from helmsman.sessions.worktree import WORKTREES, create_worktree, remove_worktree
from helmsman.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.codex.binary import CodexBinary
    from helmsman.engine import Engine, Opened, PastTurn, SessionInfo, SessionOptions, TurnInput
    from helmsman.events import Event
    from helmsman.inputs import PathLike, StartOptions
    from helmsman.sessions.session import QuestionHandler, WhenBusy
    from helmsman.sessions.worktree import Worktree

log = logging.getLogger(__name__)

LIST_LIMIT: Final = 50


class Helmsman:
    """Runs Codex. Use it as an async context manager; leaving the block stops everything it started."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_question: QuestionHandler | None = None,
    ) -> None:
        self.settings = settings if settings is not None else load_settings()
        self._env = env
        self._exit = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._engine: Engine | None = None
        self._opening: anyio.Event | None = None
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, Session | anyio.Event] = {}
        self._listeners: list[Callable[[Session, Event], None]] = []
        self._starting = 0
        self._index = session_index(self.settings)
        own = self.settings.state_dir.resolve() / WORKTREES  # made only for work in an allowed place
        self._allowed_roots = (*self.settings.allowed_roots, own) if self.settings.allowed_roots else ()
        self._desk = Desk(
            RuleBook(self.settings.files, self.settings.state_dir),
            AuditLog(self.settings.state_dir),
            timeout=self.settings.approval_timeout,
            handler=on_question,
        )

    async def __aenter__(self) -> Self:
        self._tasks = await self._exit.enter_async_context(background_tasks())
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._exit.aclose()

    # --- the engine --------------------------------------------------------------------------------------------------

    async def codex(self) -> CodexBinary:
        """The Codex binary in use.

        Raises:
            CodexNotFound: There is none.
        """
        return await find_agent(self.settings, self._env)

    async def engine(self) -> Engine:
        """The engine, opened if need be."""
        while not _usable(self._engine):
            if self._opening is not None:
                await self._opening.wait()  # another caller is opening it; if that fails, it is our turn to try
                continue
            if self._tasks is None:
                raise _NOT_OPEN.again()
            self._opening = anyio.Event()
            try:
                self._engine = await self._tasks.start(self._keep_engine)
            finally:
                self._opening.set()
                self._opening = None
        assert self._engine is not None
        return self._engine

    async def _keep_engine(self, *, task_status: TaskStatus[Engine]) -> None:
        opened = False
        try:
            async with open_engine(self.settings, self._env) as engine:
                task_status.started(engine)
                opened = True
                await engine.until_lost()
        except Exception:
            if not opened:
                raise
            log.exception("the engine failed")  # its sessions are told when its block ends; the service goes on

    # --- verbs -------------------------------------------------------------------------------------------------------

    async def start(
        self,
        prompt: str,
        *,
        cwd: PathLike | None = None,
        images: Sequence[PathLike] = (),
        output_schema: Mapping[str, Any] | None = None,
        effort: str | None = None,
        on_question: QuestionHandler | None = None,
        worktree: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """A new session and its first turn. Returns when the turn is under way.

        `on_question` answers this session's questions, instead of the handler of the whole Helmsman. `worktree` gives it a
        git worktree of its own. The same `idempotency_key` again gives the same session.

        Raises:
            InvalidInput: An argument is wrong; nothing was started.
            TooManySessions: As many turns are running as are allowed.
            HelmsmanError: Codex is not there, or refuses.
        """
        checked = session_options(cwd if cwd is not None else ".", options, self._allowed_roots)
        turn = turn_input(prompt, images=images, output_schema=output_schema, effort=effort)

        async def begin() -> Session:
            return await self._start(checked, turn, on_question, worktree=worktree)

        if idempotency_key is None:
            return await self._see_through(begin)
        return await self._once(idempotency_key, begin)

    async def _start(
        self, options: SessionOptions, turn: TurnInput, on_question: QuestionHandler | None, *, worktree: bool
    ) -> Session:
        self._check_room()
        self._starting += 1
        tree: Worktree | None = None
        try:
            if worktree and options.cwd is not None:
                tree = await anyio.to_thread.run_sync(create_worktree, options.cwd, self.settings.state_dir)
                options = replace(options, cwd=tree.directory)
            engine = await self.engine()
            opened = await engine.start(options, turn)
        except Exception:
            self._make_room()
            if tree is not None:
                await anyio.to_thread.run_sync(remove_worktree, tree)
            raise
        finally:
            self._starting -= 1
        session = self._new_session(opened.session_id, options, directory=str(options.cwd))
        session.on_question = on_question
        session.worktree = tree
        self._request_turn(session, turn)
        self._attach(session, engine, opened)
        return session

    async def _once(self, key: str, begin: Callable[[], Awaitable[Session]]) -> Session:
        """The session that this key started before, or is being started with now, else a new one."""
        while key in self._keys:
            known = self._keys[key]
            if isinstance(known, Session):
                return known
            await known.wait()  # being started by another caller; if that fails, it is our turn
        done = self._keys[key] = anyio.Event()
        try:
            session = await self._see_through(begin)
        except BaseException:
            del self._keys[key]
            raise
        else:
            self._keys[key] = session
            return session
        finally:
            done.set()

    async def _see_through(self, begin: Callable[[], Awaitable[Session]]) -> Session:
        """Begin a turn to the end, even if the caller is cancelled; a turn nobody waits for any more is interrupted.

        Codex cannot take a request back: a turn that was asked for may run whether or not its answer was awaited.
        """
        begun = _Begun()

        async def run() -> None:
            try:
                begun.session = await begin()
            except Exception as error:  # noqa: BLE001 - raised where the caller waits
                begun.error = error
            finally:
                begun.done.set()

        if self._tasks is None:
            raise _NOT_OPEN.again()
        self._tasks.start_soon(run)
        try:
            await begun.done.wait()
        except BaseException:
            self._tasks.start_soon(self._abandon, begun)
            raise
        if begun.error is not None:
            raise begun.error
        assert begun.session is not None
        return begun.session

    async def _abandon(self, begun: _Begun) -> None:
        await begun.done.wait()
        if begun.session is None:
            return
        try:
            await self.interrupt(begun.session.id)
        except HelmsmanError as error:
            log.warning("a turn that nobody waits for could not be stopped: %s", error)

    async def say(
        self,
        session_id: str,
        message: str,
        *,
        images: Sequence[PathLike] = (),
        output_schema: Mapping[str, Any] | None = None,
        effort: str | None = None,
        when_busy: WhenBusy = "error",
        **options: Unpack[StartOptions],
    ) -> Session:
        """The next message of a session: ours, an earlier process's, or one a person made in the terminal.

        `options` replace those the session has, from this turn on.
        """
        turn = turn_input(message, images=images, output_schema=output_schema, effort=effort)
        session = await self.session(session_id)
        if options:
            session.options = session_options(session.options.cwd, options, self._allowed_roots)
        if session.state.is_running:
            return await self._say_to_busy(session, turn, when_busy)
        try:
            return await self._see_through(lambda: self._run_turn(session, turn))
        except TooManySessions:
            if when_busy != "queue":
                raise
            session.queue.append(turn)
            return session

    async def _say_to_busy(self, session: Session, turn: TurnInput, when_busy: WhenBusy) -> Session:
        match when_busy:
            case "queue":
                session.queue.append(turn)
            case "steer":
                await self.steer(session.id, turn.text)
            case "error":
                raise _busy(session)
        return session

    async def _run_turn(self, session: Session, turn: TurnInput) -> Session:
        if session.state.is_running:
            raise _busy(session)
        self._check_room()
        self._request_turn(session, turn)
        session.begun = anyio.Event()
        try:
            engine = await self.engine()
            if session.engine is engine:
                turn_id = await engine.run_turn(session.id, session.options, turn)
                session.apply(TurnStarted(session_id=session.id, turn_id=turn_id))
            else:
                opened = await engine.resume(session.id, session.options, turn)
                self._attach(session, engine, opened)
        except Exception as error:
            session.apply(_failed(session.id, error))
            self._make_room()
            raise
        finally:
            session.begun.set()
        return session

    def _make_room(self) -> None:
        """A turn did not come to be: what waits for room, or behind it, may run."""
        if self._tasks is not None:
            self._tasks.start_soon(self._run_queued)

    def _request_turn(self, session: Session, turn: TurnInput) -> None:
        session.output_schema = turn.output_schema
        session.task_ids.append(f"T-local-{uuid.uuid4().hex[:12]}")
        session.apply(TurnRequested(session_id=session.id, text=turn.text))

    async def steer(self, session_id: str, text: str) -> None:
        """Put a message into the running turn.

        Raises:
            SessionIdle: No turn is running.
        """
        session = await self.session(session_id)
        turn = turn_input(text)
        await session.loaded_in().steer(session.id, turn.text)

    async def interrupt(self, session_id: str) -> Session:
        """Stop the running turn, its sub-agents and the commands it left running. An idle session is left as it is."""
        session = await self.session(session_id)
        session.queue.clear()
        if session.state.is_running:
            await session.begun.wait()  # a turn that Codex has not begun yet cannot be stopped yet
        if session.engine is not None and _usable(session.engine):
            await session.engine.interrupt(session.id)
        return session

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: str = "person"
    ) -> Session:
        """Answer a question.

        Raises:
            QuestionNotOpen: No such question, or it was answered already.
            AnswerInvalid: The answer does not fit; nothing was sent.
        """
        session = await self.session(session_id)
        await self._desk.answer(session, question_id, answers, by)
        return session

    async def fork(self, session_id: str, message: str | None = None, **options: Unpack[StartOptions]) -> Session:
        """A new session that shares the history of another, and goes on with `message` where one is given."""
        source = await self.session(session_id)
        turn = turn_input(message) if message is not None else None
        checked = session_options(source.options.cwd, options, self._allowed_roots) if options else source.options

        async def begin() -> Session:
            self._check_room()
            self._starting += 1
            try:
                engine = await self.engine()
                opened = await engine.fork(source.id, checked, turn)
            finally:
                self._starting -= 1
            session = self._new_session(opened.session_id, checked, directory=source.directory)
            session.on_question = source.on_question
            if turn is not None:
                self._request_turn(session, turn)
            self._attach(session, engine, opened)
            return session

        return await self._see_through(begin)

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """All turns of a session, oldest first, as Codex has stored them."""
        session = await self.session(session_id)
        return await (await self.engine()).history(session.id)

    async def session(self, session_id: str) -> Session:
        """A session by its id, known or found on disk.

        Raises:
            SessionNotFound: There is none.
        """
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        info = await anyio.to_thread.run_sync(self._index.find, session_id)
        if info is None:
            raise SessionNotFound(f"There is no session {session_id}. List the sessions to see which there are.")
        session = self._sessions.get(session_id)
        if session is None:
            options = session_options(_existing(info.directory), {}, self._allowed_roots)
            session = self._new_session(session_id, options, directory=info.directory, model=info.model, name=info.name)
        return session

    async def list(
        self,
        *,
        directory: PathLike | None = None,
        query: str | None = None,
        limit: int = LIST_LIMIT,
        cursor: str | None = None,
        include_archived: bool = False,
    ) -> tuple[list[SessionInfo], str | None]:
        """Sessions on disk, newest first, and the cursor of the next page."""
        if limit < 1:
            raise InvalidInput(f"limit cannot be {limit}. Use a number from 1 on.", parameter="limit")
        return await anyio.to_thread.run_sync(
            lambda: self._index.list(
                directory=str(directory) if directory is not None else None,
                query=query,
                limit=limit,
                cursor=cursor,
                include_archived=include_archived,
            )
        )

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Be told of every event of every session; the answer ends it. A listener must not block or raise."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions this Helmsman has started or looked up."""
        return self._sessions

    # --- inside ------------------------------------------------------------------------------------------------------

    def _new_session(
        self,
        session_id: str,
        options: SessionOptions,
        *,
        directory: str | None,
        model: str | None = None,
        name: str | None = None,
    ) -> Session:
        state = SessionState(session_id, directory=directory, model=model, name=name)
        session = Session(state, Feed(self.settings.event_buffer_size), self, options, self._listeners)
        self._sessions[session_id] = session
        return session

    def _attach(self, session: Session, engine: Engine, opened: Opened) -> None:
        session.engine = engine
        session.notes = opened.notes
        session.apply(
            SettingsApplied(
                session_id=session.id,
                model=opened.model,
                approval_policy=opened.approval_policy,
                sandbox=opened.sandbox,
            )
        )
        for note in opened.notes:
            session.apply(Notice(session_id=session.id, kind="warning", message=note))
        try:
            engine.attach(session.id, lambda event: self._on_event(session, event))
        except HelmsmanError as error:  # it died just now: nobody else will tell the session
            session.apply(_failed(session.id, error))
            self._make_room()

    def _on_event(self, session: Session, event: Event) -> None:
        assert self._tasks is not None
        if isinstance(event, QuestionAsked):
            self._tasks.start_soon(self._desk.see_to, session, event)
            return
        session.apply(event)
        if isinstance(event, TurnEnded | EngineGone) and event.agent_id is None:
            self._tasks.start_soon(self._run_queued)

    async def _run_queued(self) -> None:
        """A turn has ended: whatever waits for its session, or for room, may run now."""
        for session in list(self._sessions.values()):
            if not session.queue or session.state.is_running:
                continue
            turn = session.queue.pop(0)
            try:
                await self._run_turn(session, turn)
            except TooManySessions:
                session.queue.insert(0, turn)
                return
            except HelmsmanError as error:
                log.warning("a queued message of session %s could not be sent: %s", session.id, error)
            except Exception:  # the session has been told; the others go on
                log.exception("a queued message of session %s could not be sent", session.id)

    def _check_room(self) -> None:
        running = [session.id for session in self._sessions.values() if session.state.is_running]
        if len(running) + self._starting >= self.settings.max_sessions:
            raise TooManySessions(
                f"{len(running) + self._starting} turns are running and MAX_SESSIONS is {self.settings.max_sessions}. Wait "
                "for one to end, interrupt one, or raise the limit.",
                running=running,
            )


@dataclass(slots=True)
class _Begun:
    """What became of a turn that was begun on somebody's behalf."""

    done: anyio.Event = field(default_factory=anyio.Event)
    session: Session | None = None
    error: Exception | None = None


_NOT_OPEN: Final = HelmsmanError("This Helmsman is not open. Use it as `async with Helmsman() as helm:`.")


def _busy(session: Session) -> SessionBusy:
    return SessionBusy(
        f"A turn is running in session {session.id}. Wait for it, steer it, queue the message, or interrupt it."
    )


def _usable(engine: Engine | None) -> bool:
    return engine is not None and engine.lost is None


def _failed(session_id: str, error: Exception) -> TurnEnded:
    known = (
        error if isinstance(error, HelmsmanError) else HelmsmanError(f"Helmsman itself failed: {error!r}. Report it.")
    )
    failure = Failure(code=known.code, message=known.message, retryable=known.retryable)
    return TurnEnded(session_id=session_id, outcome="failed", failure=failure)


def _existing(path: str | None) -> str | None:
    return path if path is not None and Path(path).is_dir() else None
