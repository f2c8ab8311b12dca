"""Session of an agent: its state, its events, and the verbs that act on it.

A `Session` is a view with verbs. The state comes from `SessionState`, the events from `Feed`. The verbs go to the service
that made the session, so the same rules hold for every caller.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import anyio

from helmsman.base.structs import Value
from helmsman.errors import AnswerInvalid, EngineLost, SessionBusy, SessionIdle, TaskNotOurs
from helmsman.model.answered_by import PROGRAM
from helmsman.model.events import (
    AgentMessage,
    ItemEnded,
    ItemStarted,
    MessageUnqueued,
    Notice,
    QuestionAsked,
    QuestionClosed,
    RemarksChanged,
    SessionFact,
    SettingsApplied,
    TurnEnded,
    TurnRequested,
    UserMessage,
)
from helmsman.model.inputs import turn_input
from helmsman.model.questions import BUDGET_ASKED, OWN_ASKER
from helmsman.model.request import TurnRequest

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from helmsman.agents.protocol import Engine
    from helmsman.approvals.deadline import Deadline
    from helmsman.base.clients import McpClient
    from helmsman.git.worktree import Worktree
    from helmsman.model.answered_by import Answered, AnsweredBy
    from helmsman.model.client_tools import ToolResult
    from helmsman.model.events import Event, Failure, Item, Source, ToolCalled, Usage
    from helmsman.model.options import PathLike, SessionOptions, TurnInput, TurnKind
    from helmsman.model.questions import Choice, Question
    from helmsman.sessions.feed import Feed
    from helmsman.sessions.state import QueuedMessage, SessionState, SessionStatus, StateView

Until = Literal["attention", "change", "end"]
Listener: TypeAlias = "Callable[[Session, Event], None]"
Listeners: TypeAlias = "Sequence[Listener]"
WhenBusy = Literal["error", "steer", "queue"]


OwnAnswer: TypeAlias = "Callable[[tuple[Choice, ...] | None], None]"
"""Takes the answer to a question that Helmsman itself asks; None is a refusal. What does not fit raises `AnswerInvalid`."""


Reply: TypeAlias = "Sequence[str] | str | Answered | None"


ToolRunner: TypeAlias = "Callable[[ToolCalled], Awaitable[ToolResult | None]]"
"""Runs a function of a program for an agent; None: that program has left. Does not raise; cancelled when the turn ends."""


class QuestionHandler(Protocol):
    """Handler that answers a question with one answer per part, or returns None to leave it to other clients. It is
    cancelled when one of them answers.

    A handler that knows who gave the answers returns `Answered`.
    """

    def __call__(self, session: Session, question: Question, /) -> Awaitable[Reply]: ...


class QueuedTurn(Value, frozen=True):
    """Queued message (`Session.queue`) that this process runs, and its service."""

    request: TurnRequest
    run: Callable[[Session, str, QueuedTurn], Awaitable[Session]]
    """Runs it in a session, as the task with this id."""
    is_away: Callable[[], bool] = lambda: False
    """Return whether no client is connected that provides an environment to run it with."""


class Verbs(Protocol):
    """Verbs of the service that began the turn of a session. Its rules, limits and deadlines apply."""

    async def say(
        self, session_id: str, message: str, *, images: Sequence[PathLike] = (), when_busy: WhenBusy = "error"
    ) -> Session: ...

    async def steer(self, session_id: str, text: str) -> None: ...

    async def interrupt(self, session_id: str) -> Session: ...

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session: ...

    def on_event(self, session: Session, event: Event) -> None:
        """Handle an event of an engine, for a session with a turn that this service began."""
        ...

    async def give_answer(
        self, session: Session, question_id: str, answers: Sequence[str], by: AnsweredBy, *, roots: Sequence[Path]
    ) -> None:
        """Answer a question of such a turn, by the rules of who began it. `roots`: the allowed ones of who answers."""
        ...


class Session:
    """One session of an agent, under the id that the agent gave it."""

    def __init__(
        self,
        state: SessionState,
        feed: Feed,
        verbs: Verbs,
        listeners: Listeners | None = (),
    ) -> None:
        self._state = state
        self.feed: Final = feed
        self._engine: Engine | None = None
        self._queued_turns: dict[str, QueuedTurn] = {}
        self._away: frozenset[str] = frozenset()
        """Waiting messages that no client of this hub can run; set in copies of a session."""
        self._begun = anyio.Event()
        # Set while no turn is beginning.
        self._begun.set()
        self.catching_up: Final = anyio.Lock()
        """Held while its state is compared with the store."""
        self._seen_version: object = None
        self._on_question: QuestionHandler | None = None
        self._tools: dict[str, ToolRunner] = {}
        self._tools_offered = anyio.Event()
        self._deadlines: dict[str, Deadline] = {}
        self._own_question: tuple[str, OwnAnswer] | None = None
        self._is_pausing = False
        self._is_stopping = False
        self._forms: list[str] = []
        """Forms of MCP clients that show open questions now: one entry per form and question."""
        self._verbs = verbs
        self._listeners = listeners
        self._untold: list[Event] = []
        self._log: Listener | None = None
        """Listener that already received the `_untold` events, for a session that its other listeners do not know."""
        self._replayed: list[Event] = []
        """Events of the last turn from the log, until an agent sends the first event."""
        self._may_repeat = Counter[object]()
        self._logged_source: Source | None = None
        """Newest line of a supervised agent that had its events in the log when the log was read."""
        self._lacks_history = False
        self._turn_cursor = 0
        self._is_copy = False
        self._elsewhere: str | None = None
        self._turn_began_at: float | None = None
        self._reserved_for: str | None = None
        self._watchers = 0
        self._on_watched: Callable[[], None] = lambda: None
        self._shown_until = 0.0

    @contextmanager
    def reserved(self, purpose: str) -> Iterator[None]:
        """Let no turn begin for the length of the block.

        Raises:
            SessionBusy: It is reserved already.
        """
        self.refuse_reserved()
        self._reserved_for = purpose
        try:
            yield
        finally:
            self._reserved_for = None

    def refuse_reserved(self) -> None:
        """Refuse a turn while the session is reserved.

        Raises:
            SessionBusy: It is.
        """
        if self._reserved_for is not None:
            raise SessionBusy(f"Session {self.id} is being {self._reserved_for}. Try again when that is done.")

    def is_beginning(self) -> None:
        """Record that an engine is about to begin a turn.

        Callers that waited for a turn that never began wait for this one.
        """
        before, self._begun = self._begun, anyio.Event()
        before.set()

    async def until_begun(self) -> None:
        """Wait until the turn that was asked for has begun, or failed to."""
        while not self._begun.is_set():
            await self._begun.wait()

    def warn(self, notes: Iterable[str]) -> None:
        """Publish warnings of the agent to all readers of the session."""
        for note in notes:
            self.apply(Notice(session_id=self.id, kind="warning", message=note))

    def offer(self, tools: Mapping[str, ToolRunner]) -> None:
        """Offer functions of a connected program to the agent."""
        self._tools |= tools
        self._tools_offered.set()
        self._tools_offered = anyio.Event()

    def withdraw(self, *names: str) -> None:
        """Remove functions that a program has offered."""
        for name in names:
            self._tools.pop(name, None)

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.status}>"

    # --- facts and resources -----------------------------------------------------------------------------------------
    # Properties are read-only. Facts are part of the state, and change by an event (`apply`). Methods with a verb for a name
    # attach and detach what belongs to this process: engine, service, handlers, clocks.

    @property
    def options(self) -> SessionOptions:
        """Options of the running turn and the next one."""
        return self._state.options

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks of Helmsman and the agent for the caller."""
        return self._state.notes

    @property
    def worktree(self) -> Worktree | None:
        """Git worktree of the session."""
        return self._state.worktree

    @property
    def opened_by(self) -> McpClient | None:
        """MCP client that owns it. None: it belongs to the user."""
        return self._state.opened_by

    @property
    def task_ids(self) -> Sequence[str]:
        """Its tasks, oldest first."""
        return self._state.task_ids

    @property
    def queue(self) -> Sequence[QueuedMessage]:
        """Messages to send when the turn has ended."""
        return self._state.queue

    @property
    def elsewhere(self) -> str | None:
        """Sentence that names another process that runs the turn. The session is read-only here."""
        return self._elsewhere

    @property
    def is_copy(self) -> bool:
        """Return whether the original is in the hub."""
        return self._is_copy

    @property
    def engine(self) -> Engine | None:
        return self._engine

    @property
    def verbs(self) -> Verbs:
        """Service that began its current (or last) turn."""
        return self._verbs

    @property
    def begun(self) -> anyio.Event:
        """Set once the engine has begun the requested turn, or has failed to."""
        return self._begun

    @property
    def seen_version(self) -> object:
        """Version of the store up to which no other process has changed the session."""
        return self._seen_version

    @property
    def lacks_history(self) -> bool:
        """Return whether the agent's own program ran turns that are not in the log (`HistoryImported`)."""
        return self._lacks_history

    @property
    def on_question(self) -> QuestionHandler | None:
        return self._on_question

    @property
    def tools(self) -> Mapping[str, ToolRunner]:
        """Functions that programs offer, by name (`offer`)."""
        return self._tools

    @property
    def tools_offered(self) -> anyio.Event:
        """Set at the next `offer`."""
        return self._tools_offered

    @property
    def deadlines(self) -> Mapping[str, Deadline]:
        """Deadlines of the open questions, by id."""
        return self._deadlines

    @property
    def own_question(self) -> tuple[str, OwnAnswer] | None:
        """Question that Helmsman asks before the session receives the end of its turn, and the handler of its answer."""
        return self._own_question

    @property
    def is_pausing(self) -> bool:
        """Return whether Helmsman is stopping the turn in order to ask whether the work continues."""
        return self._is_pausing

    @property
    def is_stopping(self) -> bool:
        """Return whether Helmsman's own question is refused because a client stops the turn."""
        return self._is_stopping

    @property
    def turn_began_at(self) -> float | None:
        """Time at which the turn was requested, by the monotonic clock."""
        return self._turn_began_at

    def remark(self, *remarks: str) -> None:
        """Add remarks for the caller."""
        if remarks:
            self.apply(RemarksChanged(session_id=self.id, remarks=(*self.notes, *remarks)))

    def request(self, turn: TurnInput) -> TurnRequest:
        """Return a turn with the options and limits of the session, as a request."""
        return TurnRequest(turn=turn, options=self.options, limits=self._state.limits)

    def continuation(self, text: str, kind: TurnKind | None = None) -> TurnInput:
        """Return a turn that continues the work of the last one: a plan goes on as a plan, and the output schema stays."""
        if kind is None and self._state.turn_kind == "plan":
            kind = "plan"
        return turn_input(text, output_schema=self._state.output_schema, kind=kind)

    def attach_queued(self, task_id: str, queued: QueuedTurn) -> None:
        """Let this process run a message that waits."""
        self._queued_turns[task_id] = queued

    def queued_turn(self, task_id: str) -> QueuedTurn | None:
        """Return how this process runs a message that waits; None if it cannot."""
        return self._queued_turns.get(task_id)

    @property
    def has_queued_turns(self) -> bool:
        """Return whether messages are queued that this process runs."""
        return bool(self._queued_turns)

    def is_away(self, queued: QueuedMessage) -> bool:
        """Return whether no client is connected that can run a message."""
        if self._is_copy:
            return queued.task_id in self._away
        turn = self._queued_turns.get(queued.task_id)
        return turn is None or turn.is_away()

    def runs_elsewhere(self, description: str) -> None:
        """Record that another process runs its turn."""
        self._elsewhere = description

    def become_copy(
        self,
        *,
        elsewhere: str | None = None,
        away: Iterable[str] = (),
    ) -> None:
        """Record that the original is in the hub, and what the hub reports of its turn and its queue."""
        self._is_copy, self._elsewhere = True, elsewhere
        self._away = frozenset(away)

    def attach_to(self, engine: Engine) -> None:
        """Use an engine, which has it loaded."""
        self._engine, self._elsewhere = engine, None

    def detach(self) -> None:
        """Use no engine until the next turn."""
        self._engine = None

    def serve_by(self, verbs: Verbs) -> None:
        """Pass verbs and events to the service that begins, or follows, its turn."""
        self._verbs = verbs

    def runs_here(self) -> None:
        """Record that this process runs its turn, and that nothing stops it yet."""
        self._elsewhere, self._is_pausing = None, False

    def mark_seen(self, version: object) -> None:
        """Record that other processes had changed nothing in it at this version of the store."""
        self._seen_version = version

    def mark_history(self, *, lacks: bool) -> None:
        """Record whether its log lacks turns that its agent's own program ran."""
        self._lacks_history = lacks

    def handle_questions(self, handler: QuestionHandler | None) -> None:
        """Ask this handler from now on. None keeps the present one."""
        self._on_question = handler or self._on_question

    def pause(self, *, is_pausing: bool) -> None:
        """Record whether Helmsman is stopping its turn in order to ask whether the work continues."""
        self._is_pausing = is_pausing

    def ask_own(self, question_id: str, answered: OwnAnswer) -> None:
        """Expect the answer to a question that Helmsman asks."""
        self._own_question = question_id, answered

    def drop_own_question(self) -> None:
        """Expect no answer to a question of Helmsman."""
        self._own_question = None

    def set_deadline(self, question_id: str, deadline: Deadline | None) -> None:
        """Set how long a question may still be answered. None: it is closed."""
        if deadline is not None:
            self._deadlines[question_id] = deadline
        else:
            self._deadlines.pop(question_id, None)

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> StateView:
        """State folded from the events. Only `apply` changes it."""
        return self._state

    @property
    def id(self) -> str:
        return self.state.session_id

    @property
    def status(self) -> SessionStatus:
        return self.state.status

    @property
    def result(self) -> str | None:
        """Final message of the last turn, once it has completed."""
        return self.state.result

    @property
    def output(self) -> Any:
        """Result as an object, if the turn had an output schema and the result is JSON."""
        if self._state.output_schema is None or self.result is None:
            return None
        try:
            return json.loads(self.result)
        except (ValueError, RecursionError):
            return None

    @property
    def error(self) -> Failure | None:
        """Why the last turn failed, if it did."""
        return self.state.error

    @property
    def usage(self) -> Usage:
        """Tokens spent over all turns."""
        return self.state.usage

    @property
    def items(self) -> list[Item]:
        """Items of the current or last turn."""
        return self.state.items

    @property
    def questions(self) -> list[Question]:
        """Open questions, oldest first."""
        return list(self.state.questions.values())

    @property
    def waiting(self) -> tuple[str | None, datetime | None]:
        """Reason why its task waits (`quota`, `budget` or None), and the time at which it resumes."""
        own = (question for question in self._state.questions.values() if question.asker == OWN_ASKER)
        if any(prompt.key == BUDGET_ASKED for question in own for prompt in question.prompts):
            return "budget", None
        times = [queued.not_before for queued in self._state.queue if queued.not_before is not None]
        return ("quota", min(times)) if times else (None, None)

    @property
    def resumes_at(self) -> datetime | None:
        """Time at which the session resumes after a usage limit."""
        return self.waiting[1]

    @property
    def task_id(self) -> str | None:
        """Id of the newest task."""
        return self._state.task_ids[-1] if self._state.task_ids else None

    @property
    def turn_count(self) -> int:
        """Turns that Helmsman has run in it."""
        return self.state.turn_count

    @property
    def turn_seconds(self) -> float | None:
        """Seconds since the current (or last) turn was requested."""
        return None if self._turn_began_at is None else time.monotonic() - self._turn_began_at

    @property
    def directory(self) -> str | None:
        return self.state.directory

    @property
    def model(self) -> str | None:
        return self.state.model

    # --- what happens ------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take in an event: the one way in which a session changes."""
        # The agent knows only that it was interrupted, not the limit that did it.
        if isinstance(event, TurnEnded) and event.outcome == "interrupted" and self.state.end_as is not None:
            event = event.changed(outcome="failed", failure=self.state.end_as)
        if isinstance(event, SettingsApplied) and self._listeners is not None and event.session_id != self.id:
            event = event.changed(session_id=self.id)  # an id never changes once a listener knows it
        if isinstance(event, TurnRequested):
            # A new turn repeats nothing of the one before.
            self._replayed.clear()
            self._may_repeat.clear()
            self._turn_cursor = self.feed.cursor
            self._turn_began_at = time.monotonic()
        event.with_time(event.at or datetime.now(UTC))
        self._state.apply(event)
        if isinstance(event, TurnRequested | MessageUnqueued):
            self._queued_turns.pop(event.task_id or "", None)
        self.feed.publish(event)
        if self._listeners is None:
            # No listener knows the session yet. `introduce` delivers these, with the id that is final by then.
            self._untold.append(event)
            if self._log is not None:
                self._log(self, event)
        else:
            self._notify(self._listeners, event)

    def replay(self, events: Sequence[Event], cursor: int, source: Source | None = None) -> None:
        """Fold events of the log, the last of which has the number `cursor`. Listeners heard them when they happened.

        The log has the lines of a supervised agent up to `source`. A question that is open is left out: the agent asks it
        again. Events of a running turn may be repeated by its agent as well (`is_repeated`).
        """
        self._logged_source = source or self._logged_source
        self.feed.start_at(cursor - len(events))
        closed = {event.question_id for event in events if isinstance(event, QuestionClosed)}
        for event in events:
            if isinstance(event, TurnRequested):
                self._turn_cursor = self.feed.cursor
                # The monotonic clock of another process means nothing here, so count back from now.
                ago = 0.0 if event.at is None else (datetime.now(UTC) - event.at).total_seconds()
                self._turn_began_at = time.monotonic() - max(0.0, ago)
                self._replayed.clear()
            self.feed.publish(event)
            if isinstance(event, QuestionAsked) and event.question.id not in closed:
                self._state.remember_asked(event)
            else:
                self._state.apply(event)
            if not isinstance(event, QuestionAsked):
                self._replayed.append(event)

    def is_repeated(self, event: Event) -> bool:
        """Return whether the log has this event of an agent already, after its hub was replaced.

        The output of a supervised agent is read again: the log says up to which line it has it. The end of a turn may be
        deferred until a user has answered, so it counts as logged only with the turn ended. An agent on a socket repeats the
        running turn in other words: those events are compared.
        """
        if event.source is not None and (logged := self._logged_source) is not None:
            is_missing_end = isinstance(event, TurnEnded) and event.agent_id is None and self.state.is_running
            is_read = event.source.process == logged.process and event.source.offset <= logged.offset
            return is_read and not is_missing_end
        if self._replayed:
            self._may_repeat = Counter(map(repeat_key, self._replayed))
            self._replayed.clear()
        if not self._may_repeat or self._may_repeat[key := repeat_key(event)] == 0:
            return False
        self._may_repeat[key] -= 1
        return True

    def fold(self, event: Event) -> None:
        """Change the state by something that is not part of the log: a sum, or what another process is known to do."""
        self._state.apply(event)
        self.feed.wake()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take over the state of the original, in a copy."""
        self._state.restore(snapshot)

    def began(self, at: float | None, cursor: int) -> None:
        """Set the start time and the cursor of the turn, in a copy."""
        self._turn_began_at, self._turn_cursor = at, cursor

    def start_log(self, log: Listener) -> None:
        """Log what has happened, and what happens, before the session has other listeners."""
        self._log = log
        for event in self._untold:
            log(self, event)

    def introduce(self, listeners: Listeners) -> None:
        """Set the listeners, and give them the events from the time before they were to know of the session."""
        self._listeners = listeners
        self.feed.rename(self.id)
        untold, self._untold = self._untold, []
        others = [listener for listener in listeners if listener != self._log]
        for event in untold:
            self._notify(others, event if event.session_id == self.id else event.changed(session_id=self.id))

    def _notify(self, listeners: Listeners, event: Event) -> None:
        for listener in tuple(listeners):  # a listener may remove itself
            listener(self, event)
        event.forget_raw()

    @property
    def goes_on_alone(self) -> bool:
        """Return whether the turn continues when this process ends."""
        return self._is_copy or (self._engine is not None and self._engine.id is not None)

    def loaded_in(self) -> Engine:
        """Return the engine that has loaded the session.

        Raises:
            EngineLost: No engine has.
        """
        if self._engine is None or self._engine.lost is not None:
            raise EngineLost(f"No engine runs session {self.id}. Send it a message to start one.")
        return self._engine

    def running_in(self) -> Engine:
        """Return the engine that is running a turn of this session.

        Raises:
            SessionIdle: No turn is running.
            TaskNotOurs: Only another process can reach the turn.
            EngineLost: Its engine is gone.
        """
        if not self.state.is_running:
            raise SessionIdle(f"No turn is running in session {self.id}. Send it as a new message instead.")
        self.require_here()
        return self.loaded_in()

    def require_here(self) -> None:
        """Make sure that a turn that runs can be reached from here.

        Raises:
            TaskNotOurs: Only another process can.
        """
        if self.state.is_running and self._elsewhere is not None:
            raise TaskNotOurs(self._elsewhere)

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        """Send the answer to the asker: the engine, or Helmsman itself. None refuses."""
        if self._own_question is not None and self._own_question[0] == question.id:
            self._answer_own(choices)
        else:
            await self.loaded_in().answer(question, choices)

    def stop_asking(self) -> None:
        """Refuse the question that Helmsman itself asks, or is about to ask."""
        self._is_pausing = False
        if self._own_question is not None:
            self._is_stopping = True
            try:
                self._answer_own(None)
            finally:
                self._is_stopping = False

    def _answer_own(self, choices: tuple[Choice, ...] | None) -> None:
        asked, self._own_question = self._own_question, None  # the first answer counts
        assert asked is not None
        try:
            asked[1](choices)
        # An answer that does not fit leaves the question open.
        except AnswerInvalid:
            self._own_question = asked
            raise

    @asynccontextmanager
    async def on_screen(self, question: Question, is_visible: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
        """Pause the deadline of a question while it is shown to a user, for the length of the block."""
        deadline = self._deadlines.get(question.id)
        if deadline is None:
            # The question may be closed by now.
            yield
            return
        async with deadline.shown(is_visible):
            yield

    def has_form(self, question_id: str) -> bool:
        """Return whether a person has the question before them in a form of an MCP client."""
        return question_id in self._forms

    def open_form(self, question_id: str) -> Callable[[], None]:
        """Note that an MCP client shows the question in a form, until the returned function is called."""
        self._forms.append(question_id)
        self.feed.wake()
        is_open = True

        def close() -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self._forms.remove(question_id)
                self.feed.wake()

        return close

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Mark the session as watched for the length of the block: a client receives the end of its turn."""
        self._watchers += 1
        self._on_watched()
        try:
            yield
        finally:
            self._watchers -= 1
            self._on_watched()

    def attach_watched(self, listener: Callable[[], None]) -> None:
        """Call a listener when a client begins or ceases to watch the session."""
        self._on_watched = listener

    def shown_for(self, seconds: float) -> None:
        """Mark the session as shown on a screen for this many seconds from now. 0 ends that."""
        self._shown_until = time.monotonic() + seconds

    @property
    def is_watched(self) -> bool:
        """Return whether a client would show the end of its turn."""
        return self._watchers > 0 or time.monotonic() < self._shown_until

    @property
    def turn_cursor(self) -> int:
        """Cursor at which the current (or last) turn began."""
        return self._turn_cursor

    async def events(self, *, since: int = 0) -> AsyncGenerator[Event]:
        """Yield the events of this session, from its first stored event (or from a cursor) until the running turn ends.

        Text still being written comes as `ItemDelta`, the first with the whole text so far. Without a running turn the
        generator ends after the past events.
        """
        with self.watched(), self.feed.read(since=since) as reader:
            for written in self.state.being_written:
                reader.put(written, len(written.text))
            while reader.pending() or self.state.is_running:
                event = await reader.next()
                if event is None:
                    return
                if not isinstance(event, SessionFact):
                    yield event
                # Another turn may have begun right after it.
                if isinstance(event, TurnEnded) and not reader.pending() and not self.state.is_running:
                    return

    async def wait(self, *, until: Until = "attention", timeout: float | None = None) -> bool:
        """Wait until the turn ends or a question is asked (`attention`), anything changes, or the turn ends (`end`).

        Return whether that has happened. False means that the timeout passed, or that this Helmsman was closed while the
        turn continues in an engine that outlives it.
        """
        with anyio.move_on_after(timeout), self.watched():
            if until == "change":
                if self.state.is_running:
                    await self.feed.changed()
                return not self.feed.closed
            while self.state.is_running and not (until == "attention" and self.state.questions):
                if self.feed.closed:
                    return False
                await self.feed.changed()
            return True
        return False

    # --- verbs -------------------------------------------------------------------------------------------------------

    async def say(self, message: str, *, images: Sequence[PathLike] = (), when_busy: WhenBusy = "error") -> Session:
        """Send the next message: a new turn, or what `when_busy` says while one is running."""
        return await self._verbs.say(self.id, message, images=images, when_busy=when_busy)

    async def steer(self, text: str) -> None:
        """Put a message into the running turn."""
        await self._verbs.steer(self.id, text)

    async def interrupt(self) -> None:
        """Stop the running turn and all it left running; nothing to do when idle."""
        await self._verbs.interrupt(self.id)

    async def respond(self, question_id: str, *answers: str, by: AnsweredBy = PROGRAM) -> None:
        """Answer a question: one answer for each of its parts. `by` is recorded as their author."""
        await self._verbs.respond(self.id, question_id, answers, by=by)


def repeat_key(event: Event) -> object:
    """Return the key that identifies an event when an agent repeats it. A Codex gives messages other ids then."""
    if isinstance(event, ItemStarted | ItemEnded) and isinstance(event.item, AgentMessage | UserMessage):
        return type(event), type(event.item), event.item.text
    return repr(event)  # encoded, equal events may differ in the defaults that are left out


async def first_change(sessions: Sequence[Session]) -> None:
    """Wait until something happens in one of these sessions.

    Changes count from the call on, not from when the tasks run: the caller has just looked at the sessions.
    """
    changes = [session.feed.next_change() for session in sessions]

    async def wait(change: anyio.Event) -> None:
        await change.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for change in changes:
            tasks.start_soon(wait, change)
