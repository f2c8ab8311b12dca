"""Model of a task: one registered piece of work with its own id, either a turn of a session or a task in the cloud.

Here are the values the registry keeps, the one table between the states of sessions, tasks and MCP tasks, and the one rule
of how a task may change (`changed`). Nothing here touches the disk.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from msgspec import field

from helmsman.base.json_values import mapping, optional_text
from helmsman.base.processes import Process
from helmsman.base.structs import Value, replace, unpack_if_valid
from helmsman.errors import InvalidInput
from helmsman.model.events import Usage
from helmsman.model.options import DEFAULT_AGENT, SessionOptions
from helmsman.store.upkeep import RETENTION

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


TaskStatus = Literal["pending", "working", "completed", "failed", "canceled", "unknown"]
WaitsFor = Literal["quota", "budget"]
TaskOrigin = Literal["local", "cloud", "fleet"]
McpTaskStatus = Literal["working", "input_required", "completed", "cancelled"]

ENDED: Final[frozenset[TaskStatus]] = frozenset({"completed", "failed", "canceled"})
"""Final statuses. A task never leaves them."""

RUNNING: Final[frozenset[TaskStatus]] = frozenset({"pending", "working"})
"""Statuses of unfinished tasks. `unknown` is not one: no known process works on the task."""

DEFAULT_POLL_MS: Final = 2000


# --- states ----------------------------------------------------------------------------------------------------------

_STATES: Final[tuple[tuple[str | None, TaskStatus, McpTaskStatus], ...]] = (
    ("active", "working", "working"),
    ("awaiting_approval", "working", "input_required"),
    ("done", "completed", "completed"),
    ("error", "failed", "completed"),  # the call worked; its result is that the turn failed
    ("interrupted", "canceled", "cancelled"),
    (None, "pending", "working"),  # no session yet
    (None, "unknown", "completed"),  # a polling client gets the known state; "working" would make it poll for ever
)
"""Mapping between the states of a session, a task and an MCP task."""

_TASK_STATUS: Final = {session: task for session, task, _ in _STATES if session is not None}
# Reversed, so that of two rows with the same task status the first counts.
_MCP_STATUS: Final = {task: mcp for session, task, mcp in reversed(_STATES)}


def task_status_of(session_status: str) -> TaskStatus:
    """Return the status of the newest task of a session in this status."""
    return _TASK_STATUS[session_status]


def mcp_status_of(task: Task) -> McpTaskStatus:
    """Return the status for MCP clients."""
    return "input_required" if task.is_running and task.input_required else _MCP_STATUS[task.status]


# --- tasks -----------------------------------------------------------------------------------------------------------


def new_task_id(origin: TaskOrigin) -> str:
    return f"T-{origin}-{uuid.uuid4().hex[:12]}"


class TaskDraft(Value, frozen=True, kw_only=True):
    """Description of a task by its creator. The registry adds alias, times and the rest."""

    origin: TaskOrigin = "local"
    agent: str = DEFAULT_AGENT
    instruction: str
    id: str | None = None
    status: TaskStatus = "pending"
    directory: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    external_id: str | None = None
    poll_ms: int = DEFAULT_POLL_MS
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    owner: Process | None = None
    engine: str | None = None
    model: str | None = None
    job: str | None = None
    of_job: str | None = None
    handed_over_from: str | None = None
    stored_options: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] | None = None
    max_cost_usd: float | None = None
    schedule: str | None = None
    chosen: tuple[tuple[str, str], ...] = ()
    spec: Mapping[str, Any] | None = None


class Task(TaskDraft, frozen=True, kw_only=True):
    """Task: a row of the registry, begun as a draft. All times are aware.

    Attributes:
        agent: Agent that works on it.
        alias: A short readable name made from the instruction.
        note: Explanation of the status, in a sentence, if it needs one.
        session_id: Session of this turn; `turn_id` identifies the turn.
        external_id: The cloud's id.
        progress: `text`, `done`, `total`, `unit`, `etaSeconds`, as far as known.
        input_required: It waits for an answer to a question.
        expires_at: When the result may be deleted; running tasks are never deleted.
        owner: The process with a service inside that runs it; None where the hub does.
        engine: The detached engine that can finish it without its owner.
        error: `code`, `message`, `retryable`.
        usage: The tokens of this task alone.
        job: Kind of job: `debug`, `review`, … (`helmsman.capabilities.outcomes`). None for a turn.
        of_job: The job that this turn is run for.
        handed_over_from: Session of another agent that the session of this task continued, if this is its first task.
        cancel_reason: Reason of a client that cancelled it, or tried to.
        waiting_for: Why it waits, before it begins or in the middle of its work: for the account's usage limit to reset
            (`quota`), or for a person who grants more than its budget (`budget`).
        resumes_at: When it resumes, if it waits in the middle of its work.
        limit_reached_at: When the usage limit was reached that it waits for.
        asked_at: When its agent was about to get the request. For a queued message that is long after its registration.
        input_position: `Engine.input_position` just before it was sent to its agent, until the agent is known to have it.
        opened_session: Session that was opened for it, recorded before its first turn is requested.
        used_before: Usage before its last turn, if it has resumed after another.
        stored_options: The options it was asked for with (`options`), as stored.
        policy: Policy of the client that began it, for every process that follows it (`helmsman.steering.turn_policy`).
        max_cost_usd: Cost limit of its caller.
        schedule: The schedule that it is a run of.
        timed_out: Its questions, one line each, that were not answered, so that the deadline denied them.
        granted: By the name of a budget, the amount granted beyond it (`helmsman.capabilities.budgets`).
        reviewed: Of a review, its target (`helmsman.capabilities.reviews`).
        untouched: Of a review, whether the files are unchanged; None until that was looked at.
        tree_before: Of a plan, the working tree before it (`helmsman.capabilities.plans`).
        job_sessions: The sessions of a job, oldest first: the job waits for their questions.
        chosen: Agents that may do a job, best first, each with a reason.
        uncounted: Time that people have taken to answer the questions of a job (`helmsman.capabilities.outcomes.work`).
        url: Address of its page in the cloud.
        placement: Of a task of a fleet, where it runs: machine, attempt, queue, priority, labels and times.
        spec: All that is needed to run it (`helmsman.model.request`), until an agent may have heard of it.
        result_compacted: The result was dropped when it expired.
        revision: Counts the changes of this row.
    """

    id: str
    origin: TaskOrigin
    alias: str
    status: TaskStatus
    note: str | None = None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None
    last_event_at: datetime | None = None
    progress: Mapping[str, Any] | None = None
    input_required: bool = False
    result: str | None = None
    error: Mapping[str, Any] | None = None
    usage: Usage | None = None
    cancel_reason: str | None = None
    waiting_for: WaitsFor | None = None
    resumes_at: datetime | None = None
    limit_reached_at: datetime | None = None
    asked_at: datetime | None = None
    input_position: str | None = None
    opened_session: str | None = None
    used_before: Usage = field(default_factory=Usage)
    timed_out: tuple[str, ...] = ()
    granted: Mapping[str, Any] = field(default_factory=dict)
    reviewed: Mapping[str, Any] | None = None
    untouched: bool | None = None
    tree_before: Mapping[str, str] | None = None
    job_sessions: tuple[str, ...] = ()
    uncounted: Mapping[str, Any] = field(default_factory=dict)
    url: str | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)
    result_compacted: bool = False
    revision: int = 0

    @property
    def is_unenforced(self) -> bool:
        """Return whether its agent was started without a sandbox that enforces approvals."""
        return self.options is not None and self.options.unenforced

    @property
    def options(self) -> SessionOptions | None:
        """Requested options, without those that held secrets."""
        return unpack_if_valid(self.stored_options, SessionOptions)

    @property
    def is_hubs(self) -> bool:
        """Return whether a hub runs it, or the next one does."""
        return self.owner is None

    @property
    def has_living_owner(self) -> bool:
        """Return whether a living process with a service inside owns it. No other process may touch it then."""
        return self.owner is not None and self.owner.is_alive()

    @property
    def is_orphaned(self) -> bool:
        """Return whether the process that owned it has ended."""
        return not self.is_hubs and not self.has_living_owner

    @property
    def runner(self) -> str:
        """Name of the process that runs it, for messages."""
        return "the hub" if self.owner is None else f"process {self.owner.pid}"

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_running(self) -> bool:
        return self.status in RUNNING

    @property
    def is_waiting(self) -> bool:
        """Return whether no agent can have received its turn, or the one it resumes with, and a hub can still run that."""
        if self.spec is None or self.input_position is not None:
            return False
        return self.status == "pending" or self.waiting_for is not None or (self.is_running and self.job is not None)

    @property
    def account(self) -> tuple[str, ...]:
        """Return its agent and the homes of the agents' programs, which hold the logins: usage limits are an account's."""
        policy = self.policy or {}
        return account(self.agent, policy.get("codexHome", ""), policy.get("claudeHome", ""))

    @property
    def on_limit(self) -> str | None:
        """Action of its caller's choice when a usage limit ends its turn; None for a turn that cannot resume."""
        return optional_text(mapping((self.policy or {}).get("limits")).get("onLimit"))

    def kept_until(self, retention: timedelta) -> datetime:
        """Return when its result may be dropped. The time of an unfinished task moves on until it ends."""
        return self.expires_at or datetime.now(UTC) + retention


