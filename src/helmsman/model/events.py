"""Events and items of a session, in one small vocabulary for all engines.

Two kinds of values: an `Item` is one thing done in a turn (a message, a command, a file change, …); an `Event` says that
something changed (a turn began, an item ended, a question was asked). All are frozen. The state of a session is a fold over
its events and nothing else (`helmsman.sessions.state`).

Engines translate their agent's messages into these (`helmsman.agents.codex.normalise`). Unrecognized messages become
`Unknown` or `UnknownItem` and are kept; they never raise an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias

from msgspec import field
from msgspec.structs import force_setattr

from helmsman.base.clients import McpClient
from helmsman.base.files import DirectoryIdentity
from helmsman.base.json_values import snake_case
from helmsman.base.structs import Tag, Value, replace
from helmsman.git.worktree import Worktree
from helmsman.model.options import SessionOptions, TurnLimits
from helmsman.model.questions import Question
from helmsman.model.rules import Rule

# --- Links of a session to a forge such as GitHub: the issue that it works on, and its pull request -------------------


class Published(Value, frozen=True, kw_only=True):
    """Branch of one repository that was pushed, and the address of its pull request."""

    repository: str
    branch: str
    pull_request: str | None = None


class Publication(Value, frozen=True, kw_only=True):
    """Addresses at a forge, and what the user has allowed.

    Attributes:
        issue: The address of the issue that the task was taken from.
        allowed: The addresses of the remotes that the session's commits may be pushed to, and its pull requests opened
            and answered at, without another question. Asked for once per session and address.
        published: The pushed branch of each repository, by the directory of its main tree.
        answered: Checks and comments that a turn was started for, so that none is answered twice.
    """

    issue: str | None = None
    allowed: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    answered: tuple[str, ...] = ()

    def at(self, repository: str) -> Published | None:
        """Return what was published of a repository."""
        return next((one for one in self.published if one.repository == repository), None)

    @property
    def pull_requests(self) -> tuple[str, ...]:
        """Return the addresses of the pull requests."""
        return tuple(one.pull_request for one in self.published if one.pull_request is not None)


# ----------------------------------------------------------------------------------------------------------------------

ItemStatus = Literal["started", "in_progress", "completed", "failed"]
TurnOutcome = Literal["completed", "failed", "interrupted"]
StepStatus = Literal["pending", "in_progress", "completed"]
ChangeKind = Literal["add", "delete", "update"]
NoticeKind = Literal["warning", "retry", "network", "rate_limit", "engine"]
RequestedTurn = Literal["message", "plan", "other"]
"""Kind of a requested turn: a message, a message to plan for, or a turn that no message can continue, such as a review.
"""

USAGE_LIMIT: Final = "usage_limit_exceeded"
"""Failure code of a reached usage limit of the account."""

_SUMMARY_WIDTH = 200


def _one_line(text: str, width: int = _SUMMARY_WIDTH) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


# --- small values ----------------------------------------------------------------------------------------------------


class Usage(Value, frozen=True):
    """Tokens spent. `cached_input_tokens` are part of `input_tokens`, reasoning tokens part of `output_tokens`.

    `cost_usd` is what the agent itself says that all of it has cost; None where it does not say so.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    cost_usd: float | None = None

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.input_tokens, self.cached_input_tokens, self.output_tokens, self.reasoning_output_tokens

    def __add__(self, other: Usage) -> Usage:
        input_tokens, cached, output, reasoning = (
            one + more for one, more in zip(self.counts, other.counts, strict=True)
        )
        if self.cost_usd is None or other.cost_usd is None:  # the cost of a part is not that of all of it
            cost = other.cost_usd if self == _NOTHING else self.cost_usd if other == _NOTHING else None
        else:
            cost = self.cost_usd + other.cost_usd
        return Usage(input_tokens, cached, output, reasoning, cost)

    def __sub__(self, other: Usage) -> Usage:
        """Return the usage since `other`; never negative, even if the reports are inconsistent."""
        if self.cost_usd is None or other.cost_usd is None:
            cost = self.cost_usd if other == _NOTHING else None
        else:
            cost = max(0.0, self.cost_usd - other.cost_usd)
        return Usage(
            max(0, self.input_tokens - other.input_tokens),
            max(0, self.cached_input_tokens - other.cached_input_tokens),
            max(0, self.output_tokens - other.output_tokens),
            max(0, self.reasoning_output_tokens - other.reasoning_output_tokens),
            cost,
        )


