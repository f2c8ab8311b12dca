"""The life of an agent's sessions and processes, the same for all agents that have one process per session.

    STORED ──> STARTING ──> IDLE <──> RUNNING ──> STOPPING
      ^            │         │           │            │
      └────────────┴─────────┴── ENDING <┴────────────┘

A session is STORED while no process has it. A process is STARTING until it is greeted and has loaded the session. In an
IDLE session nothing runs: it takes a turn, or its process ends after a while. A RUNNING turn ends by itself or is
interrupted (STOPPING); one that does not stop is ended with its process. Nothing is sent to a process that is ENDING. A
process that is lost takes its own session with it, and no other. Each change of the state is an event.

In a hub each process has a supervisor. Closing the engine then only detaches from processes in which a turn runs, and the
next hub attaches to them again. What differs between agents is a `AgentDialect`, and a `Conversation` with each process.
"""

from __future__ import annotations

import base64
import json
import logging
import mimetypes
import re
import uuid
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import anyio
import anyio.to_thread

from helmsman.agents.agent_process import (
    AttachedAgent,
    open_child_agent,
    open_supervised_agent,
    start_supervised_agent,
)
from helmsman.agents.event_router import RoutedEngine, engine_closed
from helmsman.agents.protocol import Begun, Capability, is_enforced
from helmsman.agents.supervisor.records import end_left
from helmsman.base.concurrency import background_tasks
from helmsman.base.json_values import mapping, optional_text, text
from helmsman.errors import (
    ClientAway,
    EngineLost,
    HelmsmanError,
    InvalidInput,
    QuestionNotOpen,
    SessionBusy,
    SessionIdle,
    SessionNotFound,
)
from helmsman.model.events import EngineGone, Failure, Notice, ProcessState, ProcessStateChanged
from helmsman.model.options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.agents.agent_process import AgentProcess, Greeting, Launch
    from helmsman.agents.protocol import Capabilities, Opened, Trust
    from helmsman.agents.sandbox import Sandbox
    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.model.events import Event, PastTurn, TurnEnded
    from helmsman.model.options import TurnInput
    from helmsman.model.questions import Choice, Question

    Opening = Callable[[TaskGroup], AbstractAsyncContextManager[AgentProcess]]

# --- prompts ---------------------------------------------------------------------------------------------------------
# A message to an agent is text for its model. Agents read a prompt that begins with `/` (some terminals: `!`) as a
# command to their own program, before any model or question: approve everything, add a directory or a server, change
# settings, forget the session. A message must not change what a session may do, so such a message gets a prefix, and
# the model reads it as it is.


_COMMAND: Final = re.compile(r"[\s\ufeff\u200b-\u200f\u2060-\u2064]*[/!]")
"""After all that an agent may take for nothing."""
_FIRST: Final = "Message: "


def is_command(text: str) -> bool:
    """Whether some agent could take this for a command to itself."""
    return _COMMAND.match(text) is not None


def as_words(text: str) -> str:
    """A message as no agent takes for a command."""
    return _FIRST + text if is_command(text) else text


def note_on(text: str, title: str) -> tuple[str, ...]:
    """Note to the sender of a message that was changed before it was sent."""
    if not is_command(text):
        return ()
    return (f"{title} gives this to its model as a message: its own commands do not work from here.",)


def image_data(path: Path) -> tuple[str, str]:
    """Return the type of an image and its content in base64. Blocks, briefly.

    Raises:
        InvalidInput: It cannot be read.
    """
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    try:
        return kind, base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise InvalidInput(f"The image {path} cannot be read: {error}. Name one that can.") from error


# --- states ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

SessionT = TypeVar("SessionT", bound="EngineSession")

INTERRUPT_SECONDS: Final = 10.0
"""Seconds that a turn may take to stop. Half a second was seen, or no answer at all while an agent retries its model."""

CLOSE_SECONDS: Final = 2.0
"""Seconds that a turn may take to stop when the engine is closed; then its process is ended."""

END_SECONDS: Final = 20.0
"""Seconds that a process may take to end, with its sandbox."""

CATCH_UP_SECONDS: Final = 10.0
"""Seconds that it may take to read a turn that an earlier hub has left, up to its name or its end."""

_LOOK_FOR_IDLE: Final = 30.0