def account(agent: str, codex_home: object, claude_home: object) -> tuple[str, ...]:
    """Return what tells accounts apart, for comparing."""
    return agent, str(codex_home), str(claude_home)


QUOTA: Final = "quota"
"""Waits until the account's usage limit resets."""
BUDGET: Final = "budget"
"""Waits until a person grants more than its budget."""


class TaskChanges(TypedDict, total=False):
    """Changes of a task. `granted` is merged with the earlier grants; everything else replaces the old value."""

    status: TaskStatus
    note: str | None
    directory: str | None
    session_id: str | None
    turn_id: str | None
    external_id: str | None
    completed_at: datetime | None
    last_event_at: datetime | None
    progress: Mapping[str, Any] | None
    input_required: bool
    poll_ms: int
    expires_at: datetime | None
    idempotency_key: str | None
    owner: Process | None
    engine: str | None
    result: str | None
    error: Mapping[str, Any] | None
    usage: Usage | None
    model: str | None
    cancel_reason: str | None
    waiting_for: WaitsFor | None
    resumes_at: datetime | None
    limit_reached_at: datetime | None
    asked_at: datetime | None
    input_position: str | None
    opened_session: str | None
    used_before: Usage
    timed_out: tuple[str, ...]
    granted: Mapping[str, Any]
    reviewed: Mapping[str, Any]
    untouched: bool
    tree_before: Mapping[str, str] | None
    job_sessions: tuple[str, ...]
    uncounted: Mapping[str, Any]
    url: str
    spec: Mapping[str, Any] | None


