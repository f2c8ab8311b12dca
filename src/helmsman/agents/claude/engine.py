"""Claude Code as an engine: a process for each session, for as long as turns follow one another in it.

A session lives on disk between its turns. Its process is started with its first turn (or with the next one after it has
ended), receives a message, reports its work in lines of JSON, and stays for a while. A session's access is fixed when its
process starts, so a turn with other options gets another process, which resumes the same session.

In a hub each process has a supervisor: closing the engine only detaches from it, and `open_left` attaches again to processes
in which a turn still runs.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.claude.about import account_in, ask_about, models_in, said_of_itself
from helmsman.agents.claude.access import access_of, plan_launch
from helmsman.agents.claude.binary import CLAUDE, TITLE
from helmsman.agents.claude.live_session import ForkPoint, LiveProcess, LiveSession
from helmsman.agents.claude.messages import COMPACT, control, prompt_message, user_message
from helmsman.agents.claude.open_sessions import refuse_if_open
from helmsman.agents.claude.pipes import open_child_pipe, open_kept_pipe, start_kept
from helmsman.agents.claude.questions import refused, write_answer
from helmsman.agents.claude.starting import once_cleared, ready_command, until_cleared
from helmsman.agents.event_router import RoutedEngine, engine_closed
from helmsman.agents.prompt_words import note_on
from helmsman.agents.protocol import Begun, Opened
from helmsman.agents.sandbox import find_sandbox
from helmsman.agents.supervised_agent import brought
from helmsman.agents.supervisor.records import end_left
from helmsman.base.concurrency import background_tasks
from helmsman.base.files import refuse_outside
from helmsman.base.json_values import text
from helmsman.errors import (
    EngineLost,
    EngineRefused,
    EngineTimeout,
    HelmsmanError,
    InvalidInput,
    QuestionNotOpen,
    SessionIdle,
    SessionNotFound,
)
from helmsman.model.events import Failure, TurnStarted
from helmsman.model.options import SessionOptions, TurnInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.agents.account import Account, Model
    from helmsman.agents.claude.about import Means
    from helmsman.agents.claude.access import Launch
    from helmsman.agents.claude.live_session import LiveTurn
    from helmsman.agents.claude.pipes import ClaudePipe
    from helmsman.agents.claude.storage import ClaudeSessions
    from helmsman.agents.protocol import Capabilities
    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.model.events import PastTurn
    from helmsman.model.questions import Choice, Question

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0
"""Seconds that a process waits for the next turn: it holds 200 MB, and another one starts within a second."""

INTERRUPT_SECONDS: Final = 10.0
"""Seconds that a turn may take to stop; it was seen to need a tenth of a second. Then its process is ended."""

END_SECONDS: Final = 20.0
TAKEN_UP_SECONDS: Final = 10.0
"""Seconds that Claude Code may take to begin with a message, and to report the name of a turn that was left running."""
_REPLY_SECONDS: Final = 20.0


class ClaudeEngine(RoutedEngine):
    """See `helmsman.agents.protocol.Engine`. Made by `open_claude` only."""

    def __init__(
        self,
        tasks: TaskGroup,
        sessions: ClaudeSessions,
        *,
        means: Means | None,
        can: Capabilities,
        roots: Sequence[Path],
        engine_id: str | None,
        owner: Owner | None,
        about: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._tasks = tasks
        self._stored = sessions
        self._can = can
        self.roots = roots
        self._id = engine_id
        self._owner = owner
        self.about = about
        self._sessions: dict[str, LiveSession] = {}
        self._lost: HelmsmanError | None = None
        self._gone = anyio.Event()
        self._said_of_itself: Mapping[str, Any] = {}
        self._positions_before: dict[str, str | None] = {}
        """Input positions of the processes that earlier hubs left, by session."""
        self._cleared: dict[str, anyio.Event] = {}
        """Set when nothing is left of the last process of a session."""
        self.means = means

    @property
    def name(self) -> str:
        return CLAUDE

    @property
    def capabilities(self) -> Capabilities:
        return self._can

    @property
    def id(self) -> str | None:
        return self._id

    @property
    def lost(self) -> HelmsmanError | None:
        return self._lost

    async def until_lost(self) -> None:
        await self._gone.wait()

    def input_position(self, session_id: str) -> str | None:
        session = self._sessions.get(session_id)
        running = None if session is None else session.process
        return self._positions_before.get(session_id) if running is None else running.pipe.input_position

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def open(self, options: SessionOptions) -> Opened:
        self._check()
        if options.cwd is None:
            raise InvalidInput("A session needs a working directory. Name one that exists.", parameter="cwd")
        enforced = await self._enforced(options)
        return _opened(self._new(options.cwd, options), options, enforced=enforced)

    def _new(self, directory: Path | None, options: SessionOptions, fork: ForkPoint | None = None) -> LiveSession:
        session = LiveSession(str(uuid.uuid4()), directory, self._router)
        session.options, session.forked_from = options, fork
        self._sessions[session.id] = session
        return session

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        self._check()
        session = await self._known(session_id, options)
        session.options = options
        if session.turn is not None and session.process is not None:
            return _opened(session, options, enforced=session.process.access.enforced)
        return _opened(session, options, enforced=await self._enforced(options))

    async def fork(self, session_id: str, options: SessionOptions, *, last_turn_id: str | None = None) -> Opened:
        """Fork a session. Claude Code stores the fork with its first turn."""
        self._check()
        source = await self._known(session_id, options)
        line = await anyio.to_thread.run_sync(self._stored.last_line, session_id, last_turn_id)
        if line is None:
            raise InvalidInput(f"Nothing has been said yet in session {session_id}. Start a new one instead.")
        enforced = await self._enforced(options)
        fork = ForkPoint(session_id, last_turn_id, None if last_turn_id is None else line)
        return _opened(self._new(source.directory, options, fork), options, enforced=enforced)

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        self._check()
        turns = await anyio.to_thread.run_sync(self._stored.past_turns, session_id)
        if turns is not None:
            return turns
        session = self._sessions.get(session_id)
        if session is None:
            raise _not_found(session_id)
        if session.forked_from is None:
            return ()
        shared = await self.history(session.forked_from.session_id)
        ids = [turn.id for turn in shared]
        last = session.forked_from.last_turn_id
        return shared if last not in ids else shared[: ids.index(last) + 1]

    async def _known(self, session_id: str, options: SessionOptions) -> LiveSession:
        session = self._sessions.get(session_id)
        if session is None:
            info = await anyio.to_thread.run_sync(self._stored.find, session_id)
            if info is None:
                raise _not_found(session_id)
            place = options.cwd or info.directory  # it may have been begun on another machine
            session = LiveSession(session_id, None if place is None else Path(place), self._router)
            session = self._sessions.setdefault(session_id, session)
        session.directory = session.directory or options.cwd
        return session

    async def _enforced(self, options: SessionOptions) -> bool:
        """Return whether the sandbox of a session is enforced.

        Raises:
            Unsupported: It must be enforced, and cannot.
        """
        if options.unenforced or options.writes == "anything":
            return False
        means = brought(self.means)
        await find_sandbox(means.settings, means.env)
        return True

    # --- turns -------------------------------------------------------------------------------------------------------

    async def get_ready(self, session_id: str, options: SessionOptions, turn: TurnInput) -> None:
        session = await self._idle(session_id, options)
        async with session.starting:
            await self._process(session, options, turn)

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        session = await self._idle(session_id, options)
        async with session.starting:
            process = await self._process(session, options, turn)
            message = await anyio.to_thread.run_sync(prompt_message, turn) if turn.images else prompt_message(turn)
            await anyio.to_thread.run_sync(process.pipe.processes.note_baseline)
            turn_id = str(uuid.uuid4())
            session.begin(turn_id)
            try:
                await process.pipe.send({**message, "uuid": turn_id})
            except EngineLost:
                session.turn = None
                raise
            self._router.deliver(TurnStarted(session_id=session_id, turn_id=turn_id))
        notes = () if turn.text == COMPACT else note_on(turn.text, TITLE)
        return Begun(session_id=session_id, turn_id=turn_id, notes=notes)

    async def steer(self, session_id: str, text: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        turn, process = (None, None) if session is None else (session.turn, session.process)
        if turn is None or process is None or turn.interrupted:
            raise SessionIdle(f"No turn is running in session {session_id}. Send it as a new message instead.")
        message_id = str(uuid.uuid4())
        turn.steered.add(message_id)
        await process.pipe.send({**user_message(text), "uuid": message_id})

    async def interrupt(self, session_id: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        turn, process = (None, None) if session is None else (session.turn, session.process)
        if session is None or process is None:
            return
        if turn is None:
            await anyio.to_thread.run_sync(process.pipe.processes.end_started_by_turns)
            return
        turn.interrupted = True
        with anyio.CancelScope(shield=True):
            try:
                for message_id in turn.steered:  # or they would be taken up next
                    await process.pipe.send(control("cancel_async_message", message_uuid=message_id))
                for asked in list(session.questions.values()):
                    session.questions.pop(asked.question.id)
                    session.withdraw(asked)
                    await process.pipe.send(refused(asked, "Stopped.", stop=True), answering=asked.request_id)
                with anyio.move_on_after(TAKEN_UP_SECONDS):
                    await turn.taken_up.wait()  # a message that is only queued would begin after the interrupt
                await process.pipe.send(control("interrupt"))
                with anyio.move_on_after(INTERRUPT_SECONDS):
                    await turn.ended.wait()
            except EngineLost:
                pass  # the reader of the process reports its end
            if not turn.ended.is_set():
                await self._end_process(session)
            await anyio.to_thread.run_sync(process.pipe.processes.end_started_by_turns)

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        session = self._sessions.get(question.session_id)
        asked = None if session is None else session.questions.pop(question.id, None)
        if session is None or asked is None or session.process is None:
            raise QuestionNotOpen.any_more(question.id)
        stops = choices is not None and choices[0].value in ("abort", "cancel")
        if stops and session.turn is not None:
            session.turn.interrupted = True
        with anyio.CancelScope(shield=True):
            await session.process.pipe.send(write_answer(asked, choices), answering=asked.request_id)

    async def _idle(self, session_id: str, options: SessionOptions) -> LiveSession:
        self._check()
        session = await self._known(session_id, options)
        session.refuse_if_running()
        session.options = options
        return session

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def compact(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None or session.options is None:
            raise _not_found(session_id)
        await self.run_turn(session_id, session.options, TurnInput(text=COMPACT))

    async def rename(self, session_id: str, name: str) -> None:
        self._check()
        request = control("rename_session", title=name)
        session = self._sessions.get(session_id)
        with anyio.move_on_after(_REPLY_SECONDS):
            if session is not None and session.process is not None:
                reply = await session.request(session.process, request)
            else:
                reply = await self._ask_about(session_id, request)
            if reply.get("subtype") != "success":
                raise EngineRefused(f"Claude Code did not take the name: {text(reply.get('error'))}. Try another one.")
            return
        raise EngineTimeout(
            f"Claude Code did not say within {_REPLY_SECONDS:g} s whether it took the name. Look, try again."
        )

    async def end_leftovers(self, session_id: str) -> None:
        if (session := self._sessions.get(session_id)) is not None:
            session.refuse_if_running()
            async with session.starting:
                await self._end_process(session)
            await until_cleared(self._cleared, session_id)

    async def unload(self, session_id: str) -> None:
        if (session := self._sessions.pop(session_id, None)) is not None:
            await self._end_process(session)

    async def _ask_about(self, session_id: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        info = await anyio.to_thread.run_sync(self._stored.find, session_id)
        if info is None:
            raise _not_found(session_id)
        await refuse_if_open(self._stored.home, session_id)
        return await ask_about(brought(self.means), session_id, Path(info.directory or "/"), request)

    # --- what others left running --------------------------------------------------------------------------------------

    async def running_sessions(self) -> tuple[str, ...]:
        return tuple(session.id for session in self._sessions.values() if session.turn is not None)

    async def adopt(self, session_id: str, options: SessionOptions) -> Opened:
        session = self._sessions.get(session_id)
        if session is None or session.turn is None or session.process is None:
            raise _not_found(session_id)
        before = session.process.access
        session.process.access = access = access_of(options, enforced=before.enforced, plans=before.plans)
        session.options = options
        for asked in list(session.questions.values()):  # they were read before anybody knew who answers them
            if not access.asks_about(asked):
                session.withdraw(session.questions.pop(asked.question.id))
                await session.decide(session.process, asked)
        return _opened(session, options, enforced=access.enforced)

    # --- about the agent ---------------------------------------------------------------------------------------------

    async def models(self) -> tuple[Model, ...]:
        return models_in(await self._about_itself())

    async def account(self) -> Account:
        return account_in(await self._about_itself())

    async def _about_itself(self) -> Mapping[str, Any]:
        self._check()
        if not self._said_of_itself:
            self._said_of_itself = await said_of_itself(brought(self.means))
        return self._said_of_itself

    # --- processes -----------------------------------------------------------------------------------------------------

    async def _process(self, session: LiveSession, options: SessionOptions, turn: TurnInput) -> LiveProcess:
        """The process of an idle session that can do what this turn may, started if need be."""
        session.refuse_if_running()
        directory = session.directory
        if directory is None:
            raise InvalidInput(f"It is not known where session {session.id} worked. Name a working directory.")
        if session.process is not None and self.means is None and session.process.access.plans == turn.plan:
            return session.process
        means = brought(self.means)
        enforced = await self._enforced(options)
        for root in (directory, *options.writable_roots) if self.roots else ():
            refuse_outside(root, self.roots, "cwd")
        launch = plan_launch(means.binary, options, turn, directory, session.id, enforced=enforced)
        if session.process is not None:
            if session.process.launch == launch:
                return session.process
            await self._end_process(session)
        await until_cleared(self._cleared, session.id)
        if self._owner is not None:
            await anyio.to_thread.run_sync(end_left, means.settings.state_dir, CLAUDE, session.id)
        await refuse_if_open(self._stored.home, session.id)
        stored = await anyio.to_thread.run_sync(self._stored.path, session.id)
        is_stored = stored is not None
        session.cost = await anyio.to_thread.run_sync(self._stored.cost, session.id) if is_stored else 0.0
        identity = ("--resume", session.id) if is_stored else session.identity
        argv, env = await ready_command(means, launch, identity, stored, trusted=options.trust_repository)
        try:
            running: LiveProcess = await self._tasks.start(self._run, session, launch, argv, env)
        except RuntimeError as error:
            if self._lost is None:
                raise
            raise self._lost.again() from error  # the task ended without a word: the engine is being closed
        return running

    async def _run(
        self,
        session: LiveSession,
        launch: Launch,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        task_status: TaskStatus[LiveProcess],
    ) -> None:
        """From the start of a process to its end."""
        async with AsyncExitStack() as stack:
            state_dir = brought(self.means).settings.state_dir
            gone = once_cleared(stack, self._cleared, state_dir, session.id, kept=self._id is not None)
            if self._owner is None or self._id is None:
                pipe: ClaudePipe = await stack.enter_async_context(
                    open_child_pipe(self._tasks, argv, env=env, directory=launch.directory)
                )
            else:
                means = brought(self.means)
                record = await start_kept(
                    argv,
                    env=env,
                    directory=launch.directory,
                    state_dir=state_dir,
                    idle=means.settings.engine_idle,
                    owner=self._owner,
                    about={
                        **self.about,
                        "engine_id": self._id,
                        "session_id": session.id,
                        "enforced": launch.access.enforced,
                        "plans": launch.access.plans,
                    },
                )
                pipe = await stack.enter_async_context(open_kept_pipe(record, epoch=self._owner.epoch))
            running = LiveProcess(pipe, launch, launch.access, gone)
            task_status.started(running)
            await self._follow(session, running)

    async def run_left(self, record: ProcessRecord, *, task_status: TaskStatus[None]) -> None:
        """Follow a process that an earlier hub has left, if a turn still runs in it. Its work so far arrives as events."""
        activity = await anyio.to_thread.run_sync(record.activity)
        epoch = 0 if self._owner is None else self._owner.epoch
        async with AsyncExitStack() as stack:
            gone = once_cleared(stack, self._cleared, record.state_dir, record.session_id, kept=True)
            pipe = await stack.enter_async_context(open_kept_pipe(record, epoch=epoch))
            self._positions_before[record.session_id] = pipe.input_position
            if not any(activity):
                await pipe.end()  # the next turn starts another
                task_status.started()
                return
            session = LiveSession(record.session_id, Path(record.place), self._router)
            turn = session.begin("")
            self._sessions[record.session_id] = session
            policy = SessionOptions(agent=CLAUDE, cwd=session.directory)  # until adoption, everything is asked
            enforced, plans = (record.about.get(key) is True for key in ("enforced", "plans"))
            running = LiveProcess(pipe, None, access_of(policy, enforced=enforced, plans=plans), gone)
            await anyio.to_thread.run_sync(pipe.processes.recall_baseline)
            self._tasks.start_soon(self._say_when_taken_up, turn, task_status)
            await self._follow(session, running)

    async def _say_when_taken_up(self, turn: LiveTurn, task_status: TaskStatus[None]) -> None:
        with anyio.move_on_after(TAKEN_UP_SECONDS):
            await turn.taken_up.wait()
        task_status.started()

    async def _follow(self, session: LiveSession, running: LiveProcess) -> None:
        """Handle the output of a process until it ends."""
        session.process = running
        session.last_used = anyio.current_time()
        self._said_of_itself = running.pipe.answer or self._said_of_itself
        self._tasks.start_soon(self._end_when_idle, session, running)
        try:
            async for lines in running.pipe.lines():
                for line in lines:
                    with suppress(EngineLost):  # it takes no more answers, but its last messages may still arrive
                        await session.take(running, line)
        except HelmsmanError as error:
            log.warning("a Claude Code of session %s: %s", session.id, error)
        except Exception:  # one session's trouble must not end the others
            log.exception("a Claude Code of session %s is not understood", session.id)
        finally:
            if session.process is running:
                session.process = None
        loss = await running.pipe.loss()
        if session.turn is not None and running.pipe.has_ended:
            session.end_turn(None, loss)

    async def _end_when_idle(self, session: LiveSession, running: LiveProcess) -> None:
        while session.process is running:
            left = session.last_used + IDLE_SECONDS - anyio.current_time()
            if session.turn is None and left <= 0:
                async with session.starting:  # who begins a turn now waits for its end, and has another one
                    if session.is_idle_in(running):
                        await self._end_process(session)
                        return
            await anyio.sleep(IDLE_SECONDS if session.turn is not None else left)

    async def _end_process(self, session: LiveSession) -> None:
        """End the process of a session, and wait until it is gone."""
        running = session.process
        if running is None:
            return
        await running.pipe.end()
        with anyio.move_on_after(END_SECONDS, shield=True):
            await running.gone.wait()

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more work, and release every process; supervised ones continue their turns."""
        self._lost = engine_closed()
        for session in self._sessions.values():
            if session.process is not None and (session.turn is None or self._owner is None):
                await session.process.pipe.end()

    def report_lost(self) -> None:
        """Report the end of the engine to every session, unless it outlives the hub."""
        lost = self._lost
        if lost is not None and self._id is None:
            self._router.engine_gone(Failure(code=lost.code, message=lost.message, retryable=lost.retryable))
        self._gone.set()


