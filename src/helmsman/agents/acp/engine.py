"""The engine of agents that speak the Agent Client Protocol: a process for each session, and the same promises for all.

The protocol has no turn ids and no "turn started": a turn is a prompt that has not been answered. What the engine adds: each
turn has an id, one beginning and one end; the mode that asks is set after every load, before the first prompt; a question is
answered once, and always; an interrupt has stopped the turn and all it had started; and a process that dies takes its own
session with it, and no other.

In a hub each process has a supervisor: closing the engine only detaches from processes in which a turn runs, and the next
hub attaches to them again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.acp.asked import (
    model_in,
    prompt_content,
    refuse_danger,
    text_block,
)
from helmsman.agents.acp.confined import clear_away
from helmsman.agents.acp.held import Around, HeldSession
from helmsman.agents.acp.process import (
    AgentMeans,
    Hearing,
    confinement_of,
    open_agent,
    open_kept_agent,
    plan_launch,
    ready_launch,
    start_kept_agent,
)
from helmsman.agents.acp.profile import is_enforced
from helmsman.agents.event_router import RoutedEngine, engine_closed
from helmsman.agents.prompt_words import note_on
from helmsman.agents.protocol import Begun, Capability
from helmsman.agents.supervised_agent import brought
from helmsman.agents.supervisor.records import end_left
from helmsman.base.concurrency import background_tasks
from helmsman.base.json_values import mapping, optional_text, text
from helmsman.base.structs import replace
from helmsman.errors import (
    EngineLost,
    EngineRefused,
    EngineStartFailed,
    HelmsmanError,
    InvalidInput,
    QuestionNotOpen,
    SessionBusy,
    SessionIdle,
    SessionNotFound,
)
from helmsman.model.events import Failure
from helmsman.model.options import SessionOptions
from helmsman.model.questions import ABORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.agents.acp.process import AgentLaunch, AgentProcess
    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.protocol import Capabilities, Opened
    from helmsman.agents.sandbox import Sandbox
    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.model.events import PastTurn
    from helmsman.model.options import TurnInput
    from helmsman.model.questions import Choice, Question

    Opening = Callable[[Hearing, TaskGroup], AbstractAsyncContextManager[AgentProcess]]

log = logging.getLogger(__name__)

INTERRUPT_SECONDS: Final = 10.0
"""Seconds that an agent may take to answer a cancelled prompt. Half a second was seen, or no answer during retries."""

CLOSE_SECONDS: Final = 2.0
"""Seconds that it may take when the engine is closed; then its process is ended."""

END_SECONDS: Final = 20.0
"""Seconds that a supervisor may take to end it."""

REPLAY_SECONDS: Final = 10.0
"""Seconds that the replay of a turn may take that ended while no hub was running."""

_LOOK_FOR_IDLE: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Supervision of an engine's processes. `about` describes the engine in their records; see `AcpAgent`."""

    engine_id: str
    owner: Owner
    state_dir: Path
    about: Mapping[str, Any]


