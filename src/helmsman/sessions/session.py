"""A session as a caller holds it: what is true of it, what happens in it, and the verbs that act on it.

A `Session` is a view with verbs. What is true comes from `SessionState`, what happened from `Feed`; the verbs go to the
service that made it, so that the same rules hold whichever way a call comes.
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
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio

from helmsman.base.structs import Value
from helmsman.errors import AnswerInvalid, EngineLost, SessionBusy, SessionIdle, TaskNotOurs
from helmsman.model.answered_by import PROGRAM
from helmsman.model.codec import encode
from helmsman.model.events import (
    AgentMessage,
    ItemEnded,
    ItemStarted,
    Notice,
    QuestionAsked,
    QuestionClosed,
    SettingsApplied,
    TurnEnded,
    TurnRequested,
    UserMessage,
)
from helmsman.model.options import SessionOptions, TurnInput, TurnLimits
from helmsman.model.questions import BUDGET_ASKED

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
    from helmsman.approvals.policy import Rule
    from helmsman.base.clients import McpClient
    from helmsman.base.pinned_directory import DirectoryIdentity
    from helmsman.model.answered_by import Answered, AnsweredBy
    from helmsman.model.client_tools import ToolResult
    from helmsman.model.events import Event, Failure, Item, ToolCalled, Usage
    from helmsman.model.inputs import PathLike
    from helmsman.model.questions import Choice, Question
    from helmsman.sessions.feed import Feed
    from helmsman.sessions.state import SessionState, SessionStatus, StateView
    from helmsman.worktrees import Worktree

Until = Literal["attention", "change", "end"]
Listeners: TypeAlias = "Sequence[Callable[[Session, Event], None]]"
WhenBusy = Literal["error", "steer", "queue"]


OwnAnswer: TypeAlias = "Callable[[tuple[Choice, ...] | None], None]"
"""Takes the answer to a question that Helmsman itself asks; None is a refusal. What does not fit raises `AnswerInvalid`."""


Reply: TypeAlias = "Sequence[str] | str | Answered | None"


ToolRunner: TypeAlias = "Callable[[ToolCalled], Awaitable[ToolResult | None]]"
"""Runs a function of a program for an agent; None: that program has left. Does not raise; cancelled when the turn ends."""


class QuestionHandler(Protocol):
    """Answers a question: one answer a part, or None to leave it to somebody else. Cancelled when that happens.

    One that knows who gave the answers says so with `Answered`.
    """

    def __call__(self, session: Session, question: Question, /) -> Awaitable[Reply]: ...


class QueuedTurn(Value, frozen=True):
    """A message that waits for its turn, the task it is, the options it was sent with, and how it is run."""

    turn: TurnInput
    task_id: str
    options: SessionOptions
    run: Callable[[Session, QueuedTurn], Awaitable[Session]]
    is_away: Callable[[], bool] = lambda: False
    """Whether nobody is connected with whose environment it could be run."""
    not_before: datetime | None = None
    """When it may begin, where that is not at once."""

    @property
    def is_early(self) -> bool:
        return self.not_before is not None and datetime.now(UTC) < self.not_before


class Verbs(Protocol):
    """What a session asks of the service by which its turn was begun: that one's rules, limits and deadlines hold."""

    async def say(
        self, session_id: str, message: str, *, images: Sequence[PathLike] = (), when_busy: WhenBusy = "error"
    ) -> Session: ...

    async def steer(self, session_id: str, text: str) -> None: ...

    async def interrupt(self, session_id: str) -> Session: ...

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session: ...

    def on_event(self, session: Session, event: Event) -> None:
        """What an engine tells of a session whose turn this service began."""
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
        options: SessionOptions,
        listeners: Listeners | None = (),
    ) -> None:
        self._state = state
        self.feed = feed
        self.options = options
        self.place: DirectoryIdentity | None = None
        """The directory that its last turn worked in, for comparing."""
        self.engine: Engine | None = None
        self.queue: list[QueuedTurn] = []
        """What is to be sent when the turn has ended. A program's copy has what the hub last said of it."""
        self.begun = anyio.Event()
        """Set once the engine has begun the turn that was asked for, or has failed to."""
        self.begun.set()
        self.catching_up = anyio.Lock()
        """Held while somebody looks at what others have done with it."""
        self.seen_version: object = None
        """The state of the registry in which others had done nothing with it."""
        self.on_question: QuestionHandler | None = None
        self.tools: dict[str, ToolRunner] = {}
        """The functions that programs offer to it, by their names (`offer`)."""
        self.tools_offered = anyio.Event()
        self.limits = TurnLimits()
        self.end_as: Failure | None = None
        """Why the turn is being stopped, where that is a failure and not somebody's wish."""
        self.deadlines: dict[str, Deadline] = {}
        """How long the open questions may still be answered, by their ids. The desk keeps them."""
        self.asked_at: dict[str, datetime] = {}
        """When the open questions were first asked, of this hub or one before it."""
        self.own_question: tuple[str, OwnAnswer] | None = None
        """The id of the question that Helmsman itself asks before the session hears of the end of its turn, and who takes
        the answer.
        """
        self.is_pausing = False
        """Its turn is being stopped for Helmsman itself to ask whether it goes on."""
        self.is_stopping = False
        """What Helmsman itself asks is refused because somebody stops the turn, and not for want of an answer."""
        self.planning = False
        """The turn is one that plans: when it has ended, its plan is put to the question (`helmsman.capabilities.plans`)."""
        self.is_message = True
        """Whether its turn answers a message, so that another message can go on with it; a compaction does not."""
        self.goal: str | None = None
        """What the agent works towards by itself, turn after turn, where somebody here has asked for that."""
        self.rules: tuple[Rule, ...] = ()
        self.worktree: Worktree | None = None
        self.handed_over_from: str | None = None
        """The session of another agent that this one goes on with."""
        self.opened_by: McpClient | None = None
        """The MCP client that opened it, or was handed it; None where a person or a program of the user did."""
        self._forms: list[str] = []
        """The open questions that a person has before them in a form of an MCP client, once for each form."""
        self.task_ids: list[str] = []
        self.output_schema: Mapping[str, Any] | None = None
        self.notes: tuple[str, ...] = ()
        self.created_at = self.changed_at = datetime.now(UTC)
        """When this Helmsman first saw the session, and when something last happened in it."""
        self.verbs = verbs
        """The service by which its current (or last) turn was begun."""
        self._listeners = listeners
        self._untold: list[Event] = []
        self._replayed: list[Event] = []
        """What the log holds of the last turn, until an agent says anything."""
        self._may_repeat = Counter[object]()
        self.lacks_history = False
        """Its agent's own program ran turns that are not in its log (`HistoryImported`)."""
        self._turn_cursor = 0
        self.waited_for: tuple[str | None, datetime | None] = None, None
        """What `waiting` was of the original, of a copy."""
        self.is_copy = False
        """Of a session that the hub has."""
        self.elsewhere: str | None = None
        """Who runs its turn, in a sentence, where that is another process: here it can only be looked at."""
        self.turn_began_at: float | None = None
        """When the turn was asked for, by the monotonic clock."""
        self.reserved_for: str | None = None
        """What is done with it while no turn may begin, in words."""
        self._watchers = 0
        self._shown_until = 0.0

    @contextmanager
    def reserved(self, purpose: str) -> Iterator[None]:
        """Let no turn begin for the length of the block.

        Raises:
            SessionBusy: It is reserved already.
        """
        self.refuse_reserved()
        self.reserved_for = purpose
        try:
            yield
        finally:
            self.reserved_for = None

    def refuse_reserved(self) -> None:
        """Refuse a turn while the session is reserved.

        Raises:
            SessionBusy: It is.
        """
        if self.reserved_for is not None:
            raise SessionBusy(f"Session {self.id} is being {self.reserved_for}. Try again when that is done.")

    def is_beginning(self) -> None:
        """An engine is about to begin a turn; who waited for one that never came to be waits for this."""
        before, self.begun = self.begun, anyio.Event()
        before.set()

    async def until_begun(self) -> None:
        """Wait until the turn that was asked for has begun, or failed to."""
        while not self.begun.is_set():
            await self.begun.wait()

    def warn(self, notes: Iterable[str]) -> None:
        """Tell whoever looks at the session of what its agent had to say."""
        for note in notes:
            self.apply(Notice(session_id=self.id, kind="warning", message=note))

    def offer(self, tools: Mapping[str, ToolRunner]) -> None:
        """A program is there that runs these for the agent."""
        self.tools |= tools
        self.tools_offered.set()
        self.tools_offered = anyio.Event()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.status}>"

    # --- what is true ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> StateView:
        """What its events have come to. `apply` alone changes it."""
        return self._state

    @property
    def id(self) -> str:
        return self.state.session_id

    @property
    def status(self) -> SessionStatus:
        return self.state.status

    @property
    def result(self) -> str | None:
        """The final message of the last turn, once it has completed."""
        return self.state.result

    @property
    def output(self) -> Any:
        """The result as an object, where the turn had an output schema and the result is JSON."""
        if self.output_schema is None or self.result is None:
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
        """What was done in the current or last turn."""
        return self.state.items

    @property
    def questions(self) -> list[Question]:
        """What waits for an answer, oldest first."""
        return list(self.state.questions.values())

    @property
    def waiting(self) -> tuple[str | None, datetime | None]:
        """What its task waits for before it goes on (`quota`, `budget` or nothing), and until when."""
        if self.is_copy:
            return self.waited_for
        asked = self.state.questions.get(self.own_question[0]) if self.own_question is not None else None
        if asked is not None and asked.prompts[0].key == BUDGET_ASKED:
            return "budget", None
        times = [queued.not_before for queued in self.queue if queued.not_before is not None]
        return ("quota", min(times)) if times else (None, None)

    @property
    def resumes_at(self) -> datetime | None:
        """When it goes on by itself with what a usage limit has ended."""
        return self.waiting[1]

    @property
    def task_id(self) -> str | None:
        """The newest of its tasks."""
        return self.task_ids[-1] if self.task_ids else None

    @property
    def turn_count(self) -> int:
        """Turns that Helmsman has run in it."""
        return self.state.turn_count

    @property
    def turn_seconds(self) -> float | None:
        """How long ago the current (or last) turn was asked for."""
        return None if self.turn_began_at is None else time.monotonic() - self.turn_began_at

    @property
    def directory(self) -> str | None:
        return self.state.directory

    @property
    def model(self) -> str | None:
        return self.state.model

    # --- what happens ------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take in an event: the one way in which a session changes."""
        if self.end_as is not None and isinstance(event, TurnEnded) and event.outcome == "interrupted":
            event = event.changed(outcome="failed", failure=self.end_as)
        if isinstance(event, SettingsApplied) and self._listeners is not None and event.session_id != self.id:
            event = event.changed(session_id=self.id)  # an id is for good once somebody knows it
        if isinstance(event, TurnRequested):
            self._replayed.clear()
            self._may_repeat.clear()
            self._turn_cursor = self.feed.cursor
            self.turn_began_at = time.monotonic()
        self.changed_at = datetime.now(UTC)
        self._state.apply(event)
        self.feed.publish(event)
        if self._listeners is None:
            self._untold.append(event)
        else:
            self._notify(self._listeners, event)

    def replay(self, events: Sequence[Event], cursor: int) -> None:
        """Fold events of the log, the last of which has the number `cursor`. Listeners heard them when they happened.

        A question that is open is left out: the agent asks it again. Events of a running turn may be repeated by its agent
        as well (`is_repeated`).
        """
        self.feed.start_at(cursor - len(events))
        closed = {event.question_id for event in events if isinstance(event, QuestionClosed)}
        for event in events:
            if isinstance(event, TurnRequested):
                self._turn_cursor = self.feed.cursor
                self._replayed.clear()
            self.feed.publish(event)
            is_open = isinstance(event, QuestionAsked) and event.question.id not in closed
            if not is_open:
                self._state.apply(event)
            if not isinstance(event, QuestionAsked):
                self._replayed.append(event)

    def is_repeated(self, event: Event) -> bool:
        """Return whether an agent repeats what the log of the running turn holds, after its hub was replaced."""
        if self._replayed:
            self._may_repeat = Counter(map(_repeat_key, self._replayed))
            self._replayed.clear()
        if not self._may_repeat or self._may_repeat[key := _repeat_key(event)] == 0:
            return False
        self._may_repeat[key] -= 1
        return True

    def fold(self, event: Event) -> None:
        """Change the state by something that is not part of the log: a sum, or what another process is known to do."""
        self._state.apply(event)
        self.feed.wake()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Be in the state of the original, of a copy."""
        self._state.restore(snapshot)

    def began(self, at: float | None, cursor: int) -> None:
        """When and where its turn began, of a copy."""
        self.turn_began_at, self._turn_cursor = at, cursor

    def introduce(self, listeners: Listeners) -> None:
        """Let them hear what happens, beginning with what has happened while nobody was to know of the session."""
        self._listeners = listeners
        self.feed.rename(self.id)
        untold, self._untold = self._untold, []
        for event in untold:
            self._notify(listeners, event if event.session_id == self.id else event.changed(session_id=self.id))

    def _notify(self, listeners: Listeners, event: Event) -> None:
        for listener in tuple(listeners):  # one may have had enough
            listener(self, event)
        event.forget_raw()

    @property
    def goes_on_alone(self) -> bool:
        """Whether its turn goes on when this process ends."""
        return self.is_copy or (self.engine is not None and self.engine.id is not None)

    def loaded_in(self) -> Engine:
        """The engine that has this session loaded.

        Raises:
            EngineLost: None has.
        """
        if self.engine is None or self.engine.lost is not None:
            raise EngineLost(f"No engine runs session {self.id}. Send it a message to start one.")
        return self.engine

    def running_in(self) -> Engine:
        """The engine that is running a turn of this session.

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
        if self.state.is_running and self.elsewhere is not None:
            raise TaskNotOurs(self.elsewhere)

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        """Give the answer to whoever asked: the engine, or Helmsman itself. None refuses."""
        if self.own_question is not None and self.own_question[0] == question.id:
            self._answer_own(choices)
        else:
            await self.loaded_in().answer(question, choices)

    def stop_asking(self) -> None:
        """Refuse what Helmsman itself asks, or is about to."""
        self.is_pausing = False
        if self.own_question is not None:
            self.is_stopping = True
            try:
                self._answer_own(None)
            finally:
                self.is_stopping = False

    def _answer_own(self, choices: tuple[Choice, ...] | None) -> None:
        asked, self.own_question = self.own_question, None  # the first answer counts
        assert asked is not None
        try:
            asked[1](choices)
        except AnswerInvalid:
            self.own_question = asked
            raise

    @asynccontextmanager
    async def on_screen(self, question: Question, is_visible: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
        """Somebody has the question before them for the length of the block: its deadline stands still."""
        deadline = self.deadlines.get(question.id)
        if deadline is None:
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
        """Somebody hears what comes of its turn, for the length of the block."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    def shown_for(self, seconds: float) -> None:
        """It is on somebody's screen for so long from now on; none is that it is not any more."""
        self._shown_until = time.monotonic() + seconds

    @property
    def is_watched(self) -> bool:
        """Whether somebody would see how its turn ends."""
        return self._watchers > 0 or time.monotonic() < self._shown_until

    @property
    def turn_cursor(self) -> int:
        """The cursor at which the current (or last) turn began."""
        return self._turn_cursor

    async def events(self, *, since: int = 0) -> AsyncGenerator[Event]:
        """What happens in this session, from its first kept event (or from a cursor) until the running turn ends.

        Text still being written comes as `ItemDelta`, the first with all that there is of it. Without a running turn it ends
        once what is past has been given.
        """
        with self.watched(), self.feed.read(since=since) as reader:
            for written in self.state.being_written:
                reader.put(written, len(written.text))
            while reader.pending() or self.state.is_running:
                event = await reader.next()
                if event is None:
                    return
                yield event
                if isinstance(event, TurnEnded) and not reader.pending() and not self.state.is_running:
                    return

    async def wait(self, *, until: Until = "attention", timeout: float | None = None) -> bool:
        """Wait until the turn ends or a question is asked (`attention`), anything changes, or the turn ends (`end`).

        Returns whether that has happened; False means that the time is up, or that this Helmsman was closed while the turn
        goes on in an engine that outlives it.
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
        return await self.verbs.say(self.id, message, images=images, when_busy=when_busy)

    async def steer(self, text: str) -> None:
        """Put a message into the running turn."""
        await self.verbs.steer(self.id, text)

    async def interrupt(self) -> None:
        """Stop the running turn and all it left running; nothing to do when idle."""
        await self.verbs.interrupt(self.id)

    async def respond(self, question_id: str, *answers: str, by: AnsweredBy = PROGRAM) -> None:
        """Answer a question: one answer for each of its parts. `by` is written down as who gave them."""
        await self.verbs.respond(self.id, question_id, answers, by=by)


def _repeat_key(event: Event) -> object:
    """Return what an event is recognised by when an agent repeats it. A Codex gives messages other ids then."""
    if isinstance(event, ItemStarted | ItemEnded) and isinstance(event.item, AgentMessage | UserMessage):
        return type(event), type(event.item), event.item.text
    return type(event), encode(event)