_NOTHING: Final = Usage()


class ModelUsage(Value, frozen=True):
    """Tokens spent on one model; `model` is None where its name is not known."""

    model: str | None
    usage: Usage


def added_up(parts: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """Return one entry for each model. Usage with a reported cost stays apart from usage without one."""
    sums: dict[tuple[str | None, bool], ModelUsage] = {}
    for part in parts:
        key = part.model, part.usage.cost_usd is not None
        known = sums.get(key)
        sums[key] = part if known is None else ModelUsage(part.model, known.usage + part.usage)
    return tuple(part for part in sums.values() if part.usage != _NOTHING)


class Failure(Value, frozen=True, kw_only=True):
    """Why a turn failed: a stable code, a sentence, and whether trying again may help. `at` is when, if not just now."""

    code: str
    message: str
    retryable: bool = False
    http_status: int | None = None
    at: datetime | None = None


class PlanStep(Value, frozen=True):
    text: str
    status: StepStatus = "pending"


class PathChange(Value, frozen=True, kw_only=True):
    """Changed file. `diff` is a unified diff's hunks (or the whole content of a file added or deleted)."""

    path: str
    kind: ChangeKind
    moved_to: str | None = None
    diff: str | None = None
    added: int | None = None
    removed: int | None = None


class AgentState(Value, frozen=True, kw_only=True):
    """State of a sub-agent, for its parent."""

    id: str
    status: str
    message: str | None = None


class RateLimit(Value, frozen=True, kw_only=True):
    """Window of the account's rate limit."""

    name: str
    used_percent: float
    window_minutes: int | None = None
    resets_at: int | None = None


# --- items -----------------------------------------------------------------------------------------------------------


# Unknown fields raise, so that the codec notices them and keeps the whole text.
class BaseItem(Value, frozen=True, kw_only=True, tag_field="type", tag=snake_case, forbid_unknown_fields=True):
    """Step of a turn. Ids are unique within a turn only."""

    type: ClassVar = Tag()
    gist: ClassVar[str] = "text"
    """Name of the most informative field."""
    id: str
    status: ItemStatus = "completed"

    def summary(self) -> str:
        """Return the item in one line, for lists and logs."""
        return _one_line(getattr(self, self.gist, ""))

    def to_json(self) -> dict[str, Any]:
        """Return the item as JSON: its `type`, its fields in camelCase without those that are None, and its `summary`."""
        return {**Value.to_json(self), "summary": self.summary()}


class UserMessage(BaseItem, frozen=True, kw_only=True):
    text: str = ""
    images: int = 0


class AgentMessage(BaseItem, frozen=True, kw_only=True):
    """`phase` is `commentary` or `final_answer` where Codex says so."""

    text: str = ""
    phase: str | None = None


class Reasoning(BaseItem, frozen=True, kw_only=True):
    """Reasoning of the model. `text` is the summary or, without one, the verbatim reasoning."""

    text: str = ""


class CommandExecution(BaseItem, frozen=True, kw_only=True):
    """`output` is complete once the item has ended (Codex itself cuts it at about 1 MiB), a lossy preview before.

    `announced` means that it does not run yet: Codex is about to ask whether it may.
    """

    command: str = ""
    directory: str | None = None
    exit_code: int | None = None
    output: str = ""
    announced: bool = False
    declined: bool = False
    duration_ms: int | None = None

    def summary(self) -> str:
        if self.declined:
            return f"{_one_line(self.command)} (declined)"
        tail = _one_line(self.output.rstrip().rpartition("\n")[2], 80)
        code = "" if self.exit_code is None else f" (exit {self.exit_code})"
        return f"{_one_line(self.command)}{code}" + (f": {tail}" if tail else "")


class FileChange(BaseItem, frozen=True, kw_only=True):
    changes: tuple[PathChange, ...] = ()
    declined: bool = False

    def summary(self) -> str:
        parts: list[str] = []
        for change in self.changes:
            stat = "" if change.added is None else f" +{change.added}/-{change.removed or 0}"
            where = f"{change.path} → {change.moved_to}" if change.moved_to else change.path
            parts.append(f"{change.kind} {where}{stat}")
        return _one_line(", ".join(parts)) + (" (declined)" if self.declined else "")


class McpToolCall(BaseItem, frozen=True, kw_only=True):
    server: str = ""
    tool: str = ""
    arguments: Any = None
    result: str | None = None
    error: str | None = None

    def summary(self) -> str:
        return f"{self.server}/{self.tool}" + (f": {_one_line(self.error)}" if self.error else "")


class DynamicToolCall(BaseItem, frozen=True, kw_only=True):
    gist: ClassVar[str] = "tool"
    tool: str = ""
    arguments: Any = None
    result: str | None = None


class WebSearch(BaseItem, frozen=True, kw_only=True):
    gist: ClassVar[str] = "query"
    query: str = ""


class TodoList(BaseItem, frozen=True, kw_only=True):
    """Plan of the agent: steps with their state."""

    steps: tuple[PlanStep, ...] = ()
    explanation: str | None = None

    def summary(self) -> str:
        done = sum(step.status == "completed" for step in self.steps)
        current = next((step.text for step in self.steps if step.status == "in_progress"), None)
        return f"{done} of {len(self.steps)} steps" + (f": {_one_line(current)}" if current else "")


class ProposedPlan(BaseItem, frozen=True, kw_only=True, tag="plan"):
    """Plan made in plan mode, as text."""

    text: str = ""


class CollabToolCall(BaseItem, frozen=True, kw_only=True):
    """Call that starts, feeds or awaits sub-agents; `agents` holds those it concerns."""

    tool: str = ""
    prompt: str | None = None
    agents: tuple[AgentState, ...] = ()

    def summary(self) -> str:
        return self.tool + (f": {_one_line(self.prompt)}" if self.prompt else "")


class ImageView(BaseItem, frozen=True, kw_only=True):
    gist: ClassVar[str] = "path"
    path: str = ""


class ContextCompaction(BaseItem, frozen=True, kw_only=True):
    """Compaction of the agent's context."""


class Review(BaseItem, frozen=True, kw_only=True):
    """Codex's own review: entered (what is reviewed), then exited (the findings, in `text`)."""

    text: str = ""
    finished: bool = False


class ErrorItem(BaseItem, frozen=True, kw_only=True, tag="error"):
    """Warning or error that the agent reports as part of its work. It does not end the turn."""

    gist: ClassVar[str] = "message"
    message: str = ""


class Decision(BaseItem, frozen=True, kw_only=True):
    """Outcome of a question. It is not an item of Codex: `SessionState` makes it for transcripts.

    `outcome` is in words (`denied: no answer in 5 minutes`); `by` and `via` are those of `QuestionClosed`.
    """

    question: str = ""
    answer: str | None = None
    by: str = ""
    via: str | None = None
    outcome: str = ""

    def summary(self) -> str:
        return _one_line(f"{self.question} → {self.outcome}")


class UnknownItem(BaseItem, frozen=True, kw_only=True, tag="unknown"):
    """Item of a type that this version of Helmsman does not know, unchanged."""

    gist: ClassVar[str] = "name"
    name: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)