def merged_changes(before: TaskChanges, then: TaskChanges) -> TaskChanges:
    """Merge two changes of a task into one."""
    merged: TaskChanges = {**before, **then}
    if "granted" in before and "granted" in then:
        merged["granted"] = {**before["granted"], **then["granted"]}
    return merged


_OF_RUNNING_TASKS: Final = ("progress", "input_required", "last_event_at", "poll_ms", "owner", "engine", "completed_at")
"""Fields that only matter while a task runs. A change of them after its end comes from an outdated view."""


_NOT_WAITING: Final = {"input_required": False, "waiting_for": None, "resumes_at": None, "limit_reached_at": None}


def changed(task: Task, changes: TaskChanges, now: datetime, retention: timedelta = RETENTION) -> Task:
    """Return the task after a change, or the task itself if nothing changes. Its result is kept for `retention`.

    The first end is final: a later change to another status comes from an outdated view, and is ignored as a whole. Changes
    that complete an ended task (its result, its usage) are applied. Any other status may become any other.
    """
    new: dict[str, Any] = dict(changes)
    status = new.get("status", task.status)
    if task.status in ENDED:
        if status != task.status:
            return task
        for name in _OF_RUNNING_TASKS:
            new.pop(name, None)
    elif status != task.status:
        new = {"note": None, "error": None, "spec": None, **new}  # these belong to the status before
        if status not in RUNNING:
            # An expiry in the past would delete the result right away.
            is_set = task.expires_at is not None and task.expires_at > now
            new = {"expires_at": task.expires_at if is_set else now + retention, **new, **_NOT_WAITING}
        if status in ENDED:
            new = {"completed_at": now, **new}
    if "granted" in new:
        new["granted"] = {**task.granted, **new["granted"]}
    if all(getattr(task, name) == value for name, value in new.items()):
        return task
    return replace(task, **new, updated_at=now, revision=task.revision + 1)


