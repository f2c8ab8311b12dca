"""What happens in a session, in one small vocabulary that every engine speaks.

Two kinds of values: an `Item` is one thing done in a turn (a message, a command, a file change, …); an `Event` says
that something changed (a turn began, an item ended, a question was asked). All are frozen. The state of a session is a
fold over its events and nothing else (`helmsman.sessions.state`).

Engines translate what their agent says into these (`helmsman.agents.codex.normalise`); whatever they do not know becomes
`Unknown` or `UnknownItem` and is kept, never an exception.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from helmsman.base.json_values import fields_as_dict, snake_case
from helmsman.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from helmsman.model.questions import Question

ItemStatus = Literal["started", "in_progress", "completed", "failed"]
TurnOutcome = Literal["completed", "failed", "interrupted"]
StepStatus = Literal["pending", "in_progress", "completed"]
ChangeKind = Literal["add", "delete", "update"]
NoticeKind = Literal["warning", "retry", "network", "rate_limit", "engine"]

USAGE_LIMIT: Final = "usage_limit_exceeded"
"""The code of a failure: what the account may use is used up for now."""

_SUMMARY_WIDTH = 200


def _one_line(text: str, width: int = _SUMMARY_WIDTH) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


# --- small values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
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
        """What was spent since `other`; never less than nothing, whatever was reported."""
        input_tokens, cached, output, reasoning = (
            max(0, one - less) for one, less in zip(self.counts, other.counts, strict=True)
        )
        if self.cost_usd is None or other.cost_usd is None:
            cost = self.cost_usd if other == _NOTHING else None
        else:
            cost = max(0.0, self.cost_usd - other.cost_usd)
        return Usage(input_tokens, cached, output, reasoning, cost)


_NOTHING: Final = Usage()


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Tokens spent on one model; `model` is None where its name is not known."""

    model: str | None
    usage: Usage


