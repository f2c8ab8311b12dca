"""State of a session: a fold over its events.

`SessionState.apply` is the only place where a status changes. It is total: events may come late, twice, out of order or
not at all (Codex closes no items when a turn is interrupted, completes commands after their turn, reports a decline
twice), and each ends in a legal state.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from helmsman.base.clients import McpClient
from helmsman.base.files import DirectoryIdentity
from helmsman.base.structs import Value, pack, replace, unpack
from helmsman.base.truncate import KEPT_CHARS
from helmsman.git.worktree import Worktree
from helmsman.model.answered_by import DEADLINE, in_words
from helmsman.model.events import (
    AgentMessage,
    AnswerGiven,
    CollabToolCall,
    CommandExecution,
    Decision,
    DiffUpdated,
    EngineGone,
    Event,
    Failure,
    GoalChanged,
    HandedOver,
    InterruptFailed,
    InterruptRequested,
    Item,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    MessageDelayed,
    MessageQueued,
    MessageUnqueued,
    ModelUsage,
    Notice,
    OptionsChanged,
    OwnerChanged,
    PlaceRecorded,
    ProcessStateChanged,
    ProposedPlan,
    Publication,
    PublicationChanged,
    QuestionAsked,
    QuestionClosed,
    Reasoning,
    RemarksChanged,
    RequestedTurn,
    RuleAdded,
    SessionFact,
    SessionRenamed,
    SettingsApplied,
    SteerFailed,
    SteerRequested,
    TaskLinked,
    TurnEnded,
    TurnRequested,
    TurnsForgotten,
    TurnStarted,
    Unknown,
    Usage,
    UsageReported,
    UserMessage,
    WorktreeAssigned,
    added_up,
)
from helmsman.model.options import WRITES, SessionOptions, TurnLimits
from helmsman.model.prompts import message_part
from helmsman.model.question_text import in_a_line
from helmsman.model.questions import UNANSWERED, Question
from helmsman.model.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.model.events import TurnOutcome

SessionStatus = Literal["active", "awaiting_approval", "done", "error", "interrupted"]

STATUS_AFTER: Final[Mapping[str, SessionStatus]] = {
    "completed": "done",
    "failed": "error",
    "interrupted": "interrupted",
}
_OPTIONS: Final = OptionsChanged.event_type()
_LIVE_OUTPUT_CHARS: Final = 64 * 1024
"""Maximum number of characters kept of a running command's output. The end of the item brings the whole output."""
_NOT_ANSWERED: Final = " (not answered)"
"""Marks a question for text among `timed_out`. It was not denied: its agent received the text that the user
did not answer.
"""
_TIMED_OUT_SHOWN: Final = 3
_PAST_TURNS_KEPT: Final = 100
"""Number of earlier turns with kept decisions."""


class QueuedMessage(Value, frozen=True):
    """Queued message and its task. `not_before` is the earliest start; None means no delay."""

    task_id: str
    text: str = ""
    not_before: datetime | None = None

    @property
    def is_early(self) -> bool:
        return self.not_before is not None and datetime.now(UTC) < self.not_before


class _Tail(msgspec.Struct):
    """End of a streamed text, bounded to twice its limit."""

    limit: int
    pieces: list[str] = []
    size: int = 0

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.size += len(piece)
        if self.size > 2 * self.limit:
            self.join()

    def join(self) -> None:
        self.pieces = [self.text]
        self.size = len(self.pieces[0])

    @property
    def text(self) -> str:
        return "".join(self.pieces)[-self.limit :]