class AcpEngine(RoutedEngine):
    """See `helmsman.agents.protocol.Engine`. Made by `open_acp_engine` only."""

    def __init__(
        self,
        tasks: TaskGroup,
        profile: Profile,
        means: AgentMeans | None,
        env: Mapping[str, str],
        places: Path,
        idle: float,
        keep: Keep | None,
    ) -> None:
        super().__init__()
        self._tasks = tasks
        self.profile = self._profile = profile
        self.means = means
        self._places = places
        self._idle = idle
        self._keep = keep
        self._sessions: dict[str, HeldSession] = {}
        self._loading: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        """By session: held while it is loaded or set up, until it has the prompt that this is for, and while it is ended."""
        self._reader = profile.reader(env)
        self._around = Around(tasks, self._router, profile, self._reader)
        self._capabilities = profile.capabilities
        self._positions_before: dict[str, str | None] = {}
        """Input positions of the processes that earlier hubs left, by session."""
        self._lost: HelmsmanError | None = None

    @property
    def name(self) -> str:
        return "acp"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def id(self) -> str | None:
        return None if self._keep is None else self._keep.engine_id

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's description in the records of its processes."""
        return {} if self._keep is None else self._keep.about

    @property
    def lost(self) -> HelmsmanError | None:
        return self._lost

    async def until_lost(self) -> None:
        await anyio.sleep_forever()

    def input_position(self, session_id: str) -> str | None:
        session = self._sessions.get(session_id)
        process = None if session is None else session.process
        return self._positions_before.get(session_id) if process is None else process.input_position

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def open(self, options: SessionOptions) -> Opened:
        session = await self._start(options)
        async with self._stopped_if_that_fails(session):
            made = await session.ask("session/new", self._place(session))
            session.id = self._id_in(made)
            await session.set_up(options)
        self._hold(session, made)
        return session.opened()

    def _hold(self, session: HeldSession, made: Mapping[str, Any]) -> None:
        """A session was made or loaded."""
        session.model = session.options.model or model_in(made)
        self._sessions[session.id] = session
        if session.process is not None:
            session.process.note(session_id=session.id, version=session.process.version)

    def _place(self, session: HeldSession) -> dict[str, Any]:
        meta = self._profile.session_meta(session.options)
        return {"cwd": str(session.directory), "mcpServers": [], **({"_meta": meta} if meta else {})}

    def _id_in(self, made: Mapping[str, Any]) -> str:
        if session_id := text(made.get("sessionId")):
            return session_id
        raise EngineStartFailed(f"{self._profile.title} gave the new session no id. Try another version of it.")

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        self._check()
        async with self._loading[session_id]:
            session = await self._loaded(session_id, options)
        return session.opened()

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        self._check()
        if self._reader is None:
            return await super().history(session_id)
        turns = await anyio.to_thread.run_sync(self._reader.history, session_id)
        if turns is None:
            raise self._not_found(session_id)
        return turns

    async def _loaded(self, session_id: str, options: SessionOptions) -> HeldSession:
        """Return a session in a process that was started for these options. The caller holds its lock in `_loading`."""
        session = self._sessions.get(session_id)
        if session is not None and session.is_ending:
            await session.gone.wait()  # a message sent now would be lost
        if session is not None and session.process is not None:
            session.idle_since = anyio.current_time()
            if session.turn is not None or (session.options == options and not session.was_left):
                return session
            if await self._suits(session, options):
                async with self._stopped_if_that_fails(session):
                    await session.set_up(options)
                return session
            await self._stop(session)
        return await self._load(session_id, options)

    async def end_leftovers(self, session_id: str) -> None:
        self._refuse_if_running(session_id)
        async with self._loading[session_id]:
            self._refuse_if_running(session_id)
            if (session := self._sessions.get(session_id)) is not None:
                await self._stop(session)

    async def unload(self, session_id: str) -> None:
        self.capabilities.require(Capability.MOVE)
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await self._stop(session)

    async def _suits(self, session: HeldSession, options: SessionOptions) -> bool:
        """Return whether the process of a session can continue under these options."""
        if self.means is None and session.confinement == confinement_of(options):
            return True  # the best guess without a launch configuration
        return session.launch == (await self._plan(options, session.directory)).digest

    async def _load(self, session_id: str, options: SessionOptions) -> HeldSession:
        if self._reader is not None and await anyio.to_thread.run_sync(self._reader.find, session_id) is None:
            raise self._not_found(session_id)  # some agents begin a session of that id
        await self._profile.may_load(session_id, brought(self.means).env)
        if self._keep is not None:
            await anyio.to_thread.run_sync(end_left, self._keep.state_dir, self._profile.name, session_id)
        session = await self._start(options, session_id)
        session.id, session.loading, session.cost = session_id, True, None
        can = {} if session.process is None else session.process.session_capabilities
        method = "session/resume" if "resume" in can else "session/load"
        async with self._stopped_if_that_fails(session):
            params = {"sessionId": session_id, **self._place(session)}
            try:
                made = await session.ask(method, params)
            except EngineRefused as error:
                raise self._not_found(session_id) from error
            await session.set_up(options)
        session.loading = False
        await anyio.to_thread.run_sync(self._profile.was_loaded, session_id, brought(self.means).env)
        if self._profile.counting == "files" and self._reader is not None:
            session.counted = await anyio.to_thread.run_sync(self._reader.spent, session_id)
        self._hold(session, made)
        return session

    # --- processes ---------------------------------------------------------------------------------------------------

    async def _plan(self, options: SessionOptions, directory: Path) -> AgentLaunch:
        return await anyio.to_thread.run_sync(plan_launch, self._profile, brought(self.means), options, directory)

    async def _start(self, options: SessionOptions, session_id: str | None = None) -> HeldSession:
        """Start a process for a session under these options; with an id, for one that will be loaded.

        Raises:
            InvalidInput: It cannot do what the options request, or it would run files that the user has not trusted.
            EngineStartFailed: It does not come up.
        """
        self._check()
        if options.cwd is None or not await anyio.to_thread.run_sync(options.cwd.is_dir):
            raise InvalidInput("A session needs a working directory. Name one that exists.")
        if is_enforced(options):
            self.capabilities.require(Capability.SANDBOX)
        await anyio.to_thread.run_sync(refuse_danger, self._profile, options, options.cwd)
        planned = await self._plan(options, options.cwd)
        launch = await ready_launch(self._profile, brought(self.means), options, planned)
        session = HeldSession(self._around, options, options.cwd)
        session.launch, session.confinement = launch.digest, launch.confinement
        opening: Opening = partial(open_agent, self._profile, launch)
        if self._keep is not None:
            opening = await self._kept(launch, self._keep, session_id)
        await self._tasks.start(self._serve, session, opening)
        async with self._stopped_if_that_fails(session):
            # Check again: the agent would find files that have appeared since together with its session.
            await anyio.to_thread.run_sync(refuse_danger, self._profile, options, options.cwd)
        return session

    async def _kept(self, launch: AgentLaunch, keep: Keep, session_id: str | None) -> Opening:
        record = await start_kept_agent(
            self._profile,
            launch,
            state_dir=keep.state_dir,
            idle=self._idle,
            owner=keep.owner,
            about={**keep.about, "engine_id": keep.engine_id, "session_id": session_id},
        )
        return self._owning(record, keep)

    def _owning(self, record: ProcessRecord, keep: Keep) -> Opening:
        return lambda hearing, _: open_kept_agent(self._profile, record, hearing, epoch=keep.owner.epoch)

    async def _serve(
        self,
        session: HeldSession,
        opening: Opening,
        noted: Mapping[str, Any] | None = None,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        """From the start of a process to its end, or from where an earlier owner has left it, with what that has noted."""
        reason: HelmsmanError | None = None
        is_told = True

        def closed(why: HelmsmanError) -> None:
            nonlocal reason, is_told
            reason = why
            if session.process is not None:  # else the caller that initializes it gets the error
                is_told = not session.process.is_taken_over
                session.scope.cancel()

        hearing = Hearing(on_notification=session.on_notification, on_request=session.on_request, on_close=closed)
        try:
            with session.scope:
                async with background_tasks() as tasks, opening(hearing, tasks) as process:
                    session.process = process
                    if noted is not None:
                        self._positions_before[session.id] = process.input_position
                    session.idle_since = anyio.current_time()
                    if noted is not None:
                        await anyio.to_thread.run_sync(process.processes.recall_baseline)
                        session.recall(noted)
                    if self._keep is not None:
                        tasks.start_soon(process.peer.run)
                    task_status.started()
                    await anyio.sleep_forever()
        finally:
            was_up, session.process = session.process is not None, None
            session.gone.set()
            if was_up:
                session.on_gone(reason, told=is_told and self._lost is None and not session.leaving)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(clear_away, self._places)
        if not was_up:
            raise reason or EngineStartFailed(f"{self._profile.title} did not come up. Start it by hand to see why.")

    async def _stop(self, session: HeldSession) -> None:
        """End the process of a session, with all it has started."""
        session.leaving = True
        with anyio.CancelScope(shield=True):
            if session.process is not None and await session.process.end():
                with anyio.move_on_after(END_SECONDS):
                    await session.gone.wait()
            session.scope.cancel()
            await session.gone.wait()

    @asynccontextmanager
    async def _stopped_if_that_fails(self, session: HeldSession) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            await self._stop(session)
            raise

    async def end_idle(self) -> None:
        """End the processes of sessions in which nothing has run for long; they load again."""
        while True:
            await anyio.sleep(min(_LOOK_FOR_IDLE, self._idle))
            for session in list(self._sessions.values()):
                if self._is_idle(session):
                    async with self._loading[session.id]:  # who begins a turn now waits, and has another process
                        if self._is_idle(session):
                            await self._stop(session)

    def _is_idle(self, session: HeldSession) -> bool:
        has_nothing = session.turn is None and session.process is not None
        return has_nothing and anyio.current_time() - session.idle_since > self._idle

    async def close(self) -> None:
        """Stop what runs and end all processes; of those that are kept only the ones in which nothing runs."""
        self._lost = engine_closed()
        async with anyio.create_task_group() as tasks:
            for session in self._sessions.values():
                tasks.start_soon(self._leave if self._keep is not None else self._cancel_and_stop, session)
        if self._keep is None:  # else it outlives the hub
            self._router.engine_gone(Failure(code=self._lost.code, message=self._lost.message, retryable=True))

    async def _leave(self, session: HeldSession) -> None:
        if session.stopped and session.turn is not None:
            session.end(session.turn)  # it is not for the next hub to find out that it does not ask
            await session.kill()
        if session.stopped or (session.turn is None and session.left_turn is None):
            await self._stop(session)
        else:
            session.scope.cancel()
            await session.gone.wait()

    async def _cancel_and_stop(self, session: HeldSession) -> None:
        turn, process = session.turn, session.process
        if turn is not None and process is not None:  # a cancelled turn is recorded as such, and its commands end
            turn.interrupted = True
            with contextlib.suppress(HelmsmanError), anyio.move_on_after(CLOSE_SECONDS):
                process.peer.notify("session/cancel", {"sessionId": session.id})
                await turn.ended.wait()
        await self._stop(session)

    # --- what others left running ------------------------------------------------------------------------------------

    async def follow_left(self, record: ProcessRecord) -> None:
        """Follow a process that an earlier hub has left, if it has left a turn in it; what that has done comes as events."""
        try:
            await self._follow_left(record)
        except HelmsmanError as error:
            log.info("%s of session %s is not reached: %s", self._profile.title, record.session_id, error)

    async def _follow_left(self, record: ProcessRecord) -> None:
        assert self._keep is not None
        activity = await anyio.to_thread.run_sync(record.activity)
        notes = await anyio.to_thread.run_sync(record.notes)
        place = Path(record.place)
        session = HeldSession(self._around, SessionOptions(agent=self._profile.name, cwd=place, unenforced=True), place)
        session.id, session.launch = record.session_id, text(record.about.get("launch"))
        session.confinement = optional_text(record.about.get("confinement"))
        await self._tasks.start(self._serve, session, self._owning(record, self._keep), mapping(notes.get("turn")))
        turn = session.turn
        if turn is not None and not any(activity):  # it has ended, and its answer is on its way
            with anyio.move_on_after(REPLAY_SECONDS):
                await turn.ended.wait()
        if session.left_turn is None or (session.turn is not None and not any(activity)):
            session.turn = None  # it never began; the next one has another process
            self._tasks.start_soon(self._stop, session)
            return
        self._sessions[session.id] = session
        if turn is not None and turn.interrupted:
            self._tasks.start_soon(self.interrupt, session.id)  # the hub that began the interrupt is gone

    async def running_sessions(self) -> tuple[str, ...]:
        found = self._sessions.values()
        return tuple(one.id for one in found if one.turn is not None or one.left_turn is not None)

    async def adopt(self, session_id: str, options: SessionOptions) -> Opened:
        self._check()
        session = self._sessions.get(session_id)
        if session is None or (session.turn is None and session.left_turn is None):
            raise self._not_found(session_id)
        session.options, session.model = options, options.model
        truly = replace(options, unenforced=not session.is_enforced)
        session.access = replace(session.access, notes=self._profile.access(truly).notes)
        opened = session.opened()
        session.left_turn = None
        return opened

    # --- turns -------------------------------------------------------------------------------------------------------

    async def get_ready(self, session_id: str, options: SessionOptions, turn: TurnInput) -> None:
        self._refuse_if_running(session_id)
        async with self._loading[session_id]:
            await self._loaded(session_id, options)

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        self._refuse_if_running(session_id)
        content = await anyio.to_thread.run_sync(prompt_content, turn) if turn.images else prompt_content(turn)
        async with self._loading[session_id]:
            session = await self._loaded(session_id, options)
            process = session.process
            if process is None:
                raise EngineLost(f"{self._profile.title} has ended. Send the message again to start it.")
            await anyio.to_thread.run_sync(process.processes.note_baseline)
            self._refuse_if_running(session_id)
            if session.process is not process or session.is_ending:
                raise EngineLost(f"{self._profile.title} has just ended. Send the message again to start it.")
            running = await session.begin(content)
        notes = note_on(turn.text, self._profile.title)
        if turn.effort is not None:
            notes += (f"{self._profile.title} cannot be told how hard to think.",)
        return Begun(session_id=session_id, turn_id=running.id, notes=notes)

    def _refuse_if_running(self, session_id: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        if session is not None and session.turn is not None:
            raise SessionBusy(f"A turn is running in session {session_id}. Wait for it, or interrupt it.")

    async def steer(self, session_id: str, text: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        turn = None if session is None else session.turn
        if session is None or turn is None or session.process is None or session.is_ending:
            raise SessionIdle(f"No turn is running in session {session_id}. Send it as a new message instead.")
        match self._profile.steering:
            case "second prompt":
                session.send(turn, [text_block(text)])
            case "when asked":
                turn.later.append(text)
                session.note(turn)
            case "request":
                content = [text_block(text)]
                await session.ask("_session/steering", {"sessionId": session_id, "prompt": content})
            case _:
                await super().steer(session_id, text)

    async def interrupt(self, session_id: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        if session is None or session.process is None:
            return
        turn, process = session.turn, session.process
        if turn is None:
            await anyio.to_thread.run_sync(process.processes.end_started_by_turns)
            return
        turn.interrupted = True
        session.note(turn)
        if session.turn is turn:
            session.withdraw_all()
            process.peer.notify("session/cancel", {"sessionId": session_id})
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await turn.ended.wait()
        if session.turn is turn:  # it does not listen, for example while it waits to ask its model again
            await self._stop(session)
            session.end(turn)
            return
        await anyio.to_thread.run_sync(process.processes.end_started_by_turns)

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        self._check()
        session = self._sessions.get(question.session_id)
        if session is None:
            raise QuestionNotOpen.any_more(question.id)
        session.answer(question, choices)
        if choices and choices[0].value == ABORT:
            await self.interrupt(question.session_id)

    def _not_found(self, session_id: str) -> SessionNotFound:
        return SessionNotFound(
            f"{self._profile.title} knows no session {session_id}. List the sessions to find the right id."
        )


@asynccontextmanager
async def open_acp_engine(
    profile: Profile,
    argv: Sequence[str] | None,
    *,
    env: Mapping[str, str],
    places: Path,
    idle: float,
    sandbox: Callable[[], Awaitable[Sandbox]] | None = None,
    keep: Keep | None,
    left: Sequence[ProcessRecord] = (),
) -> AsyncIterator[AcpEngine]:
    """An engine for the length of the block; its processes end with it, unless they are kept: `left` are those already.

    Without a command and what finds a `sandbox` it can start nothing, and `env` has to say only where the agent keeps its
    sessions.
    """
    means = None
    if argv is not None and sandbox is not None:
        means = AgentMeans(argv=argv, env=env, places=places, sandbox=sandbox)
    await anyio.to_thread.run_sync(clear_away, places)
    async with background_tasks() as tasks:
        engine = AcpEngine(tasks, profile, means, env, places, idle, keep)
        tasks.start_soon(engine.end_idle)
        try:
            async with anyio.create_task_group() as following:
                for record in left:
                    following.start_soon(engine.follow_left, record)
            yield engine
        finally:
            with anyio.CancelScope(shield=True):
                await engine.close()
