"""What a task is: one registered piece of work with its own id, be it a turn of a session or a task in the cloud.

Here are the values the registry keeps, the one table between the states of sessions, tasks and MCP tasks, and the one
rule of how a task may change (`changed`). Nothing here touches the disk.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from helmsman.base.processes import Process
    from helmsman.model.events import Usage

TaskStatus = Literal["pending", "working", "completed", "failed", "canceled", "unknown"]
TaskOrigin = Literal["local", "cloud"]
McpTaskStatus = Literal["working", "input_required", "completed", "cancelled"]

ENDED: Final[frozenset[TaskStatus]] = frozenset({"completed", "failed", "canceled"})
"""What a task never leaves again."""

RUNNING: Final[frozenset[TaskStatus]] = frozenset({"pending", "working"})
"""What somebody has to bring to an end. `unknown` is neither: nobody works on it that we know of."""

KEPT: Final = timedelta(days=30)
"""How long the result of a task is kept once nobody works on it, unless its caller said otherwise."""

DEFAULT_POLL_MS: Final = 2000


# --- states ----------------------------------------------------------------------------------------------------------

_STATES: Final[tuple[tuple[str | None, TaskStatus, McpTaskStatus], ...]] = (
    ("active", "working", "working"),
    ("awaiting_approval", "working", "input_required"),
    ("done", "completed", "completed"),
    ("error", "failed", "completed"),  # the call worked; what it tells is that the turn failed
    ("interrupted", "canceled", "cancelled"),
    (None, "pending", "working"),  # no session yet
    (None, "unknown", "completed"),  # whoever polls learns what is known; "working" would have them poll for ever
)
"""The one table between the states of a session, of a task and of an MCP task."""

_TASK_STATUS: Final = {session: task for session, task, _ in _STATES if session is not None}
_MCP_STATUS: Final = {task: mcp for session, task, mcp in reversed(_STATES)}


def task_status_of(session_status: str) -> TaskStatus:
    """The status of the task that is the newest turn of a session in this status."""
    return _TASK_STATUS[session_status]


def mcp_status_of(task: Task) -> McpTaskStatus:
    """The status an MCP client is told."""
    return "input_required" if task.status == "working" and task.input_required else _MCP_STATUS[task.status]


# --- tasks -----------------------------------------------------------------------------------------------------------


def new_task_id(origin: TaskOrigin) -> str:
    return f"T-{origin}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDraft:
    """A task as its caller describes it; alias, times and the rest are the registry's."""

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
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of the registry. All times are aware.

    Attributes:
        agent: Who works on it.
        alias: A short readable name made from the instruction.
        note: Why the status is what it is, in a sentence, where that needs saying.
        session_id: The session whose turn this is; with `turn_id`, which turn.
        external_id: What the cloud calls it.
        progress: `text`, `done`, `total`, `unit`, `etaSeconds`, as far as known.
        input_required: It waits for an answer to a question.
        expires_at: When the result may be dropped; what is running is kept in any case.
        owner: The process that follows it.
        engine: The detached engine that can finish it without its owner.
        error: `code`, `message`, `retryable`.
        usage: The tokens of this task alone.
        metadata: Whatever else front doors need again, such as the session's `options`.
        result_compacted: The result was dropped when it expired.
        revision: Counts the changes of this row.
    """

    id: str
    origin: TaskOrigin
    agent: str = DEFAULT_AGENT
    alias: str
    status: TaskStatus
    note: str | None = None
    instruction: str
    directory: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    external_id: str | None = None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None
    last_event_at: datetime | None = None
    progress: Mapping[str, Any] | None = None
    input_required: bool = False
    poll_ms: int = DEFAULT_POLL_MS
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    owner: Process | None = None
    engine: str | None = None
    result: str | None = None
    error: Mapping[str, Any] | None = None
    usage: Usage | None = None
    model: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    result_compacted: bool = False
    revision: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_running(self) -> bool:
        return self.status in RUNNING

    @property
    def timed_out(self) -> tuple[str, ...]:
        """Its questions, each in a line, that nobody answered, so that the deadline denied them."""
        kept = self.metadata.get(TIMED_OUT)
        return tuple(map(str, kept)) if isinstance(kept, list | tuple) else ()


TIMED_OUT: Final = "timedOut"
"""The key of `Task.timed_out` in the metadata."""


class TaskChanges(TypedDict, total=False):
    """What may change in a task. `metadata` is merged into what is there; everything else replaces it."""

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
    metadata: Mapping[str, Any]


_OF_RUNNING_TASKS: Final = ("progress", "input_required", "last_event_at", "poll_ms", "owner", "engine", "completed_at")
"""What is of no interest once a task has ended: only somebody with an old view of it would still change these."""


def changed(task: Task, changes: TaskChanges, now: datetime) -> Task:
    """The task after a change, or the task itself if nothing changes.

    The first end is final: whoever later claims another status has an old view, and nothing of that claim is taken.
    What completes an ended task (its result, its usage) is. Any other status may become any other.
    """
    new: dict[str, Any] = dict(changes)
    status = new.get("status", task.status)
    if task.status in ENDED:
        if status != task.status:
            return task
        for name in _OF_RUNNING_TASKS:
            new.pop(name, None)
    elif status != task.status:
        new = {"note": None, "error": None, **new}  # they told of the status before
        if status not in RUNNING:
            is_set = task.expires_at is not None and task.expires_at > now
            new = {"expires_at": task.expires_at if is_set else now + KEPT, **new, "input_required": False}
        if status in ENDED:
            new = {"completed_at": now, **new}
    if "metadata" in new:
        new["metadata"] = {**task.metadata, **new["metadata"]}
    if all(getattr(task, name) == value for name, value in new.items()):
        return task
    return replace(task, **new, updated_at=now, revision=task.revision + 1)