TRANSITIONS: Final[Mapping[ProcessState, frozenset[ProcessState]]] = {
    ProcessState.STORED: frozenset({ProcessState.STARTING}),
    ProcessState.STARTING: frozenset(
        {ProcessState.IDLE, ProcessState.RUNNING, ProcessState.ENDING, ProcessState.STORED}
    ),
    ProcessState.IDLE: frozenset({ProcessState.RUNNING, ProcessState.ENDING, ProcessState.STORED}),
    ProcessState.RUNNING: frozenset(
        {ProcessState.IDLE, ProcessState.STOPPING, ProcessState.ENDING, ProcessState.STORED}
    ),
    ProcessState.STOPPING: frozenset({ProcessState.IDLE, ProcessState.ENDING, ProcessState.STORED}),
    ProcessState.ENDING: frozenset({ProcessState.STORED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What processes are started with. An engine that was found again has none until a client supplies it."""

    argv: Sequence[str]
    env: Mapping[str, str]
    state_dir: Path
    sandbox: Callable[[], Awaitable[Sandbox]]

    def within(self, options: SessionOptions) -> LaunchConfig:
        """Return the configuration with the variables of a session's worktree."""
        return replace(self, env={**self.env, **options.environment})


def require_config(config: LaunchConfig | None) -> LaunchConfig:
    """Return the launch configuration of an engine.

    Raises:
        ClientAway: It was found again, and no client has supplied one.
    """
    if config is None:
        raise ClientAway(
            "No client with the environment of this session is connected. The session continues when one connects."
        )
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """Supervision of an engine's processes. `about` describes the engine in their records."""

    engine_id: str
    owner: Owner
    about: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class AgentTurn:
    """A turn that runs. Conversations add what they have to know of it."""

    id: str
    interrupted: bool = False
    is_told: bool = False
    """The end was reported."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    """It is over, or its process has gone."""
    notes: tuple[str, ...] = ()
    """Remarks for the client about this turn."""


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a session branches off: after a turn of another, whose last line is named, or at the end."""

    session_id: str
    last_turn_id: str | None
    line: str | None


class EngineSession:
    """A session in an engine: its state, and the turn that runs in it."""

    def __init__(self, session_id: str, on_state: Callable[[Any], None] = lambda session: None) -> None:
        """`on_state` is called with the session after each change of the state."""
        self.id = session_id
        self.state = ProcessState.STORED
        self.entered: list[ProcessState] = []
        """States that were not reported yet."""
        self._on_state = on_state
        self.turn: AgentTurn | None = None
        self.used_at = 0.0

    def enter(self, state: ProcessState) -> None:
        """Change the state. A transition that `TRANSITIONS` does not know is an error in the engine."""
        if state is self.state:
            return
        assert state in TRANSITIONS[self.state], f"session {self.id}: {self.state.value} -> {state.value}"
        self.state = state
        self.entered.append(state)
        self._on_state(self)

    def begin(self, turn: AgentTurn) -> None:
        """A turn begins."""
        self.turn = turn
        self.enter(ProcessState.RUNNING)

    def finish(self, turn: AgentTurn) -> None:
        """A turn is over."""
        if self.turn is turn:
            self.turn = None
            self.used_at = anyio.current_time()
            if self.state in (ProcessState.RUNNING, ProcessState.STOPPING):
                self.enter(ProcessState.IDLE)
        turn.ended.set()

    def stop(self) -> None:
        """The turn was asked to stop."""
        if self.state is ProcessState.RUNNING:
            self.enter(ProcessState.STOPPING)

    def stamp(self, event: Event) -> None:
        """Name the line of its own process's output as the source of an event."""


class AgentSession(EngineSession):
    """A session, and the process that has it."""

    def __init__(
        self,
        session_id: str,
        directory: Path | None,
        options: SessionOptions,
        on_state: Callable[[Any], None] = lambda session: None,
    ) -> None:
        super().__init__(session_id, on_state)
        self.directory = directory
        self.options = options
        """Those it was last used with."""
        self.is_new = False
        """Whether it was opened here and has had no turn. Its agent may name it with the first one."""
        self.forked_from: ForkPoint | None = None
        self.process: AgentProcess | None = None
        self.conversation: Conversation | None = None
        self.left_turn: str | None = None
        """The turn that an earlier hub has left, until a client asks for it. It may have ended."""
        self.launch = ""
        """The fingerprint of how the process was started."""
        self.confinement: str | None = None
        """A fingerprint of its sandbox; None without one."""
        self.about: Mapping[str, Any] = {}
        """What its launch, or the record of its process, says besides."""
        self.cost: float | None = 0.0
        """What the session has cost before this turn, as its agent tells it; None if unknown."""
        self.lock = anyio.Lock()
        """Held while its process is started, loaded, given a prompt, or ended."""
        self.scope = anyio.CancelScope()
        self.gone = anyio.Event()
        """Set when nothing is left of its last process."""
        self.gone.set()

    @property
    def is_enforced(self) -> bool:
        """Return whether a sandbox restricts where the process may write."""
        return self.confinement is not None

    @property
    def is_ending(self) -> bool:
        """Return whether the process is about to end, so that nothing may be started in it."""
        return self.state is ProcessState.ENDING or (self.conversation is not None and bool(self.conversation.stopped))

    def stamp(self, event: Event) -> None:
        if self.process is not None:
            self.process.position.stamp(event)


def session_not_found(title: str, session_id: str) -> SessionNotFound:
    """Return the error for a session that an agent of this name does not have."""
    return SessionNotFound(f"{title} knows no session {session_id}. List the sessions to find the right id.")


class Conversation(ABC):
    """Conversation with one process of an agent: prompts, answers and steering, events and questions."""

    def __init__(self, engine: ProcessEngine, session: AgentSession, process: AgentProcess) -> None:
        self.engine = engine
        self.session = session
        self.process = process
        self.title = process.title
        self.stopped = ""
        """Why the process is about to be ended: it may have stopped asking."""

    def deliver(self, event: Event) -> None:
        """Deliver an event, with the line it comes from."""
        self.process.position.stamp(event)
        self.engine.deliver(event)

    def warn(self, message: str) -> None:
        """Tell the user."""
        self.deliver(Notice(session_id=self.session.id, kind="warning", message=message))

    @abstractmethod
    async def run(self) -> None:
        """Handle the output of the process until it ends."""

    async def load(self, options: SessionOptions, *, is_new: bool) -> None:  # noqa: B027 - some begin with a prompt
        """Make or load the session in a process that has just been started, and set it up."""

    async def set_up(self, options: SessionOptions) -> None:  # noqa: B027 - some are set up by their command line
        """Set up the loaded session for these options."""

    @abstractmethod
    async def prompt(self, turn: TurnInput) -> AgentTurn:
        """Begin a turn."""

    async def steer(self, turn: AgentTurn, message: str) -> None:
        """Send a message into the running turn."""
        raise self.engine.capabilities.refusal(Capability.STEER)

    @abstractmethod
    async def stop_turn(self, turn: AgentTurn) -> None:
        """Withdraw the turn's questions, and tell the agent to stop it."""

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> bool:
        """Send an answer; return whether the turn has to be interrupted. Raises `QuestionNotOpen`."""
        raise QuestionNotOpen.any_more(question.id)

    def end_turn(self, turn: AgentTurn) -> None:
        """Close all that is open in a turn, and tell its end, once."""
        if turn.is_told:
            return
        turn.is_told = True
        self.withdraw_all()
        ended = self.ended(turn)
        self.session.finish(turn)
        self.deliver(ended)
        self.process.turn_ended()

    @abstractmethod
    def ended(self, turn: AgentTurn) -> TurnEnded:
        """Deliver the last events of a turn, and return its end."""

    def withdraw_all(self) -> None:  # noqa: B027 - some never ask
        """Withdraw all open questions."""

    def recall(self, notes: Mapping[str, Any], *, is_running: bool) -> None:  # noqa: B027 - some end with the hub
        """Take over the turn that an earlier hub has left, if there is one. Its output comes again, after this call."""

    async def caught_up(self, *, is_running: bool) -> None:  # noqa: B027 - nothing to wait for
        """Wait until enough of a recalled turn was read to continue. The caller bounds the wait."""

    async def adopt(self, options: SessionOptions) -> None:  # noqa: B027 - some never ask
        """A client asks for a session that an earlier hub has left, under these options."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """The process has gone: forget its questions."""


class AgentDialect(ABC):
    """What differs between agents."""

    agent: str
    """The name of the agent."""
    title: str
    """Its name in sentences."""
    engine_name: ClassVar[str]
    engine_class: ClassVar[type[ProcessEngine] | None] = None
    """Engine with more verbs than the others, if the agent has some."""
    greeting: Greeting
    capabilities: Capabilities
    starts_with_session: ClassVar[bool]
    """Whether a process is started to make or load a session; otherwise with its first turn."""
    ends_with_turn: ClassVar[bool] = False
    """Whether a process has one turn, and ends with it."""
    program: Path | None = None
    """The program, if sessions could replace it."""
    version: str | None = None
    """The version of the program, if it is known before a process says it."""
    idle_seconds: ClassVar[float | None] = None
    """Seconds that a process waits for the next turn, if that is less than the setting."""

    @property
    @abstractmethod
    def trust(self) -> Trust:
        """How far the agent is trusted."""

    @abstractmethod
    def converse(self, engine: ProcessEngine, session: AgentSession, process: AgentProcess) -> Conversation:
        """Begin the conversation with a process that was just started or found."""

    @abstractmethod
    def opened(self, session: AgentSession, options: SessionOptions) -> Opened:
        """Return a session as reported to the client that opened it."""

    @abstractmethod
    def notes_on(self, turn: TurnInput) -> tuple[str, ...]:
        """Return remarks for the client about a turn that has begun."""

    # --- processes ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def check(self, config: LaunchConfig | None, options: SessionOptions) -> None:
        """Refuse options that this agent cannot hold to.

        Raises:
            Unsupported: It must be held to a sandbox, and cannot.
        """

    @abstractmethod
    def fingerprint(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> str:
        """Return the fixed settings of a process for such a turn, for comparing. Blocks, briefly."""

    def confinement(self, options: SessionOptions) -> str | None:
        """Return a fingerprint of the sandbox of such a session; None without one."""
        if not is_enforced(options):
            return None
        return json.dumps([options.writes or "workspace", [str(root) for root in options.writable_roots]])

    def fits(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> bool:
        """Return whether the process of a session suits, as far as that is known without a launch configuration."""
        return session.confinement == self.confinement(options)

    @abstractmethod
    async def launch(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> Launch:
        """Check all that has to hold before a process is started for a session, and return how to start it."""

    def clear_up(self, state_dir: Path, session: AgentSession) -> None:  # noqa: B027 - some leave nothing
        """Remove the files of a process that has ended. Blocks, briefly."""

    # --- session files -----------------------------------------------------------------------------------------------

    @abstractmethod
    def find(self, session_id: str) -> Path | None:
        """Return the directory of a stored session, None if it is not known. Blocks.

        Raises:
            SessionNotFound: There is no such session.
        """

    @abstractmethod
    def history(self, session: AgentSession | None, session_id: str) -> tuple[PastTurn, ...]:
        """Return the turns of a session. Blocks; raises `SessionNotFound`."""

    def fork_point(self, session_id: str, last_turn_id: str | None) -> ForkPoint:
        """Return where a fork of a stored session branches off. Blocks."""
        raise self.capabilities.refusal(Capability.FORK)

    def not_found(self, session_id: str) -> SessionNotFound:
        return session_not_found(self.title, session_id)


class SessionEngine(RoutedEngine, Generic[SessionT]):
    """Engine whose sessions have a state and at most one turn, in one process each or together in one."""

    def __init__(self) -> None:
        super().__init__()
        self._sessions: dict[str, SessionT] = {}

    def _on_state(self, session: SessionT) -> None:
        """Report the states that a session has entered."""
        entered, session.entered = session.entered, []
        for state in entered:
            event = ProcessStateChanged(session_id=session.id, state=state)
            session.stamp(event)
            self._router.deliver(event)

    def _refuse_if_running(self, session: SessionT) -> None:
        self._check()
        if session.turn is not None:
            steer = ", steer it" if Capability.STEER in self.capabilities else ""
            raise SessionBusy(f"A turn is running in session {session.id}. Wait for it{steer}, or interrupt it.")


def no_turn_runs(session_id: str) -> SessionIdle:
    """Return the error for a message into a turn where none runs."""
    return SessionIdle(f"No turn is running in session {session_id}. Send it as a new message instead.")


class ProcessEngine(SessionEngine[AgentSession]):
    """See `helmsman.agents.protocol.Engine`. Made by `open_process_engine` only."""

    def __init__(
        self,
        tasks: TaskGroup,
        dialect: AgentDialect,
        config: LaunchConfig | None,
        *,
        state_dir: Path,
        idle: float,
        supervision: Supervision | None,
    ) -> None:
        super().__init__()
        self.tasks = tasks
        self.dialect = dialect
        self.config = config
        self._state_dir = state_dir
        self._engine_idle = idle
        self._idle = idle if dialect.idle_seconds is None else min(idle, dialect.idle_seconds)
        self._supervision = supervision
        self._positions_before: dict[str, str | None] = {}
        """Input positions of the processes that earlier hubs left, by session."""
        self._lost: HelmsmanError | None = None
        self._closed = anyio.Event()

    @property
    def name(self) -> str:
        return self.dialect.engine_name

    @property
    def program(self) -> Path | None:
        return self.dialect.program

    @property
    def capabilities(self) -> Capabilities:
        return self.dialect.capabilities

    @property
    def id(self) -> str | None:
        return None if self._supervision is None else self._supervision.engine_id

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's description in the records of its processes."""
        return {} if self._supervision is None else self._supervision.about

    @property
    def lost(self) -> HelmsmanError | None:
        return self._lost

    async def until_lost(self) -> None:
        await self._closed.wait()

    def input_position(self, session_id: str) -> str | None:
        session = self._sessions.get(session_id)
        process = None if session is None else session.process
        return self._positions_before.get(session_id) if process is None else process.input_position

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def open(self, options: SessionOptions) -> Opened:
        self._check()
        if options.cwd is None or not await anyio.to_thread.run_sync(options.cwd.is_dir):
            # Before the session exists: an agent would accept a missing directory and fail later.
            raise InvalidInput("A session needs a working directory. Name one that exists.", parameter="cwd")
        session = AgentSession("", options.cwd, options, self._on_state)
        if self.dialect.starts_with_session:
            await self._start(session, options, None)
        else:
            # The process starts with the first turn, but an unusable sandbox must be reported now.
            await self.dialect.check(self.config, options)
            session.id, session.is_new = str(uuid.uuid4()), True
        self._sessions[session.id] = session
        return self.dialect.opened(session, options)

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        session = await self._known(session_id, options)
        if self.dialect.starts_with_session:
            # The lock keeps two callers from starting two processes.
            async with session.lock:
                await self._ready(session, options, None)
        elif session.turn is None:
            # Without a process, options count from the next turn.
            session.options = options
            await self.dialect.check(self.config, options)
        return self.dialect.opened(session, options)

    async def fork(self, session_id: str, options: SessionOptions, *, last_turn_id: str | None = None) -> Opened:
        self.capabilities.require(Capability.FORK)
        source = await self._known(session_id, options)
        fork = await anyio.to_thread.run_sync(self.dialect.fork_point, session_id, last_turn_id)
        await self.dialect.check(self.config, options)
        session = AgentSession(str(uuid.uuid4()), source.directory, options, self._on_state)
        session.forked_from = fork
        self._sessions[session.id] = session
        return self.dialect.opened(session, options)

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        self._check()
        self.capabilities.require(Capability.HISTORY)
        session = self._sessions.get(session_id)
        if session is None or session.forked_from is None:
            return await anyio.to_thread.run_sync(self.dialect.history, session, session_id)
        with suppress(SessionNotFound):
            # A fork is stored with its first turn. Until then it shows its parent's history.
            return await anyio.to_thread.run_sync(self.dialect.history, None, session_id)
        shared = await self.history(session.forked_from.session_id)  # it is stored with its first turn
        ids = [turn.id for turn in shared]
        last = session.forked_from.last_turn_id
        return shared if last not in ids else shared[: ids.index(last) + 1]

    async def _known(self, session_id: str, options: SessionOptions) -> AgentSession:
        self._check()
        session = self._sessions.get(session_id)
        if session is None:
            stored = await anyio.to_thread.run_sync(self.dialect.find, session_id)
            # Another caller may have added the session during the lookup.
            session = AgentSession(session_id, options.cwd or stored, options, self._on_state)
            session = self._sessions.setdefault(session_id, session)
        session.directory = session.directory or options.cwd
        return session

    def _on_state(self, session: AgentSession) -> None:
        # A new session has no id before its agent names it.
        # An engine that is closed detaches from processes that run on: their state has not changed.
        if session.id and self._lost is None:
            super()._on_state(session)

    def deliver(self, event: Event) -> None:
        """Deliver an event to the listener of its session."""
        self._router.deliver(event)

    def name_session(self, session: AgentSession, session_id: str) -> None:
        """Give a session the name that its agent has for it."""
        self._sessions.pop(session.id, None)
        self._router.rename(session.id, session_id)
        session.id = session_id
        self._sessions[session_id] = session

    async def end_leftovers(self, session_id: str) -> None:
        self._check()
        if (session := self._sessions.get(session_id)) is not None:
            # Checked again under the lock, where a turn may have begun.
            self._refuse_if_running(session)
            async with session.lock:
                self._refuse_if_running(session)
                await self.end(session)

    async def unload(self, session_id: str) -> None:
        self.capabilities.require(Capability.MOVE)
        if (session := self._sessions.pop(session_id, None)) is not None:
            await self.end(session)

    # --- turns -------------------------------------------------------------------------------------------------------

    async def get_ready(self, session_id: str, options: SessionOptions, turn: TurnInput) -> None:
        session = await self._known(session_id, options)
        self._refuse_if_running(session)
        if self.dialect.ends_with_turn:
            return  # its process starts with the turn
        async with session.lock:
            await self._ready(session, options, turn)

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        session = await self._known(session_id, options)
        self._refuse_if_running(session)
        async with session.lock:
            await self._ready(session, options, turn)
            try:
                begun = await self._prompt(session, turn)
            except BaseException:
                if self.dialect.ends_with_turn and session.turn is None:
                    await self.end(session)  # it waits for a prompt that will not come
                raise
            session.is_new = False
        return Begun(session_id=session.id, turn_id=begun.id, notes=(*self.dialect.notes_on(turn), *begun.notes))

    async def _prompt(self, session: AgentSession, turn: TurnInput) -> AgentTurn:
        # Preparing takes seconds, in which the session can be adopted or closed.
        self._refuse_if_running(session)
        process = session.process
        if process is not None:
            # Before the first prompt: from here on, new processes belong to a turn.
            await anyio.to_thread.run_sync(process.note_baseline)
        # The process may have ended while this was waiting.
        if process is None or session.process is not process or session.is_ending:
            raise self._just_ended()
        assert session.conversation is not None
        try:
            return await session.conversation.prompt(turn)
        except HelmsmanError:
            self._check()  # the engine may have been closed
            raise

    async def steer(self, session_id: str, text: str) -> None:
        self._check()
        self.capabilities.require(Capability.STEER)
        session = self._sessions.get(session_id)
        turn, conversation = (None, None) if session is None else (session.turn, session.conversation)
        # An interrupted turn takes no more messages, which would begin another one.
        if session is None or turn is None or conversation is None or session.is_ending or turn.interrupted:
            raise no_turn_runs(session_id)
        await conversation.steer(turn, text)

    async def interrupt(self, session_id: str) -> None:
        self._check()
        session = self._sessions.get(session_id)
        if session is None or session.process is None or session.conversation is None:
            return
        turn, process, conversation = session.turn, session.process, session.conversation
        if turn is not None:
            # Set first: the end of the turn may be read before the agent answers.
            turn.interrupted = True
            with anyio.CancelScope(shield=True):
                await self._stop_turn(session, conversation, turn)
        # Also without a turn: an earlier one may have left commands.
        await anyio.to_thread.run_sync(process.end_started_by_turns)

    async def _stop_turn(self, session: AgentSession, conversation: Conversation, turn: AgentTurn) -> None:
        session.stop()
        with suppress(EngineLost):  # the end of the process is reported by its reader
            await conversation.stop_turn(turn)
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await turn.ended.wait()
        if not turn.is_told:  # it does not listen, for example while it waits to ask its model again
            await self.end(session)
            conversation.end_turn(turn)

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        self._check()
        session = self._sessions.get(question.session_id)
        if session is None or session.process is None or session.conversation is None:
            raise QuestionNotOpen.any_more(question.id)
        # The agent could not be told with the answer that the user aborts.
        if await session.conversation.answer(question, choices):
            await self.interrupt(session.id)

    # --- what earlier hubs have left running -------------------------------------------------------------------------

    async def follow_left(self, record: ProcessRecord) -> None:
        """Follow a process that an earlier hub has left, if it has left a turn in it; what that has done comes as events."""
        try:
            await self._follow_left(record)
        except HelmsmanError as error:
            log.info("%s of session %s is not reached: %s", self.dialect.title, record.session_id, error)

    async def _follow_left(self, record: ProcessRecord) -> None:
        is_running = any(await anyio.to_thread.run_sync(record.activity))
        place = Path(record.place)
        policy = SessionOptions(agent=self.dialect.agent, cwd=place)  # until adoption, everything is asked
        session = AgentSession(record.session_id, place, policy, self._on_state)
        session.launch, session.about = text(record.about.get("launch")), record.about
        session.confinement = optional_text(record.about.get("confinement"))
        session.cost = None  # how much of it belongs to this turn is not known
        notes = await anyio.to_thread.run_sync(record.notes)
        left = _Left(mapping(notes.get("turn")), is_running)
        session.enter(ProcessState.STARTING)
        await self.tasks.start(self._serve, session, self._owning(record), left)
        assert session.conversation is not None
        with anyio.move_on_after(CATCH_UP_SECONDS):
            await session.conversation.caught_up(is_running=is_running)
        # There is nothing to follow: the turn has ended, or was never sent.
        if session.left_turn is None or (session.turn is not None and not is_running):
            session.turn = None  # it never began; the next turn has another process
            self.tasks.start_soon(self.end, session)
            return
        self._sessions[session.id] = session
        if session.turn is not None and session.turn.interrupted:  # the hub that began the interrupt is gone
            self.tasks.start_soon(self.interrupt, session.id)

    async def running_sessions(self) -> tuple[str, ...]:
        found = self._sessions.values()
        return tuple(one.id for one in found if one.turn is not None or one.left_turn is not None)

    async def adopt(self, session_id: str, options: SessionOptions) -> Opened:
        self._check()
        session = self._sessions.get(session_id)
        if session is None or (session.turn is None and session.left_turn is None):
            raise self.dialect.not_found(session_id)
        session.options = options
        if session.process is not None and session.conversation is not None:
            # Questions that were read before are now decided by the client's options.
            await session.conversation.adopt(options)
        opened = self.dialect.opened(session, options)
        session.left_turn = None
        return opened

    # --- processes ---------------------------------------------------------------------------------------------------

    async def _ready(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> None:
        """Give a session a process that was started for these options. The caller holds the session's lock."""
        if session.is_ending:
            await session.gone.wait()  # a message sent now would be lost
        if session.process is not None and session.conversation is not None:
            session.used_at = anyio.current_time()
            # A running turn keeps its process; its options count for the next one.
            if session.turn is not None:
                return
            if not self.dialect.ends_with_turn and await self._suits(session, options, turn):
                try:
                    await session.conversation.set_up(options)
                # A session that is half set up might act without asking.
                except BaseException:
                    await self.end(session)
                    raise
                session.options = options
                return
            await self.end(session)
        await self._start(session, options, turn)

    async def _suits(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> bool:
        """Return whether the process of a session can continue under these options."""
        if self.config is None:  # the best guess without a launch configuration
            return self.dialect.fits(session, options, turn)
        make = partial(self.dialect.fingerprint, self.config.within(options), session, options, turn)
        return session.launch == await anyio.to_thread.run_sync(make)

    async def _start(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> None:
        """Start a process for a session. The caller holds the session's lock, or is the only one that knows the session.

        Raises:
            InvalidInput: It cannot do what the options request, or it would run files that the user has not trusted.
            EngineStartFailed: It does not come up.
        """
        self._check()
        config = require_config(self.config).within(options)
        if session.directory is None:
            raise InvalidInput(f"It is not known where session {session.id} worked. Name a working directory.")
        if not await anyio.to_thread.run_sync(session.directory.is_dir):
            raise InvalidInput(f"{session.directory} is no directory. Name a working directory that exists.")
        if self.dialect.trust.runs_repository_files and not options.trust_repository:
            raise InvalidInput(
                f"{self.dialect.title} may run files of this repository before it asks: Helmsman does not know it. If it "
                f"runs none, say so with `runs_repository_files = false` under [agents.{self.dialect.agent}]; otherwise a "
                "person decides whether the repository is trusted (`trust_repository`).",
                parameter="trust_repository",
            )
        with anyio.move_on_after(END_SECONDS):  # clearing up by the session's name would hit the next process
            await session.gone.wait()
        await self.dialect.check(config, options)
        is_new = not session.id
        # A process that an earlier hub left may still hold the session.
        if self._supervision is not None and not is_new:
            await anyio.to_thread.run_sync(end_left, self._state_dir, self.dialect.agent, session.id)
        launch = await self.dialect.launch(config, session, options, turn)
        # Before the start: the conversation reads the options.
        session.options = options
        session.launch, session.about = launch.fingerprint, launch.about
        session.confinement = self.dialect.confinement(options)
        opening: Opening = partial(open_child_agent, self.dialect.greeting, launch)
        if self._supervision is not None:
            opening = await self._supervised(launch, session)
        session.enter(ProcessState.STARTING)
        try:
            await self.tasks.start(self._serve, session, opening, None)
        except RuntimeError as error:
            if self._lost is None:
                raise
            raise self._lost.again() from error  # the task ended without a word: the engine is being closed
        assert session.conversation is not None
        try:
            await session.conversation.load(options, is_new=is_new)
        except BaseException:
            await self.end(session)
            raise
        # It ended while it was loading.
        if session.process is None:
            raise self._just_ended()
        session.enter(ProcessState.IDLE)

    def _just_ended(self) -> EngineLost:
        return EngineLost(f"{self.dialect.title} has just ended. Send the message again to start it.")

    async def _supervised(self, launch: Launch, session: AgentSession) -> Opening:
        assert self._supervision is not None
        record = await start_supervised_agent(
            self.dialect.greeting,
            launch,
            state_dir=self._state_dir,
            idle=self._engine_idle,
            owner=self._supervision.owner,
            about={
                "agent": self.dialect.agent,
                "engine": self._supervision.about,
                "version": self.dialect.version,
                "engine_id": self._supervision.engine_id,
                "session_id": session.id or None,
                "confinement": session.confinement,
            },
        )
        return self._owning(record)

    def _owning(self, record: ProcessRecord) -> Opening:
        epoch = 0 if self._supervision is None else self._supervision.owner.epoch
        return lambda _: open_supervised_agent(self.dialect.greeting, record, epoch=epoch)

    async def _serve(
        self, session: AgentSession, opening: Opening, left: _Left | None, *, task_status: TaskStatus[None]
    ) -> None:
        """From the start of a process to its end, or from where an earlier hub has left it."""
        session.scope, session.gone = anyio.CancelScope(), anyio.Event()
        loss: HelmsmanError | None = None
        process: AgentProcess | None = None
        try:
            with session.scope:
                async with background_tasks() as tasks, opening(tasks) as process:
                    session.process = process
                    conversation = session.conversation = self.dialect.converse(self, session, process)
                    session.used_at = anyio.current_time()
                    if left is not None and isinstance(process, AttachedAgent):
                        # The position before this owner sends anything: later calls compare with it.
                        self._positions_before[session.id] = process.input_position
                        await anyio.to_thread.run_sync(process.recall_baseline)
                        conversation.recall(left.turn, is_running=left.is_running)
                    task_status.started()
                    loss = await self._run(session, conversation, process)
                    # Expected ends are no losses.
                    if (
                        self.dialect.ends_with_turn
                        or session.state is ProcessState.ENDING
                        or process.is_taken_over
                        or self._lost is not None
                    ):
                        loss = None
                    self._report_gone(session, process, loss)
        # Shielded, so that other callers never wait for `gone` in vain.
        finally:
            with anyio.CancelScope(shield=True):
                await self._clear_up(session, process)

    async def _run(self, session: AgentSession, conversation: Conversation, process: AgentProcess) -> HelmsmanError:
        """Handle the output of a process until it ends, and return why it is gone."""
        try:
            await conversation.run()
        except HelmsmanError as error:
            await process.end(at_once=True)
            return error
        except Exception:  # one session's trouble must not end the others
            log.exception("%s of session %s is not understood", self.dialect.title, session.id)
            await process.end(at_once=True)
        return await process.end_of_output()

    def _report_gone(self, session: AgentSession, process: AgentProcess, loss: HelmsmanError | None) -> None:
        """Forget a process; tell its loss, if there is one to be told."""
        # Already reported, or replaced by another process.
        if session.process is not process:
            return
        assert session.conversation is not None
        session.process = None
        session.enter(ProcessState.STORED)
        if loss is not None and session.turn is not None and session.turn.interrupted:
            session.conversation.end_turn(session.turn)  # it was interrupted
            loss = None
        session.conversation.close()
        turn, session.turn = session.turn, None
        if turn is not None:
            turn.ended.set()
        if loss is not None and session.id:
            failure = Failure(code=loss.code, message=loss.message, retryable=True)
            session.conversation.deliver(EngineGone(session_id=session.id, failure=failure))

    async def _clear_up(self, session: AgentSession, process: AgentProcess | None) -> None:
        if process is None:
            session.enter(ProcessState.STORED)
        else:
            self._report_gone(session, process, None)
        # A supervised process that runs on still needs its files.
        is_left = process is not None and process.is_supervised and not process.has_ended
        if not is_left:
            await anyio.to_thread.run_sync(self.dialect.clear_up, self._state_dir, session)
        session.gone.set()

    async def end(self, session: AgentSession) -> None:
        """End the process of a session, with all it has started, and wait until it is gone."""
        process = session.process
        if process is None:
            await session.gone.wait()
            return
        is_running = session.turn is not None
        # From here on no work is given to it.
        session.enter(ProcessState.ENDING)
        with anyio.CancelScope(shield=True):
            await process.end(at_once=is_running)
            with anyio.move_on_after(END_SECONDS):
                await session.gone.wait()
            # It did not end in time: close the connection, which kills a child.
            session.scope.cancel()
            await session.gone.wait()

    async def end_idle(self) -> None:
        """End the processes of sessions in which nothing has run for long; they load again."""
        while True:
            await anyio.sleep(min(_LOOK_FOR_IDLE, self._idle))
            for session in list(self._sessions.values()):
                if self._is_idle(session):
                    async with session.lock:  # a turn that begins now waits, and has another process
                        # A turn may have begun while this waited for the lock.
                        if self._is_idle(session):
                            await self.end(session)

    def _is_idle(self, session: AgentSession) -> bool:
        return session.state is ProcessState.IDLE and anyio.current_time() - session.used_at > self._idle

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more work, and release every process; supervised ones continue their turns."""
        # Set first, so that no method starts new work.
        self._lost = engine_closed()
        async with anyio.create_task_group() as tasks:
            for session in self._sessions.values():
                if session.conversation is not None and session.process is not None:
                    tasks.start_soon(self._release, session, session.conversation, session.process)
        if self._supervision is None:  # else it outlives the hub
            self._router.engine_gone(Failure(code=self._lost.code, message=self._lost.message, retryable=True))
        self._closed.set()

    async def _release(self, session: AgentSession, conversation: Conversation, process: AgentProcess) -> None:
        turn = session.turn
        if self._supervision is None:
            if turn is not None:  # a cancelled turn is recorded as such, and its commands end
                turn.interrupted = True
                # Bounded: closing must not wait for an agent that retries its model.
                with suppress(HelmsmanError), anyio.move_on_after(CLOSE_SECONDS):
                    await conversation.stop_turn(turn)
                    await turn.ended.wait()
            await self.end(session)
        elif conversation.stopped:  # it is not for the next hub to find out that it does not ask
            if turn is not None:
                conversation.end_turn(turn)
                await anyio.to_thread.run_sync(process.kill)
            await self.end(session)
        elif turn is None and session.left_turn is None:
            await self.end(session)
        else:
            # Detach: the turn continues, and the next hub follows it.
            session.scope.cancel()
            await session.gone.wait()


@dataclass(frozen=True, slots=True)
class _Left:
    """State that an earlier hub has left in a process: its notes on the turn, and whether that still runs."""

    turn: Mapping[str, Any]
    is_running: bool


@asynccontextmanager
async def open_process_engine(
    dialect: AgentDialect,
    config: LaunchConfig | None,
    *,
    state_dir: Path,
    idle: float,
    supervision: Supervision | None = None,
    left: Sequence[ProcessRecord] = (),
) -> AsyncIterator[ProcessEngine]:
    """Open an engine for the length of the block; supervised, it outlives the hub. `left` are processes that run already."""
    async with background_tasks() as tasks:
        kind = dialect.engine_class or ProcessEngine
        engine = kind(tasks, dialect, config, state_dir=state_dir, idle=idle, supervision=supervision)
        tasks.start_soon(engine.end_idle)
        try:
            # All are followed at the same time: each may take seconds to catch up.
            async with anyio.create_task_group() as following:
                for record in left:
                    following.start_soon(engine.follow_left, record)
            yield engine
        finally:
            with anyio.CancelScope(shield=True):
                await engine.close()