def added_up(parts: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """Return one entry for each model. Usage whose cost the agent has told stays apart from usage without a told cost."""
    sums: dict[tuple[str | None, bool], ModelUsage] = {}
    for part in parts:
        key = part.model, part.usage.cost_usd is not None
        known = sums.get(key)
        sums[key] = part if known is None else ModelUsage(part.model, known.usage + part.usage)
    return tuple(part for part in sums.values() if part.usage != _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a turn failed: a stable code, a sentence, and whether trying again may help. `at` is when, if not just now."""

    code: str
    message: str
    retryable: bool = False
    http_status: int | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PlanStep:
    text: str
    status: StepStatus = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathChange:
    """One file of a file change. `diff` is a unified diff's hunks (or the whole content of a file added or deleted)."""

    path: str
    kind: ChangeKind
    moved_to: str | None = None
    diff: str | None = None
    added: int | None = None
    removed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """A sub-agent as its parent sees it."""

    id: str
    status: str
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """One window of the account's rate limit."""

    name: str
    used_percent: float
    window_minutes: int | None = None
    resets_at: int | None = None


# --- items -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing done in a turn. Ids are unique within a turn only."""

    type: ClassVar[str] = "item"
    gist: ClassVar[str] = "text"
    """The field that says most."""
    id: str
    status: ItemStatus = "completed"

    def summary(self) -> str:
        """The item in a line, for lists and logs."""
        return _one_line(getattr(self, self.gist, ""))

    def to_json(self) -> dict[str, Any]:
        """The item as JSON: its `type`, its fields in camelCase without those that are None, and its `summary`."""
        return {"type": self.type, **fields_as_dict(self), "summary": self.summary()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage(Item):
    type: ClassVar[str] = "user_message"
    text: str = ""
    images: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage(Item):
    """`phase` is `commentary` or `final_answer` where Codex says so."""

    type: ClassVar[str] = "agent_message"
    text: str = ""
    phase: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning(Item):
    """`text` is the summary or, where there is none, what was thought word for word."""

    type: ClassVar[str] = "reasoning"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandExecution(Item):
    """`output` is complete once the item has ended (Codex itself cuts it at about 1 MiB), a lossy preview before.

    `announced` means that it does not run yet: Codex is about to ask whether it may.
    """

    type: ClassVar[str] = "command_execution"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange(Item):
    type: ClassVar[str] = "file_change"
    changes: tuple[PathChange, ...] = ()
    declined: bool = False

    def summary(self) -> str:
        parts: list[str] = []
        for change in self.changes:
            stat = "" if change.added is None else f" +{change.added}/-{change.removed or 0}"
            where = f"{change.path} → {change.moved_to}" if change.moved_to else change.path
            parts.append(f"{change.kind} {where}{stat}")
        return _one_line(", ".join(parts)) + (" (declined)" if self.declined else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolCall(Item):
    type: ClassVar[str] = "mcp_tool_call"
    server: str = ""
    tool: str = ""
    arguments: Any = None
    result: str | None = None
    error: str | None = None

    def summary(self) -> str:
        return f"{self.server}/{self.tool}" + (f": {_one_line(self.error)}" if self.error else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicToolCall(Item):
    type: ClassVar[str] = "dynamic_tool_call"
    gist: ClassVar[str] = "tool"
    tool: str = ""
    arguments: Any = None
    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSearch(Item):
    type: ClassVar[str] = "web_search"
    gist: ClassVar[str] = "query"
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoList(Item):
    """The agent's plan as steps with their state."""

    type: ClassVar[str] = "todo_list"
    steps: tuple[PlanStep, ...] = ()
    explanation: str | None = None

    def summary(self) -> str:
        done = sum(step.status == "completed" for step in self.steps)
        current = next((step.text for step in self.steps if step.status == "in_progress"), None)
        return f"{done} of {len(self.steps)} steps" + (f": {_one_line(current)}" if current else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedPlan(Item):
    """The text of a plan made in plan mode."""

    type: ClassVar[str] = "plan"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollabToolCall(Item):
    """A call that starts, feeds or awaits sub-agents; `agents` holds those it concerns."""

    type: ClassVar[str] = "collab_tool_call"
    tool: str = ""
    prompt: str | None = None
    agents: tuple[AgentState, ...] = ()

    def summary(self) -> str:
        return self.tool + (f": {_one_line(self.prompt)}" if self.prompt else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageView(Item):
    type: ClassVar[str] = "image_view"
    gist: ClassVar[str] = "path"
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompaction(Item):
    type: ClassVar[str] = "context_compaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(Item):
    """Codex's own review: entered (what is reviewed), then exited (the findings, in `text`)."""

    type: ClassVar[str] = "review"
    text: str = ""
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorItem(Item):
    """A warning or an error the agent reports as part of its work; by itself it does not end the turn."""

    type: ClassVar[str] = "error"
    gist: ClassVar[str] = "message"
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Item):
    """What became of a question. Nothing that Codex did: `SessionState` makes it for transcripts.

    `outcome` is in words (`denied: nobody answered in 5 minutes`); `by` and `door` are those of `QuestionClosed`.
    """

    type: ClassVar[str] = "decision"
    question: str = ""
    answer: str | None = None
    by: str = ""
    door: str | None = None
    outcome: str = ""

    def summary(self) -> str:
        return _one_line(f"{self.question} → {self.outcome}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownItem(Item):
    """An item of a type this version of Helmsman does not know, as it came."""

    type: ClassVar[str] = "unknown"
    gist: ClassVar[str] = "name"
    name: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something changed. `agent_id` is the sub-agent it happened in, or None for the session's own agent.

    `raw` is the agent's own message, for doors that tell it on in the agent's way. It is no part of the value, and holds
    several times as much: a session has it while it tells its listeners, and then lets go of it.
    """

    session_id: str
    turn_id: str | None = None
    agent_id: str | None = None
    raw: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def event_type(cls) -> str:
        """What it is called in JSON: its class in snake_case."""
        return snake_case(cls.__name__)

    def to_json(self) -> dict[str, Any]:
        """The event as JSON, as `--json` prints it and docs/events.md describes it: its `type` and its fields.

        Names are camelCase, and what is None is left out. What it holds can be given to `json.dumps`.
        """
        return {"type": self.event_type(), **fields_as_dict(self)}

    def without_raw(self) -> Self:
        """For whoever sends it on."""
        return self if self.raw is None else replace(self, raw=None)

    def forget_raw(self) -> None:
        """For whoever keeps the event. In place: a copy would be a sixth of all that is done to take an event in."""
        object.__setattr__(self, "raw", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(Event):
    """The agent calls a function that a program has offered, and waits for what it gives (`Engine.answer_tool`).

    It is for whoever has the function. The session itself is told of it as an item.
    """

    call_id: str
    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequested(Event):
    """Helmsman has taken a prompt and is about to hand it to the engine: from here on the session is active."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Event):
    """The engine has begun the turn and given it an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(Event):
    """`final_message` is set only where the engine repeats it here; the items are the truth.

    With `continues` the work goes on: Helmsman requests the session's next turn right after this one.
    """

    outcome: TurnOutcome
    failure: Failure | None = None
    final_message: str | None = None
    continues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStarted(Event):
    """An item has begun. It is there as far as it is known."""

    item: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemUpdated(Event):
    """More is known of an item."""

    item: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemEnded(Event):
    """An item is complete."""

    item: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDelta(Event):
    """A piece of text of an item still being written. Shown live and folded into the item, never stored."""

    item_id: str
    item_type: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffUpdated(Event):
    """All the turn has changed so far, as one unified diff."""

    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReported(Event):
    """`total` counts the whole session, `last` the newest model call or turn, `turn` all of the running turn up to now: each
    takes the place of the one before. An engine gives what it knows.

    `before` and `sub_agents` are Helmsman's own sums, for a session that is loaded from disk: of all earlier turns, by
    model, and of the sub-agents of this turn.
    """

    total: Usage | None = None
    last: Usage | None = None
    turn: Usage | None = None
    before: tuple[ModelUsage, ...] | None = None
    sub_agents: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitsReported(Event):
    """How much of the account's limits is used."""

    limits: tuple[RateLimit, ...]
    plan: str | None = None

    def over(self, older: RateLimitsReported | None) -> RateLimitsReported:
        """This report with what an older one knew besides: Codex tells of one limit at a time."""
        if older is None:
            return self
        told = {limit.name: limit for limit in (*older.limits, *self.limits)}
        return replace(self, limits=tuple(told.values()), plan=self.plan or older.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsApplied(Event):
    """The policy the engine says is in force from now on, in the spellings of `helmsman.model.options`.

    `enforced` says whether something holds the agent to that sandbox; None where it is the agent's own.
    """

    model: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    enforced: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRenamed(Event):
    """The session has another name, or none any more."""

    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsForgotten(Event):
    """The last turns were taken out of the session; `final_message` is that of the turn which is the last one now."""

    count: int
    final_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Something a person would want to know that changes no state: a warning, a retry, a wait for the network."""

    kind: NoticeKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Untranslated(Event):
    """Something of the agent's own that Helmsman knows and has no use for; `name` is what the agent calls it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(Event):
    """The agent waits for an answer."""

    question: Question

    def to_json(self) -> dict[str, Any]:
        from helmsman.model.question_text import question_as_dict  # which pipes have no need of

        return {**Event.to_json(self), "question": question_as_dict(self.question)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionClosed(Event):
    """A question is not open any more: `by` and `door` say who or what closed it (`helmsman.model.answered_by`).

    `about` is what was asked, in a line. Without an `answer` it was withdrawn.
    """

    question_id: str
    answer: str | None
    by: str
    door: str | None = None
    reason: str | None = None
    about: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGone(Event):
    """The engine died or was closed while it held this session; whatever was running has ended."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Event):
    """Something this version of Helmsman does not know, as it came."""

    name: str
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
