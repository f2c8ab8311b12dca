"""What sessions are asked to do: start, say, steer, answer, interrupt, list.

`Steering` owns the engine, the sessions it has seen, the questions that wait for an answer, and the ledger in which every
turn is a task. What can be done beyond that (`helmsman.capabilities`) stands on it; `helmsman.service.Helmsman` is both.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import anyio
import anyio.to_thread

from helmsman import worktrees
from helmsman.agents.capabilities import Capability
from helmsman.agents.holder import EngineHolder, usable
from helmsman.agents.protocol import Begun
from helmsman.agents.registry import Agents, find_agent
from helmsman.approvals.audit import AuditLog
from helmsman.approvals.rule_book import RuleBook
from helmsman.base.concurrency import OnceEach, background_tasks, run_to_completion
from helmsman.errors import HelmsmanError, InvalidInput, TaskNotOurs, TooManySessions
from helmsman.model.answered_by import PROGRAM, AnsweredBy
from helmsman.model.events import (
    EngineGone,
    Notice,
    QuestionAsked,
    SettingsApplied,
    TurnEnded,
    TurnRequested,
    TurnStarted,
)
from helmsman.model.inputs import changed_options, require_place, session_options, takes_start_options, turn_input
from helmsman.sessions.desk import Desk
from helmsman.sessions.session import QueuedTurn, Session
from helmsman.sessions.watchdog import watch_turn
from helmsman.settings import Settings, load_settings
from helmsman.steering.known import KnownSessions
from helmsman.steering.memory import Memory
from helmsman.steering.opening import fork_session, needed_for, start_session
from helmsman.steering.turn_failures import busy, failed_turn, known_error
from helmsman.tasks.ledger import Ledger, draft_task
from helmsman.tasks.truth import TaskTruth

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from helmsman.agents.capabilities import Capabilities
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.protocol import Agent, Engine, Opened, PastTurn, SessionInfo
    from helmsman.model.events import Event
    from helmsman.model.inputs import PathLike, StartOptions
    from helmsman.model.options import SessionOptions, TurnInput, TurnKind, TurnLimits
    from helmsman.sessions.session import QuestionHandler, WhenBusy
    from helmsman.steering.opening import SessionOpener, TurnBeginner
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

LIST_LIMIT: Final = 50

_ASKED_AGAIN_SECONDS: Final = 2.0
"""How long an engine that was asking something may take to ask us too, before we show a session that asks nothing."""


class Steering(ABC):
    """The core that front doors and capabilities share. Use `helmsman.Helmsman`."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_question: QuestionHandler | None = None,
        agents: Iterable[Agent] = (),
    ) -> None:
        self.settings = settings if settings is not None else load_settings()
        self._env = env
        self.agents = Agents(agents)
        self._exit = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._engines: EngineHolder | None = None
        self._indexes = self.agents.indexes(self.settings)
        self.truth = TaskTruth(self.settings, self.agents, self._indexes)
        self._ledger = Ledger(self.settings.state_dir, self.truth)
        self._keys = OnceEach[Session]()
        self._listeners: list[Callable[[Session, Event], None]] = [self._ledger.on_event]
        self._starting = 0
        self.allowed_roots = self.settings.session_roots
        memory = Memory(self.truth, self._ledger, self.allowed_roots)
        self._known = KnownSessions(self.settings, memory, self._ledger, self, self._listeners, self._adopt)
        self._listeners.append(self._known.on_event)
        self.rules = RuleBook(self.settings.files, self.settings.state_dir)
        self.desk = Desk(
            self.rules,
            AuditLog(self.settings.state_dir),
            timeout=self.settings.approval_timeout,
            handler=on_question,
            allowed_roots=self.allowed_roots,
        )

    async def __aenter__(self) -> Self:
        self._exit.push_async_callback(self._ledger.close)  # the last of all: ends are told while the rest closes
        self._tasks = await self._exit.enter_async_context(background_tasks())
        for note in self.settings.ignored:
            log.warning("%s", note)
        self._engines = EngineHolder(self.agents, self.settings, self._env, self._tasks)
        self._tasks.start_soon(self._ledger.run)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._exit.aclose()
        for session in self._known.by_id.values():
            session.feed.close()

    # --- the engine --------------------------------------------------------------------------------------------------

    async def codex(self) -> CodexBinary:
        """The Codex binary in use.

        Raises:
            CodexNotFound: There is none.
        """
        return await find_agent(self.settings, self._env)

    async def capabilities(self, agent: str | None = None) -> Capabilities:
        """What an agent (the default one) can do."""
        return await self.agents[agent or self.settings.agent].capabilities(self.settings, self._env)

    async def engine(self, *needed: Capability, agent: str | None = None) -> Engine:
        """The engine of an agent (the default one), opened if need be.

        Raises:
            Unsupported: It cannot do what is needed.
        """
        if self._engines is None:
            raise _NOT_OPEN.again()
        engine = await self._engines.get(agent or self.settings.agent)
        engine.capabilities.require(*needed)
        return engine

    @property
    def ledger(self) -> Ledger:
        """Where every turn is a task."""
        return self._ledger

    def in_background(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something for as long as this Helmsman is open. It must not raise."""
        if self._tasks is None:
            raise _NOT_OPEN.again()
        self._tasks.start_soon(function)

    # --- verbs -------------------------------------------------------------------------------------------------------

    @takes_start_options
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
        min_remaining_percent: float | None = None,
        idempotency_key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        kind: TurnKind | None = None,
        limits: TurnLimits | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """A new session and its first turn. Returns when the turn is under way.

        `on_question` answers this session's questions, instead of the handler of the whole Helmsman. `worktree` gives it a
        git worktree of its own. With `min_remaining_percent` it starts only while so much of the account's rate limit is
        left. The same `idempotency_key` again gives the same session. `on_task` is told the id of the task as soon as it is
        registered, which is before Codex hears of it. `kind` is for `extras.reviews` and `extras.plans`. `limits` on the
        silence of its turns replace those of the settings.

        Raises:
            InvalidInput: An argument is wrong; nothing was started.
            RateLimitLow: Less is left of the account's rate limit than was asked for; nothing was started.
            TooManySessions: As many turns are running as are allowed.
            HelmsmanError: Codex is not there, or refuses.
        """
        checked = session_options(cwd if cwd is not None else ".", options, self.allowed_roots)
        roots = self.allowed_roots
        _ = self.agents[checked.agent]  # or it is refused before anything is registered
        turn = turn_input(
            prompt, images=images, output_schema=output_schema, effort=effort, kind=kind, allowed_roots=roots
        )
        opener = start_session(checked, on_question, worktrees_in=self.settings.state_dir if worktree else None)

        async def begin() -> Session:
            note = await self.check_remaining(min_remaining_percent)
            made = self._new_session(checked, turn, opener, key=idempotency_key, on_task=on_task, limits=limits)
            session = await made
            session.notes += note
            return session

        if idempotency_key is None:
            return await self._see_through(begin)
        return await self._keys.get(idempotency_key, lambda: self._see_through(begin))

    async def _new_session(
        self,
        options: SessionOptions,
        turn: TurnInput | None,
        open_session: SessionOpener,
        *,
        key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        limits: TurnLimits | None = None,
    ) -> Session:
        self._check_room()
        self._starting += 1
        task_id, draft = draft_task(turn.text if turn is not None else "", options, idempotency_key=key)
        try:
            if turn is not None:
                known = await self._ledger.enter(draft)
                if on_task is not None:
                    on_task(known.id if known is not None else task_id)
                if known is not None and known.session_id is not None:
                    return await self.session(known.session_id)
            engine = await self.engine(*needed_for(turn), agent=options.agent)
            if turn is not None:
                await self._ledger.place(task_id, engine.id)
            session = await self._open(engine, open_session, turn, task_id, limits)
        except Exception as error:
            if turn is not None:
                self._ledger.fail(task_id, known_error(error))
            self.make_room()
            raise
        finally:
            self._starting -= 1
        return session

    async def _open(
        self,
        engine: Engine,
        open_session: SessionOpener,
        turn: TurnInput | None,
        task_id: str,
        limits: TurnLimits | None,
    ) -> Session:
        """A new session with its first turn under way; if that comes to nothing, nobody has heard of the session."""
        fresh = await open_session(engine)
        session = self._known.fresh(fresh)
        session.limits = limits or session.limits
        try:
            begun = Begun(session_id=session.id)
            if turn is not None:
                self._request_turn(session, turn, task_id)
                begun = await engine.run_turn(session.id, session.options, turn)
            self._note_opened(session, fresh.opened, begun)
            if session.worktree is not None:
                session.worktree = await anyio.to_thread.run_sync(worktrees.assign, session.worktree, session.id)
        except Exception as error:
            session.apply(failed_turn(session.id, error))
            if session.worktree is not None:
                await anyio.to_thread.run_sync(worktrees.discard, session.worktree)
            raise
        self._known.add(session)
        if turn is not None:
            self._ledger.begin(task_id, session, engine=engine.id)
        self._attach(session, engine)
        return session

    async def _see_through(self, begin: Callable[[], Awaitable[Session]]) -> Session:
        """Begin a turn to the end, even if the caller is cancelled; a turn nobody waits for any more is interrupted.

        Codex cannot take a request back: a turn that was asked for may run whether or not its answer was awaited.
        """
        if self._tasks is None:
            raise _NOT_OPEN.again()
        return await run_to_completion(self._tasks, begin, self._abandon)

    async def _abandon(self, session: Session) -> None:
        try:
            await self.interrupt(session.id)
        except HelmsmanError as error:
            log.warning("a turn that nobody waits for could not be stopped: %s", error)

    @takes_start_options
    async def say(
        self,
        session_id: str,
        message: str,
        *,
        images: Sequence[PathLike] = (),
        output_schema: Mapping[str, Any] | None = None,
        effort: str | None = None,
        when_busy: WhenBusy = "error",
        on_task: Callable[[str], None] | None = None,
        limits: TurnLimits | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """The next message of a session: ours, an earlier process's, or one a person made in the terminal.

        `options` and `limits` replace those the session has, from this turn on. `on_task` is as for `start`.
        """
        turn = turn_input(
            message, images=images, output_schema=output_schema, effort=effort, allowed_roots=self.allowed_roots
        )
        session = await self.session(session_id)
        session.limits = limits or session.limits
        require_place(session.id, session.directory)
        if session.engine is None:
            await self.truth.refuse_archived(session.id)
        known = session.options
        if options:
            session.options = session_options(known.cwd, changed_options(known, options), self.allowed_roots)
        if session.state.is_running:
            return await self._say_to_busy(session, turn, when_busy)
        try:
            return await self._see_through(lambda: self.run_turn(session, turn, on_task=on_task))
        except TooManySessions:
            if when_busy != "queue":
                raise
            return await self._enqueue(session, turn)
        except InvalidInput:  # the engine does not take them: they must not be in the way of the next message
            session.options = known
            raise

    async def _say_to_busy(self, session: Session, turn: TurnInput, when_busy: WhenBusy) -> Session:
        match when_busy:
            case "queue":
                return await self._enqueue(session, turn)
            case "steer":
                await self.steer(session.id, turn.text)
            case "error":
                raise busy(session.id)
        return session

    async def _enqueue(self, session: Session, turn: TurnInput) -> Session:
        task_id, draft = draft_task(turn.text, session.options, session_id=session.id)
        await self._ledger.enter(draft)
        session.task_ids.append(task_id)
        session.queue.append(QueuedTurn(turn, task_id))
        self._known.at_work[session.id] = session
        self.make_room()  # the turn it was to wait for may have ended meanwhile
        return session

    async def run_turn(
        self,
        session: Session,
        turn: TurnInput,
        queued_as: str | None = None,
        on_task: Callable[[str], None] | None = None,
        begin: TurnBeginner | None = None,
    ) -> Session:
        """The next turn of an idle session; it is requested before anything else can happen. See `say` for messages."""
        if session.state.is_running:
            raise busy(session.id)
        self._check_room()
        task_id, draft = draft_task(turn.text, session.options, session_id=session.id)
        task_id = queued_as or task_id
        self._request_turn(session, turn, task_id)
        session.begun = anyio.Event()
        try:
            if queued_as is None:
                await self._ledger.enter(draft)
            if on_task is not None:
                on_task(task_id)
            engine = await self.engine(*needed_for(turn), agent=session.options.agent)
            self._ledger.begin(task_id, session, engine=engine.id)
            await self._ledger.write()  # before the agent hears of it
            await self._load(session, engine)
            begun = await (begin(engine) if begin else engine.run_turn(session.id, session.options, turn))
            session.notes += begun.notes
            _remark(session, begun.notes)
            if begun.turn_id is not None:
                session.apply(TurnStarted(session_id=session.id, turn_id=begun.turn_id))
        except Exception as error:
            self._ledger.fail(task_id, known_error(error))
            session.apply(failed_turn(session.id, error))
            self.make_room()
            raise
        finally:
            session.begun.set()
        return session

    async def run_other_turn(
        self,
        session_id: str,
        turn: TurnInput,
        begin: TurnBeginner | None = None,
        *,
        on_task: Callable[[str], None] | None = None,
    ) -> Session:
        """A turn that is no message, such as a review or a compaction: a task like any other, the turn's text in words.

        `begin` starts it in the session, which is loaded and idle, where that is more than running the turn.
        """
        session = await self.session(session_id)
        return await self._see_through(lambda: self.run_turn(session, turn, on_task=on_task, begin=begin))

    async def load(self, session_id: str, *needed: Capability) -> tuple[Session, Engine]:
        """An idle session and the engine, which has it loaded.

        Raises:
            Unsupported: The engine cannot do what is needed.
            SessionBusy: A turn is running in it.
        """
        session = await self.session(session_id)
        if session.state.is_running:
            raise busy(session.id)
        engine = await self.engine(*needed, agent=session.options.agent)
        await self._load(session, engine)
        return session, engine

    async def _load(self, session: Session, engine: Engine) -> None:
        if session.engine is not engine:
            engine.capabilities.require(Capability.RESUME)
            self._note_opened(session, await engine.resume(session.id, session.options))
            self._attach(session, engine)

    def forget(self, session_id: str) -> None:
        """Let go of a session that the engine has unloaded; whoever asks for it again gets it from disk."""
        self._known.forget(session_id)

    def make_room(self) -> None:
        """A turn did not come to be: what waits for room, or behind it, may run."""
        if self._tasks is not None:
            self._tasks.start_soon(self._run_queued)

    def _request_turn(self, session: Session, turn: TurnInput, task_id: str) -> None:
        session.output_schema = turn.output_schema
        session.planning = turn.plan
        if task_id not in session.task_ids:
            session.task_ids.append(task_id)
        session.apply(TurnRequested(session_id=session.id, text=turn.text))
        if session.limits and self._tasks is not None:
            self._tasks.start_soon(watch_turn, session, session.limits)

    async def steer(self, session_id: str, text: str) -> None:
        """Put a message into the running turn.

        Raises:
            SessionIdle: No turn is running.
        """
        session = await self.session(session_id)
        turn = turn_input(text)
        engine = session.running_in()
        engine.capabilities.require(Capability.STEER)
        await engine.steer(session.id, turn.text)

    async def interrupt(self, session_id: str) -> Session:
        """Stop the running turn, its sub-agents and the commands it left running. An idle session is left as it is."""
        session = await self.session(session_id)
        for queued in session.queue:
            self._ledger.cancel(queued.task_id, "Its session was interrupted before it began.")
        session.queue.clear()
        if session.state.is_running:
            await session.begun.wait()  # a turn that Codex has not begun yet cannot be stopped yet
        if session.planning:
            self.drop_plan(session)
        if session.engine is not None and usable(session.engine):
            await session.engine.interrupt(session.id)
        elif session.state.is_running:
            raise TaskNotOurs(f"Session {session.id} is run by another process. Stop it there, or end that process.")
        return session

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session:
        """Answer a question. `by` is written down as who gave the answer.

        Raises:
            QuestionNotOpen: No such question, or it was answered already.
            AnswerInvalid: The answer does not fit; nothing was sent.
        """
        session = await self.session(session_id)
        await self.desk.answer(session, question_id, answers, by)
        return session

    @takes_start_options
    async def fork(
        self,
        session_id: str,
        message: str | None = None,
        *,
        from_turn: int | str | None = None,
        on_question: QuestionHandler | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """A new session that shares the history of another, and goes on with `message` where one is given.

        `from_turn` is the last turn it shares: its number, counted from 1, or its id.
        """
        source = await self.session(session_id)
        require_place(source.id, source.directory)
        await self.truth.refuse_archived(source.id)
        turn = turn_input(message) if message is not None else None
        changed = changed_options(source.options, options)
        checked = session_options(source.options.cwd, changed, self.allowed_roots) if options else source.options

        await self.engine(Capability.FORK if from_turn is None else Capability.FORK_AT_TURN, agent=checked.agent)
        opener = fork_session(source, checked, from_turn, on_question or source.on_question)
        return await self._see_through(lambda: self._new_session(checked, turn, opener))

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """All turns of a session, oldest first, as Codex has stored them."""
        session = await self.session(session_id)
        return await (await self.engine(Capability.HISTORY, agent=session.options.agent)).history(session.id)

    async def session(self, session_id: str) -> Session:
        """A session by its id, known or found on disk.

        Raises:
            SessionNotFound: There is none.
        """
        return await self._known.get(session_id)

    async def _adopt(self, session: Session, task: Task) -> bool:
        """Attach to the engine that runs the session's newest turn; False if none does any more."""
        if self._engines is None or task.engine is None:
            return False
        engine = await self._engines.reach(task.agent, task.engine)
        try:
            if engine is None or session.id not in await engine.running_sessions():
                return False
            opened = await engine.adopt(session.id, session.options)
        except HelmsmanError as error:
            log.info("session %s could not be attached to: %s", session.id, error)
            return False
        self._ledger.begin(task.id, session, engine=engine.id, taken_over=True)
        self._note_opened(session, opened)
        self._attach(session, engine)
        with anyio.move_on_after(_ASKED_AGAIN_SECONDS if task.input_required else 0):
            while session.state.is_running and not session.questions:
                await session.feed.changed()
        return True

    async def list(
        self,
        *,
        directory: PathLike | None = None,
        query: str | None = None,
        limit: int = LIST_LIMIT,
        cursor: str | None = None,
        include_archived: bool = False,
        agent: str | None = None,
    ) -> tuple[list[SessionInfo], str | None]:
        """Sessions of an agent (the default one) on disk, newest first, and the cursor of the next page."""
        if limit < 1:
            raise InvalidInput(f"limit cannot be {limit}. Use a number from 1 on.", parameter="limit")
        index = self._indexes.get(agent or self.settings.agent)
        if index is None:
            return [], None
        page, following = await anyio.to_thread.run_sync(
            lambda: index.list(
                directory=str(directory) if directory is not None else None,
                query=query,
                limit=limit,
                cursor=cursor,
                include_archived=include_archived,
            )
        )
        return list(page), following

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Be told of every event of every session; the answer ends it. A listener must not block or raise."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions this Helmsman has started or looked up."""
        return self._known.by_id

    # --- where capabilities take part --------------------------------------------------------------------------------

    @abstractmethod
    async def check_remaining(self, percent: float | None) -> tuple[str, ...]:
        """Refuse a start when less than so much of the account's limit is left; else what there is to remark."""

    @abstractmethod
    def keeps_back(self, session: Session, event: Event) -> bool:
        """Whether a session that plans is not to hear of this yet."""

    @abstractmethod
    def drop_plan(self, session: Session) -> None:
        """Do not carry out the plan that waits, if one does."""

    # --- inside ------------------------------------------------------------------------------------------------------

    def _note_opened(self, session: Session, opened: Opened, begun: Begun | None = None) -> None:
        """What an engine said of a session it has opened: its id, the settings in force, and remarks."""
        session.notes = opened.notes if begun is None else (*opened.notes, *begun.notes)
        session.apply(
            SettingsApplied(
                session_id=session.id if begun is None else begun.session_id,
                model=opened.model,
                approval_policy=opened.approval_policy,
                sandbox=opened.sandbox,
                thread=opened.thread,
            )
        )
        _remark(session, session.notes)

    def _attach(self, session: Session, engine: Engine) -> None:
        if session.engine is not None and session.engine is not engine:
            session.engine.detach(session.id)  # or each would tell of the same things
        session.engine = engine
        try:
            engine.attach(session.id, lambda event: self._on_event(session, event))
        except HelmsmanError as error:  # it died just now: nobody else will tell the session
            session.apply(failed_turn(session.id, error))
            self.make_room()

    def _on_event(self, session: Session, event: Event) -> None:
        assert self._tasks is not None
        if isinstance(event, QuestionAsked):
            self._tasks.start_soon(self.desk.receive(session, event))
            return
        if session.planning and self.keeps_back(session, event):
            return
        session.apply(event)
        if isinstance(event, TurnEnded | EngineGone) and event.agent_id is None:
            self._tasks.start_soon(self._run_queued)

    async def _run_queued(self) -> None:
        """A turn has ended: whatever waits for its session, or for room, may run now."""
        for session in list(self._known.at_work.values()):
            if not session.queue or session.state.is_running:
                continue
            queued = session.queue.pop(0)
            try:
                await self.run_turn(session, queued.turn, queued.task_id)
            except TooManySessions:
                session.queue.insert(0, queued)
                return
            except HelmsmanError as error:
                log.warning("a queued message of session %s could not be sent: %s", session.id, error)
            except Exception:  # the session has been told; the others go on
                log.exception("a queued message of session %s could not be sent", session.id)

    def _check_room(self) -> None:
        running = [session.id for session in self._known.at_work.values() if session.state.is_running]
        if len(running) + self._starting >= self.settings.max_sessions:
            raise TooManySessions(
                f"{len(running) + self._starting} turns are running and MAX_SESSIONS is {self.settings.max_sessions}. Wait "
                "for one to end, interrupt one, or raise the limit.",
                running=running,
            )


def _remark(session: Session, notes: Iterable[str]) -> None:
    for note in notes:
        session.apply(Notice(session_id=session.id, kind="warning", message=note))


_NOT_OPEN: Final = HelmsmanError("This Helmsman is not open. Use it as `async with Helmsman() as helm:`.")