Item: TypeAlias = (
    UserMessage
    | AgentMessage
    | Reasoning
    | CommandExecution
    | FileChange
    | McpToolCall
    | DynamicToolCall
    | WebSearch
    | TodoList
    | ProposedPlan
    | CollabToolCall
    | ImageView
    | ContextCompaction
    | Review
    | ErrorItem
    | Decision
    | UnknownItem
)


# --- events ----------------------------------------------------------------------------------------------------------


class PastTurn(Value, frozen=True, kw_only=True):
    """Turn and its items. `status` is `completed`, `failed`, `interrupted` or `inProgress`."""

    id: str
    status: str
    items: tuple[Item, ...]


class Source(NamedTuple):
    """Line in the output of a supervised agent: the id of the process, and the offset of the line's first byte."""

    process: str
    offset: int


# Unknown fields raise, as for items. `dict=True` gives room for the attributes that are not part of the value.
class Event(Value, frozen=True, kw_only=True, tag_field="type", tag=snake_case, forbid_unknown_fields=True, dict=True):
    """Something changed. `agent_id` is the sub-agent it happened in, or None for the session's own agent.

    Four attributes are not part of the value: they are not compared, not encoded, and not copied by `replace`. `raw` is the
    agent's own message, for front ends that pass it on. It is several times as large as the event, so a session drops it
    after its listeners have heard the event. `source` is the line of a supervised agent that the event comes from; the store
    commits it with the event. `at` is when the event happened; `Session.apply` sets it, and the log keeps it. `stored` is
    the JSON text of an event that `helmsman.model.codec` could not read completely.

    `exact` names the fields that a later process uses. The log leaves out such a field if it holds a secret: a redacted
    value must never be used in place of the real one.
    """

    raw: ClassVar[Mapping[str, Any] | None] = None
    source: ClassVar[Source | None] = None
    at: ClassVar[datetime | None] = None
    stored: ClassVar[str | None] = None
    exact: ClassVar[tuple[str, ...]] = ()
    session_id: str
    turn_id: str | None = None
    agent_id: str | None = None

    @classmethod
    def event_type(cls) -> str:
        """Return the event's type in JSON: its class in snake_case."""
        return str(cls.__struct_config__.tag)

    def with_raw(self, raw: Mapping[str, Any] | None) -> Self:
        """Attach the agent's own message to this event, and return the event."""
        if raw is not None:
            force_setattr(self, "raw", raw)
        return self

    def with_source(self, source: Source | None) -> Self:
        """Attach the line that this event comes from, and return the event."""
        if source is not None:
            force_setattr(self, "source", source)
        return self

    def with_time(self, at: datetime | None) -> Self:
        """Attach the time at which this event happened, and return the event."""
        if at is not None:
            force_setattr(self, "at", at)
        return self

    def forget_raw(self) -> None:
        """Drop the agent's own message. In place, because this runs for every event."""
        self.__dict__.pop("raw", None)

    def changed(self, **fields: Any) -> Self:
        """Return a copy with other fields, and the same `raw`, `source` and `at`."""
        return replace(self, **fields).with_raw(self.raw).with_source(self.source).with_time(self.at)