@asynccontextmanager
async def open_claude(
    sessions: ClaudeSessions,
    *,
    means: Means | None,
    can: Capabilities,
    roots: Sequence[Path] = (),
    engine_id: str | None = None,
    owner: Owner | None,
    about: Mapping[str, Any],
    left: Sequence[ProcessRecord] = (),
) -> AsyncIterator[ClaudeEngine]:
    """Open an engine for the length of the block. With an id it outlives the hub; `left` are processes that already run."""
    engine: ClaudeEngine | None = None
    try:
        async with background_tasks() as tasks:
            engine = ClaudeEngine(
                tasks, sessions, means=means, can=can, roots=roots, engine_id=engine_id, owner=owner, about=about
            )
            try:
                for record in left:
                    try:
                        await tasks.start(engine.run_left, record)
                    except HelmsmanError as error:
                        log.info("a Claude Code of session %s is not reached: %s", record.session_id, error)
                yield engine
            finally:
                with anyio.CancelScope(shield=True):
                    await engine.close()
    finally:
        if engine is not None:
            engine.report_lost()


def _opened(session: LiveSession, options: SessionOptions, *, enforced: bool) -> Opened:
    access = access_of(options, enforced=enforced)
    return Opened(
        session_id=session.id,
        turn_id=None if session.turn is None else session.turn.id,
        directory=None if session.directory is None else str(session.directory),
        model=options.model,
        approval_policy=access.approval_policy,
        sandbox=access.sandbox,
        enforced=access.enforced,
        notes=access.notes,
    )


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"Claude Code knows no session {session_id}. List the sessions to find the right id.")