# --- short names ------------------------------------------------------------------------------------------------------

# Short names for tasks, made from what they are to do: "Fix the failing login test" is `fix-failing-login-test`.
#
# An alias is for people to say and type. It always has a hyphen, so that it is no word of ordinary speech, begins with a
# letter, so that it is no number of a list, and can never be taken for the id of a task or a session.


_WORDS_KEPT: Final = 4
_LONGEST_WORD: Final = 20
_LONGEST: Final = 40
_LOOKED_AT: Final = 2000
"""Characters of the prompt that an alias is made from. A prompt may be very long."""

_WORD: Final = re.compile(r"[a-z0-9]{2,}")
# Ids and hashes tell a person nothing.
_ID: Final = re.compile(r"\bt-(?:local|cloud|fleet)-[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HASH: Final = re.compile(r"(?=[a-f]*[0-9])[0-9a-f]{6,}")
_FILLERS: Final = frozenset(
    [
        *("an", "and", "are", "as", "at", "be", "but", "by", "can", "could", "do", "for", "from", "have", "hello"),
        *("hey", "hi", "if", "in", "into", "is", "it", "its", "just", "kindly", "lets", "me", "my", "need", "now"),
        *("of", "on", "or", "our", "please", "redacted", "should", "so", "some", "that", "the", "their", "them"),
        *("then", "there", "these", "this", "those", "to", "us", "want", "was", "we", "will", "with", "would", "you"),
        "your",
    ]
)
_NO_WORDS: Final = "task"
_MOST_STEMS: Final = 1000


def make_alias(instruction: str, is_taken: Callable[[str], bool], last: dict[str, int] | None = None) -> str:
    """Return an unused alias for a task with this instruction.

    Thousands of tasks may have the same words, so a free number is found by doubling steps, then by bisection. Usually
    it is the one after `last`.
    """
    stem = alias_stem(instruction)
    if stem != _NO_WORDS and not is_taken(stem):
        return stem
    taken, free = (0, 1) if stem == _NO_WORDS else (1, 2)
    last = {} if last is None else last
    if (known := last.get(stem, 0)) > taken and is_taken(f"{stem}-{known}"):
        taken, free = known, known + 1
    step = 1
    while is_taken(f"{stem}-{free}"):
        taken, free, step = free, free + step, step * 2
    while free - taken > 1:
        middle = (taken + free) // 2
        taken, free = (middle, free) if is_taken(f"{stem}-{middle}") else (taken, middle)
    if len(last) >= _MOST_STEMS:
        last.clear()
    last[stem] = free
    return f"{stem}-{free}"


def alias_stem(instruction: str) -> str:
    """Return the common prefix of all aliases for this instruction."""
    plain = unicodedata.normalize("NFKD", instruction[:_LOOKED_AT]).lower()
    # Without apostrophes, so that `don't` stays one word.
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter) and letter not in "'’")
    telling = (word for word in _WORD.findall(_ID.sub(" ", plain)) if _is_telling(word))
    words = list(dropwhile(lambda word: word[0].isdigit(), telling))
    if not words:
        return _NO_WORDS
    words = words[:_WORDS_KEPT] if len(words) > 1 else [*words, "task"]
    while len("-".join(words)) > _LONGEST:
        words.pop()
    return "-".join(words)


def _is_telling(word: str) -> bool:
    return word not in _FILLERS and len(word) <= _LONGEST_WORD and _HASH.fullmatch(word) is None


def of_agents(task: Task, *agents: str) -> Task:
    """Return the task of an idempotency key, if it is one of these agents, or none is given.

    Raises:
        InvalidInput: It is not: the caller would take the work of one agent for that of another.
    """
    if agents and task.agent not in agents:
        raise InvalidInput(
            f"This idempotency key stands for task {task.id} of the agent {task.agent}, and {agents[0]} is asked for. Use "
            "another key for another agent.",
            parameter="idempotency_key",
            task_id=task.id,
        )
    return task