class ToolCalled(Event, frozen=True, kw_only=True):
    """Call of a function that a client has offered. The agent waits for its result (`Engine.answer_tool`).

    The event is for the client that has the function. The session itself gets an item.
    """

    call_id: str
    tool: str
    arguments: Mapping[str, Any]


class TurnRequested(Event, frozen=True, kw_only=True):
    """Helmsman has taken a prompt and is about to hand it to the engine: from here on the session is active.

    A message with this `task_id` does not wait in the queue any longer. Without a `kind` it is a message.
    """

    exact: ClassVar[tuple[str, ...]] = ("output_schema",)
    text: str
    task_id: str | None = None
    kind: RequestedTurn | None = None
    output_schema: Mapping[str, Any] | None = None


class TurnStarted(Event, frozen=True, kw_only=True):
    """Start of a turn in the engine, with its id."""


class TurnEnded(Event, frozen=True, kw_only=True):
    """End of a turn. `final_message` is set only if the engine repeats it here; the items are authoritative.

    With `continues` the work continues: Helmsman requests the session's next turn right after this one.
    """

    outcome: TurnOutcome
    failure: Failure | None = None
    final_message: str | None = None
    continues: bool = False


class ItemStarted(Event, frozen=True, kw_only=True):
    """Start of an item, with the fields known so far."""

    item: Item


class ItemUpdated(Event, frozen=True, kw_only=True):
    """Update of an item."""

    item: Item


class ItemEnded(Event, frozen=True, kw_only=True):
    """End of an item, which is now complete."""

    item: Item


class ItemDelta(Event, frozen=True, kw_only=True):
    """Text that is added to an item in progress. Shown live and folded into the item, never stored."""

    item_id: str
    item_type: str
    text: str