class StateView(Protocol):
    """Read-only view of the state of one session. Only its `Session` has access to the whole `SessionState`."""

    @property
    def session_id(self) -> str: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def about(self) -> str | None:
        """Subject of the session: its name, or the last message of a person."""

    @property
    def approval_policy(self) -> str | None: ...
    @property
    def sandbox(self) -> str | None: ...
    @property
    def enforced(self) -> bool | None:
        """Return whether something holds the agent to its sandbox; None if unknown."""

    @property
    def status(self) -> SessionStatus: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def between_turns(self) -> SessionStatus | None:
        """Outcome of the last turn, while the session waits for the next turn of the same work; else None."""

    @property
    def has_turn(self) -> bool:
        """Return whether a turn is running. False between two turns of the same work."""
        ...

    @property
    def turn_id(self) -> str | None: ...
    @property
    def turn_count(self) -> int: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def result(self) -> str | None: ...
    @property
    def error(self) -> Failure | None: ...
    @property
    def usage(self) -> Usage:
        """Tokens spent over all turns, with those of sub-agents."""

    @property
    def turn_usage(self) -> Usage:
        """Tokens spent in the current (or last) turn, without those of sub-agents."""

    @property
    def sub_agents_usage(self) -> Usage:
        """Tokens that sub-agents have spent since the current (or last) turn began."""

    @property
    def usage_by_agent(self) -> Mapping[str, Usage]:
        """Tokens that each sub-agent has spent, by its id, where the engine counts them."""

    @property
    def status_by_agent(self) -> Mapping[str, str]:
        """What the turn of each sub-agent does or has come to, by its id, where the agent tells."""

    @property
    def calls_by_agents(self) -> Mapping[str, tuple[str, CollabToolCall]]:
        """Calls of sub-agents about sub-agents of theirs in the current (or last) turn: the caller's id, and the call."""

    @property
    def usage_by_model(self) -> tuple[ModelUsage, ...]:
        """`usage`, for each model."""

    @property
    def note(self) -> str | None: ...
    @property
    def diff(self) -> str | None: ...
    @property
    def questions(self) -> Mapping[str, Question]: ...
    @property
    def timed_out(self) -> Sequence[str]:
        """Questions of the current (or last) turn, one line each, that the deadline denied. No person denied them."""

    @property
    def timed_out_note(self) -> str | None:
        """Questions that were not answered in time, as a sentence."""

    @property
    def left_running_note(self) -> str | None:
        """Sentence that lists the commands that still run after the turn."""

    @property
    def items(self) -> list[Item]:
        """Items of the current (or last) turn, including text streamed so far."""

    @property
    def being_written(self) -> list[ItemDelta]:
        """Text streamed so far of items that have not ended, for readers that join now: streams are not stored."""

    @property
    def items_and_decisions(self) -> list[Item]:
        """Items with the decisions on questions among them, each where it was made: entries never move."""

    @property
    def options(self) -> SessionOptions:
        """Options of the running turn and the next one."""
        ...

    @property
    def limits(self) -> TurnLimits:
        """Limits on silence in its turns, and the action at a usage limit."""
        ...

    @property
    def turn_kind(self) -> RequestedTurn:
        """Purpose of the current (or last) turn."""
        ...

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        """JSON schema of the result of the current (or last) turn."""

    @property
    def worktree(self) -> Worktree | None:
        """Git worktree of the session."""

    @property
    def place(self) -> DirectoryIdentity | None:
        """Working directory of the last turn, for comparison."""

    @property
    def opened_by(self) -> McpClient | None:
        """MCP client that owns it. None: it belongs to the user."""

    @property
    def handed_over_from(self) -> str | None:
        """Session of another agent that this one continues."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks of Helmsman and the agent for the caller."""
        ...

    @property
    def goal(self) -> str | None:
        """Objective that the agent pursues turn after turn."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Rules that hold for this session."""
        ...

    @property
    def publication(self) -> Publication:
        """Its issue and pull request at a forge."""
        ...

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Its tasks, oldest first."""
        ...

    @property
    def queue(self) -> tuple[QueuedMessage, ...]:
        """Messages to send when the turn has ended."""
        ...

    @property
    def is_interrupting(self) -> bool:
        """Return whether the running turn is being stopped."""
        ...

    @property
    def end_as(self) -> Failure | None:
        """Why the running turn is being stopped, if it is to end as failed."""

    @property
    def asked_at(self) -> Mapping[str, datetime]:
        """Times at which the open questions were first asked, by id."""
        ...

    @property
    def created_at(self) -> datetime:
        """Time at which the session was first seen."""
        ...

    @property
    def changed_at(self) -> datetime:
        """Time of the last event."""
        ...

    def decisions(self, turn_id: str | None) -> tuple[Decision, ...]:
        """Return the decisions on the questions of the current turn or an earlier one."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return all fields as values."""
        ...