class DiffUpdated(Event, frozen=True, kw_only=True):
    """Diff of the turn so far, as one unified diff."""

    diff: str


class UsageReported(Event, frozen=True, kw_only=True):
    """Reported usage. `total` counts the whole session, `last` the newest model call or turn, `turn` all of the running turn
    up to now: each replaces the previous value. An engine sets the fields that it knows.

    `before` and `sub_agents` are Helmsman's own sums, for a session that is loaded from disk: of all earlier turns, by
    model, and of the sub-agents of this turn.
    """

    total: Usage | None = None
    last: Usage | None = None
    turn: Usage | None = None
    before: tuple[ModelUsage, ...] | None = None
    sub_agents: Usage | None = None


class RateLimitsReported(Event, frozen=True, kw_only=True):
    """Usage of the account's limits."""

    limits: tuple[RateLimit, ...]
    plan: str | None = None

    def over(self, older: RateLimitsReported | None) -> RateLimitsReported:
        """Merge this report with an older one: Codex reports one limit at a time."""
        if older is None:
            return self
        told = {limit.name: limit for limit in (*older.limits, *self.limits)}
        return self.changed(limits=tuple(told.values()), plan=self.plan or older.plan)


class SettingsApplied(Event, frozen=True, kw_only=True):
    """Policy in force from now on, as the engine reports it, in the values of `helmsman.model.options`.

    `enforced` says whether a sandbox enforces it; None for the agent's own sandbox.
    """

    model: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    enforced: bool | None = None


class SessionRenamed(Event, frozen=True, kw_only=True):
    """New name of the session, or none."""

    name: str | None


class TurnsForgotten(Event, frozen=True, kw_only=True):
    """Removal of the last turns; `final_message` is that of the turn which is now the last one."""

    count: int
    final_message: str | None = None


class TurnAdopted(Event, frozen=True, kw_only=True):
    """Takeover of a turn whose process was killed. Output in between may be missing."""


class HistoryImported(Event, frozen=True, kw_only=True):
    """Turns that are not in the session's log: its agent's own program ran them, or the session that it was forked from.

    They come before the turn that runs, or the next one.
    """

    turns: tuple[PastTurn, ...]


class Notice(Event, frozen=True, kw_only=True):
    """Something a person would want to know that changes no state: a warning, a retry, a wait for the network."""

    kind: NoticeKind
    message: str


class Untranslated(Event, frozen=True, kw_only=True):
    """Something of the agent's own that Helmsman knows and has no use for; `name` is what the agent calls it."""

    name: str


class QuestionAsked(Event, frozen=True, kw_only=True):
    """Question of the agent, which waits for an answer."""

    question: Question

    def to_json(self) -> dict[str, Any]:
        from helmsman.model.question_text import question_as_dict  # which pipes have no need of

        return {**Event.to_json(self), "question": question_as_dict(self.question)}


class QuestionClosed(Event, frozen=True, kw_only=True):
    """End of a question: `by` and `via` say what closed it (`helmsman.model.answered_by`).

    `about` is the question in a line. Without an `answer` it was withdrawn.
    """

    question_id: str
    answer: str | None
    by: str
    via: str | None = None
    reason: str | None = None
    about: str | None = None


class EngineGone(Event, frozen=True, kw_only=True):
    """End of the engine of this session; whatever was running has ended."""

    failure: Failure


class ProcessState(Enum):
    """State of a session in its agent. `STORED` is a session without a process."""

    STORED = "stored"
    STARTING = "starting"
    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDING = "ending"


class ProcessStateChanged(Event, frozen=True, kw_only=True):
    """Change of the agent's process of this session. It is no activity of the session.

    In Codex app-server, which has many sessions in one process, it is the thread of this session.
    """

    state: ProcessState


class Unknown(Event, frozen=True, kw_only=True):
    """Something this version of Helmsman does not know, as it came."""

    name: str
    payload: Mapping[str, Any] = field(default_factory=dict)


# --- facts -----------------------------------------------------------------------------------------------------------


class SessionFact(Event, frozen=True, kw_only=True):
    """Something that Helmsman records about a session. `Session.events` leaves facts out: the session has them as values."""


class OptionsChanged(SessionFact, frozen=True, kw_only=True):
    """New options or limits of the session, from the next turn on. None keeps the present ones."""

    exact: ClassVar[tuple[str, ...]] = ("options",)
    options: SessionOptions | None = None
    limits: TurnLimits | None = None


class WorktreeAssigned(SessionFact, frozen=True, kw_only=True):
    """Worktree of the session. None: the worktree was removed."""

    exact: ClassVar[tuple[str, ...]] = ("worktree",)
    worktree: Worktree | None = None


class PlaceRecorded(SessionFact, frozen=True, kw_only=True):
    """Directory of the next turn, for comparison before the turn after that."""

    place: DirectoryIdentity | None = None


class OwnerChanged(SessionFact, frozen=True, kw_only=True):
    """Owner of the session, an MCP client. None: it belongs to the user."""

    exact: ClassVar[tuple[str, ...]] = ("owner",)
    owner: McpClient | None = None


class HandedOver(SessionFact, frozen=True, kw_only=True):
    """Handover: the session continues a session of another agent."""

    from_session: str


class RemarksChanged(SessionFact, frozen=True, kw_only=True):
    """Helmsman and the agent have these remarks for the caller, and no others."""

    remarks: tuple[str, ...] = ()


class GoalChanged(SessionFact, frozen=True, kw_only=True):
    """Objective that the agent pursues turn after turn. None: it pursues none."""

    exact: ClassVar[tuple[str, ...]] = ("goal",)
    goal: str | None = None


class RuleAdded(SessionFact, frozen=True, kw_only=True):
    """Rule that decides questions for the rest of the session.

    None: the rule held a secret, so the log does not have it.
    """

    exact: ClassVar[tuple[str, ...]] = ("rule",)
    rule: Rule | None = None


class PublicationChanged(SessionFact, frozen=True, kw_only=True):
    """What the session has to do with a forge: its issue, where its commits were pushed, its pull request."""

    exact: ClassVar[tuple[str, ...]] = ("publication",)
    publication: Publication | None = None


class TaskLinked(SessionFact, frozen=True, kw_only=True):
    """Task of the session."""

    task_id: str


class MessageQueued(SessionFact, frozen=True, kw_only=True):
    """Message that waits for the end of the turn, as the last one or as the first.

    Its task holds all that is needed to run it.
    """

    task_id: str
    text: str = ""
    not_before: datetime | None = None
    first: bool = False


class MessageDelayed(SessionFact, frozen=True, kw_only=True):
    """Earliest time of a waiting message."""

    task_id: str
    not_before: datetime


class MessageUnqueued(SessionFact, frozen=True, kw_only=True):
    """Removal of a waiting message."""

    task_id: str


class AnswerGiven(SessionFact, frozen=True, kw_only=True):
    """Answer that is about to be given to the agent. `call` is the key of the call that gives it.

    The other fields are those of `QuestionClosed`, which follows unless the hub is killed.
    """

    question_id: str
    answer: str
    by: str
    via: str | None = None
    reason: str | None = None
    about: str | None = None
    call: str | None = None


class SteerRequested(SessionFact, frozen=True, kw_only=True):
    """Message that is about to be put into the running turn. `call` is the key of the call that requests it."""

    text: str
    call: str | None = None


class SteerFailed(SessionFact, frozen=True, kw_only=True):
    """Message that the running turn did not accept."""

    text: str


class InterruptRequested(SessionFact, frozen=True, kw_only=True):
    """Interrupt that is about to stop the running turn.

    With a `failure` the turn ends as failed, otherwise as interrupted.
    """

    failure: Failure | None = None


class InterruptFailed(SessionFact, frozen=True, kw_only=True):
    """Interrupt that failed. The running turn continues."""


class ApplyRequested(SessionFact, frozen=True, kw_only=True):
    """Changes in the session's worktree that are about to be applied. `digest` is that of the diff that was shown."""

    digest: str | None = None


class RewindRequested(SessionFact, frozen=True, kw_only=True):
    """Rewind of the session, or its undo, that is about to happen, as shown in the preview with this `digest`."""

    digest: str
    undo: bool = False