class SessionState(msgspec.Struct):
    """State of one session. Only `apply` changes it, and `restore` makes a copy equal to its original.

    The constructor takes facts that do not come from events: of a session that an agent's own program began, or of tasks
    and times in the store.
    """

    session_id: str
    directory: str | None = None
    model: str | None = None
    name: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    enforced: bool | None = None
    """True if a sandbox confines the agent; None if unknown."""
    status: SessionStatus = "done"
    between_turns: SessionStatus | None = None
    turn_id: str | None = None
    turn_count: int = 0
    prompt: str | None = None
    result: str | None = None
    error: Failure | None = None
    turn_usage: Usage = Usage()
    sub_agents_usage: Usage = Usage()
    _used_before: tuple[ModelUsage, ...] = ()
    _turn_model: str | None = None
    _turn_base: Usage | None = None
    """Usage that the engine had counted for the session before the current turn, once that is known."""
    usage_by_agent: dict[str, Usage] = {}
    status_by_agent: dict[str, str] = {}
    calls_by_agents: dict[str, tuple[str, CollabToolCall]] = {}
    note: str | None = None
    diff: str | None = None
    questions: dict[str, Question] = {}
    timed_out: list[str] = []
    """Questions of the current (or last) turn, one line each, that the deadline denied. No person denied them."""
    _asides: dict[str, tuple[int, Decision | UserMessage]] = {}
    """Decisions on questions, and messages put into the turn, in order, each with the number of items before it."""
    _steers: int = 0
    _past_decisions: dict[str, tuple[Decision, ...]] = {}
    _given: dict[str, tuple[int, AnswerGiven]] = {}
    """Answers that are not confirmed, each with the number of items before it. After a turn: of a killed hub."""
    _ended_turn_id: str | None = None
    _items: dict[str, Item] = {}
    _written: dict[str, _Tail] = {}
    options: SessionOptions = SessionOptions()
    limits: TurnLimits = TurnLimits()
    turn_kind: RequestedTurn = "message"
    output_schema: Mapping[str, Any] | None = None
    worktree: Worktree | None = None
    place: DirectoryIdentity | None = None
    opened_by: McpClient | None = None
    handed_over_from: str | None = None
    notes: tuple[str, ...] = ()
    goal: str | None = None
    rules: tuple[Rule, ...] = ()
    publication: Publication = Publication()
    task_ids: tuple[str, ...] = ()
    queue: tuple[QueuedMessage, ...] = ()
    asked_at: dict[str, datetime] = {}
    is_interrupting: bool = False
    end_as: Failure | None = None
    created_at: datetime = msgspec.field(default_factory=partial(datetime.now, UTC))
    changed_at: datetime = msgspec.field(default_factory=partial(datetime.now, UTC))

    def snapshot(self) -> dict[str, Any]:
        """Return all fields as JSON."""
        for written in self._written.values():
            written.join()
        packed: dict[str, Any] = pack(self)
        return packed

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Be as another one was when that was taken.

        Raises:
            ValueError: It is no snapshot.
        """
        original = unpack(snapshot, SessionState)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(original, name))

    @property
    def about(self) -> str | None:
        """Subject of the session: its name, or the last message of a person."""
        # Without the summary that a handover appends to the prompt.
        return message_part(self.name or self.prompt)

    @property
    def is_running(self) -> bool:
        return self.status in ("active", "awaiting_approval")

    @property
    def has_turn(self) -> bool:
        """Return whether a turn is running. False between two turns of the same work."""
        return self.is_running and self.between_turns is None

    @property
    def usage(self) -> Usage:
        """Tokens spent over all turns, with those of sub-agents."""
        return sum((part.usage for part in self.usage_by_model), Usage())

    @property
    def usage_by_model(self) -> tuple[ModelUsage, ...]:
        """`usage`, for each model."""
        own = ModelUsage(self._turn_model, self.turn_usage)
        return added_up((*self._used_before, own, ModelUsage(self._turn_model, self.sub_agents_usage)))

    @property
    def items(self) -> list[Item]:
        """Items of the current (or last) turn, including text streamed so far."""
        return [self._with_written(item) for item in self._items.values()]

    @property
    def being_written(self) -> list[ItemDelta]:
        """Text streamed so far of items that have not ended, for readers that join now: streams are not stored."""
        return [
            ItemDelta(
                session_id=self.session_id,
                turn_id=self.turn_id,
                item_id=item_id,
                item_type=self._items[item_id].type,
                text=written.text,
            )
            for item_id, written in self._written.items()
        ]

    @property
    def items_and_decisions(self) -> list[Item]:
        """The items, and among them decisions on questions and messages into the turn, where these were made.

        The agent reports a message when it reads it, which may be later. No entry ever moves.
        """
        items: dict[int, Item] = dict(enumerate(self.items))
        shown: list[tuple[int, bool, Item]] = []
        for after, aside in self._asides.values():
            reported = None
            if isinstance(aside, UserMessage):
                same = (place for place, item in items.items() if place >= after and _is_message(item, aside.text))
                reported = next(same, None)
            shown.append((after, False, aside if reported is None else items.pop(reported)))
        shown += [(place, True, item) for place, item in items.items()]
        return [item for _, _, item in sorted(shown, key=itemgetter(0, 1))]

    def decisions(self, turn_id: str | None) -> tuple[Decision, ...]:
        """Return the decisions on the questions of the current turn or an earlier one."""
        if turn_id == self.turn_id:
            return tuple(aside for _, aside in self._asides.values() if isinstance(aside, Decision))
        return self._past_decisions.get(turn_id or "", ())

    @property
    def left_running_note(self) -> str | None:
        """Sentence that lists the commands that still run after the turn."""
        left = [
            item for item in self._items.values() if isinstance(item, CommandExecution) and item.status == "in_progress"
        ]
        if self.is_running or not left:
            return None
        commands = ", ".join(f"`{item.summary()}`" for item in left)
        return (
            f"The turn has ended, and {'a command of it still runs' if len(left) == 1 else 'commands of it still run'}: "
            f"{commands}. Interrupt the session to end {'it' if len(left) == 1 else 'them'}; before changes are checked, "
            "applied or discarded this happens automatically."
        )

    @property
    def timed_out_note(self) -> str | None:
        """Questions that the deadline denied or left unanswered, as a sentence."""
        if not self.timed_out:
            return None
        number = len(self.timed_out)
        which = "A question timed out and was" if number == 1 else f"{number} questions timed out and were"
        ends = {"not answered" if about.endswith(_NOT_ANSWERED) else "denied" for about in self.timed_out}
        which = f"{which} {' or '.join(sorted(ends))}"
        shown = [*self.timed_out[:_TIMED_OUT_SHOWN], *(["…"] if number > _TIMED_OUT_SHOWN else [])]
        return f"{which}: {'; '.join(shown)}"

    def apply(self, event: Event) -> None:
        """Fold an event into the state. Never raises."""
        if event.at is not None and not isinstance(event, ProcessStateChanged):
            self.created_at, self.changed_at = min(self.created_at, event.at), event.at
        match event:
            case ItemDelta() | ItemStarted() | ItemEnded() if event.agent_id is None:  # by far the most
                self._apply_to_turn(event)
            case SessionFact():
                self._apply_fact(event)
            case Unknown(name=name) if name == _OPTIONS:  # of a later version, or damaged: earlier ones may allow more
                self.options = SessionOptions(agent=self.options.agent, cwd=self.options.cwd)
            case QuestionAsked():
                self._ask(event)
            case QuestionClosed():
                self._close_question(event)
            case EngineGone():
                if self.is_running:
                    self._end("failed", event.failure)
            case Notice():
                # The note says what holds the turn up. A warning does not.
                if event.kind != "warning" and self.is_running:
                    self.note = event.message
            case SettingsApplied() if event.agent_id is None:
                self.session_id = event.session_id  # some agents name a session only once it has a prompt
                # Agents report only some of these values. The others stay.
                self.model = event.model or self.model
                self.approval_policy = event.approval_policy or self.approval_policy
                self.sandbox = event.sandbox or self.sandbox
                if event.enforced is not None:
                    self.enforced = event.enforced
                elif event.sandbox is not None:  # the agent's own
                    self.enforced = WRITES.get(event.sandbox) != "anything"
            case SessionRenamed():
                self.name = event.name
            case TurnsForgotten():
                if not self.is_running:
                    self._forget(event)
            case UsageReported():
                self._turn_model = self.model or self._turn_model
                if event.agent_id is None:
                    self._count(event)
                else:
                    self._count_sub_agent(event.agent_id, event)
            case _ if event.agent_id is None:
                self._apply_to_turn(event)
            case ItemStarted(item=CollabToolCall() as call) | ItemEnded(item=CollabToolCall() as call):
                self.calls_by_agents[call.id] = event.agent_id, call
            case TurnStarted() | TurnEnded() if event.agent_id is not None:
                self.status_by_agent[event.agent_id] = event.outcome if isinstance(event, TurnEnded) else "running"
            case _:
                pass  # the items of a sub-agent are not the session's; its questions (above) are

    def _apply_fact(self, fact: SessionFact) -> None:
        match fact:
            case OptionsChanged():
                self.options = fact.options or self.options
                self.limits = self.limits if fact.limits is None else fact.limits  # which may be false: no limits
            case WorktreeAssigned():
                self.worktree = fact.worktree
            case PlaceRecorded():
                self.place = fact.place
            case OwnerChanged():
                self.opened_by = fact.owner
            case HandedOver():
                self.handed_over_from = fact.from_session
            case RemarksChanged():
                self.notes = fact.remarks
            case GoalChanged():
                self.goal = fact.goal
            case RuleAdded(rule=rule) if rule is not None:
                self.rules += (rule,)
            case PublicationChanged(publication=publication):
                self.publication = publication or Publication()
            case TaskLinked():
                self._link(fact.task_id)
            case MessageQueued():
                self._link(fact.task_id)
                # A message that is queued again takes its new place.
                waiting = tuple(one for one in self.queue if one.task_id != fact.task_id)
                queued = (QueuedMessage(fact.task_id, fact.text, fact.not_before),)
                self.queue = (*queued, *waiting) if fact.first else (*waiting, *queued)
            case MessageDelayed():
                self.queue = tuple(
                    replace(one, not_before=fact.not_before) if one.task_id == fact.task_id else one
                    for one in self.queue
                )
            case MessageUnqueued():
                self._unqueue(fact.task_id)
            case AnswerGiven() if self.is_running:
                self._given[fact.question_id] = len(self._items), fact
            case SteerRequested() if self.is_running:
                self._steers += 1
                message = UserMessage(id=f"steer_{self._steers}", text=fact.text, status="in_progress")
                self._asides[message.id] = len(self._items), message
            case SteerFailed(text=text):
                same = [name for name, (_, one) in self._asides.items() if _is_message(one, text)]
                self._asides.pop(same[-1] if same else "", None)
            case InterruptRequested() if self.is_running:
                self.is_interrupting, self.end_as = True, fact.failure or self.end_as
            case InterruptFailed():
                self.is_interrupting, self.end_as = False, None
            case _:
                pass

    def _link(self, task_id: str) -> None:
        if task_id not in self.task_ids:
            self.task_ids += (task_id,)

    def _unqueue(self, task_id: str) -> None:
        self.queue = tuple(one for one in self.queue if one.task_id != task_id)

    def _apply_to_turn(self, event: Event) -> None:
        match event:
            case TurnRequested():
                if (
                    self.has_turn
                    and self.turn_id is None
                    and event.task_id is not None
                    and event.task_id in self.task_ids
                ):
                    self.turn_count -= 1  # the hub that requested it first was killed before it sent it
                self._begin(None, event.text)
                self.turn_kind, self.output_schema = event.kind or "message", event.output_schema
                if event.task_id is not None:
                    self._link(event.task_id)
                    self._unqueue(event.task_id)
            case TurnStarted():
                self._turn_started(event)
            case TurnEnded():
                # Some agents do not name their turns.
                if self.is_running and (self.turn_id is None or event.turn_id in (None, self.turn_id)):
                    self._end(event.outcome, event.failure, event.turn_id, event.final_message)
                    if event.continues:
                        self.between_turns, self.status = self.status, "active"
            case _ if event.turn_id is not None and self.turn_id is not None and event.turn_id != self.turn_id:
                pass  # late news of an earlier turn
            case ItemStarted() | ItemUpdated() | ItemEnded():
                self._take_item(event)
            case ItemDelta():
                self._write(event)
            case DiffUpdated():
                self.diff = event.diff
            case _:
                pass

    # --- turns -------------------------------------------------------------------------------------------------------

    def _begin(self, turn_id: str | None, prompt: str | None) -> None:
        if self.turn_id is not None and (decisions := self.decisions(self.turn_id)):
            self._past_decisions[self.turn_id] = decisions
            if len(self._past_decisions) > _PAST_TURNS_KEPT:
                self._past_decisions.pop(next(iter(self._past_decisions)))
        self.status, self.between_turns = "active", None
        self.turn_id = turn_id
        self.turn_count += 1
        self.prompt = prompt
        self.result = self.error = self.note = self.diff = None
        self.questions.clear()
        self.asked_at.clear()
        self.is_interrupting, self.end_as = False, None
        self.timed_out.clear()
        self._asides.clear()
        self._given.clear()
        self._items.clear()
        self.calls_by_agents.clear()
        self._written.clear()
        # Before the sums of the last turn are reset, because it includes them.
        self._used_before = self.usage_by_model
        self.turn_usage = self.sub_agents_usage = Usage()
        self._turn_base = None

    def _turn_started(self, event: TurnStarted) -> None:
        if not self.has_turn:
            # Another client of the same engine began this turn. A turn that has already ended is ignored.
            if event.turn_id is None or event.turn_id != self._ended_turn_id:
                self._begin(event.turn_id, None)
        elif self.turn_id is None:
            self.turn_id = event.turn_id

    def _end(
        self,
        outcome: TurnOutcome,
        failure: Failure | None,
        turn_id: str | None = None,
        final_message: str | None = None,
    ) -> None:
        for item in self.items:
            # Codex ends a turn while a command of it still runs, and tells of the command's end when that comes.
            goes_on = outcome == "completed" and isinstance(item, CommandExecution) and not item.announced
            if item.status not in ("completed", "failed"):
                item = replace(item, status="in_progress" if goes_on else "failed")
            self._items[item.id] = item
        for after, given in self._given.values():
            # Answers of a hub that was killed before it could record that they arrived.
            self._decide(given, given.about or given.question_id, after)
        self._given.clear()
        for aside_id, (after, aside) in self._asides.items():
            if isinstance(aside, UserMessage):
                # Shown only where the agent has not reported the message, so it was not read.
                self._asides[aside_id] = after, replace(aside, status="failed")
        self._written.clear()
        self.questions.clear()
        self.asked_at.clear()
        self.is_interrupting, self.end_as = False, None
        self.note = None
        self.status, self.between_turns = STATUS_AFTER[outcome], None
        self.error = failure if outcome == "failed" else None
        if outcome == "failed" and failure is None:
            self.error = Failure(code="unknown", message="The agent gave no reason.")
        if outcome == "completed":
            self.result = self._final_message() or final_message
        self._ended_turn_id = turn_id or self.turn_id

    def _forget(self, event: TurnsForgotten) -> None:
        self.status = "done"
        self.turn_count = max(0, self.turn_count - event.count)
        self.prompt = self.error = self.diff = None
        self.result = event.final_message
        self.timed_out.clear()
        self._asides.clear()
        self._items.clear()

    def _final_message(self) -> str | None:
        messages = [item for item in self._items.values() if isinstance(item, AgentMessage)]
        # Codex marks its final answer. Other agents do not.
        final = [message for message in messages if message.phase == "final_answer"] or messages
        return final[-1].text if final else None

    # --- items -------------------------------------------------------------------------------------------------------

    def _take_item(self, event: ItemStarted | ItemUpdated | ItemEnded) -> None:
        item = event.item
        known = self._items.get(item.id)
        has_ended = known is not None and known.status in ("completed", "failed")
        if has_ended and (not isinstance(event, ItemEnded) or _declined(known)):
            return  # a start that comes after the end, or a second end of something declined
        if known is not None and type(known) is not type(item):
            return
        if isinstance(event, ItemEnded):
            # The text at the end wins over the streamed text.
            self._written.pop(item.id, None)
            if item.status not in ("completed", "failed"):
                item = replace(item, status="completed")
        elif not self.is_running:
            return  # nothing begins in a turn that is over
        self._items[item.id] = item
        # Progress shows that a retry, or a wait for the network, is over.
        self.note = None

    def _write(self, event: ItemDelta) -> None:
        if not self.is_running:
            return
        known = self._items.get(event.item_id)
        # A piece may come before the start of its item.
        if known is None:
            kind = _WRITABLE.get(event.item_type)
            if kind is None:
                return
            self._items[event.item_id] = kind(id=event.item_id, status="in_progress")
        elif known.status in ("completed", "failed"):
            return
        self._tail(event.item_id).add(event.text)
        self.note = None

    def _tail(self, item_id: str) -> _Tail:
        """Return the text streamed so far of an existing item."""
        written = self._written.get(item_id)
        if written is None:
            is_command = isinstance(self._items[item_id], CommandExecution)
            written = self._written[item_id] = _Tail(_LIVE_OUTPUT_CHARS if is_command else KEPT_CHARS)
        return written

    def _with_written(self, item: Item) -> Item:
        written = self._written.get(item.id)
        if written is None:
            return item
        text = written.text
        match item:
            case CommandExecution():
                return replace(item, status="in_progress", output=text)
            case AgentMessage() | Reasoning() | ProposedPlan():
                return replace(item, status="in_progress", text=text)
            case _:
                return item

    # --- questions and usage -----------------------------------------------------------------------------------------

    def remember_asked(self, event: QuestionAsked) -> None:
        """Keep the time at which a question was asked that its agent asks again."""
        if self.is_running and event.at is not None:
            self.asked_at.setdefault(event.question.id, event.at)

    def _ask(self, event: QuestionAsked) -> None:
        if self.is_running:
            self.remember_asked(event)
            self._given.pop(event.question.id, None)  # the agent asks again: it did not get the answer
            self.questions[event.question.id] = event.question
            self.status = "awaiting_approval"

    def _close_question(self, event: QuestionClosed) -> None:
        question = self.questions.pop(event.question_id, None)
        self.asked_at.pop(event.question_id, None)
        self._given.pop(event.question_id, None)
        about = event.about or (in_a_line(question) if question is not None else None)
        if about is not None:
            self._decide(event, about, len(self._items))
        if not self.questions and self.status == "awaiting_approval":
            self.status = "active"

    def _decide(self, event: QuestionClosed | AnswerGiven, about: str, after: int) -> None:
        if f"decision_{event.question_id}" in self._asides:
            return  # duplicate event
        if event.by == str(DEADLINE):
            is_new = event.answer == UNANSWERED and not about.endswith(_NOT_ANSWERED)
            self.timed_out.append(about + _NOT_ANSWERED if is_new else about)
        decision = Decision(
            id=f"decision_{event.question_id}",
            question=about,
            answer=event.answer,
            by=event.by,
            via=event.via,
            outcome=in_words(event.answer, event.by, event.via, event.reason),
        )
        self._asides[decision.id] = after, decision

    def _count(self, event: UsageReported) -> None:
        """Count the tokens of the current turn.

        Codex reports the sum of the whole thread, which for a fork includes its parent. The sum before this turn is
        subtracted. Where that is not known, the first report tells: one that comes before the model has done anything
        repeats what earlier turns spent (Codex up to 0.145 does that on resume and fork, up to 0.130 with every turn).
        """
        if event.before is not None:
            self._used_before, self.sub_agents_usage = event.before, event.sub_agents or Usage()
            self.turn_usage = event.turn or Usage()
            self._turn_base = None if event.total is None else event.total - self.turn_usage
        elif event.turn is not None:
            self.turn_usage = event.turn
        elif event.total is not None:
            if self._turn_base is None:
                if not self.is_running:
                    return  # repeated for a session that has just been loaded
                asides = (aside for _, aside in self._asides.values())
                done = (*self._items.values(), *asides)
                worked = bool(self.questions) or any(not isinstance(one, UserMessage) for one in done)
                last = self._since_before(event.total) if event.last is None else event.last
                self._turn_base = event.total - last if worked else event.total
            used = event.total - self._turn_base
            if self.is_running or sum(used.counts) > sum(self.turn_usage.counts):  # idle, it may be an old report
                self.turn_usage = used
        elif event.last is not None:
            self.turn_usage += event.last

    def _since_before(self, total: Usage) -> Usage:
        """Return the part of a total that this turn has used: `codex exec` includes the turns before."""
        before = sum((part.usage for part in self._used_before), Usage())
        counts_on = all(now >= then for now, then in zip(total.counts, before.counts, strict=True))
        return total - before if counts_on else total

    def _count_sub_agent(self, agent_id: str, event: UsageReported) -> None:
        """Add the usage of a sub-agent to that of the session."""
        if event.total is None:
            spent = event.last or Usage()
        else:
            known = self.usage_by_agent.get(agent_id)
            spent = (event.last or event.total) if known is None else event.total - known
            self.usage_by_agent[agent_id] = event.total
        self.sub_agents_usage += spent


_WRITABLE: Final[dict[str, type[Item]]] = {
    kind.type: kind for kind in (AgentMessage, Reasoning, CommandExecution, ProposedPlan)
}


def _is_message(item: Item, text: str) -> bool:
    return isinstance(item, UserMessage) and item.text == text


def _declined(item: Item | None) -> bool:
    return bool(getattr(item, "declined", False))
