"""Values of a fleet: names of machines, sessions and queues, and tasks as clients request them."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString

from msgspec import field
from psycopg.types.json import Jsonb

from helmsman.base.redaction import redact_value
from helmsman.base.structs import Value
from helmsman.errors import InvalidInput
from helmsman.model.options import Placement
from helmsman.model.questions import Question
from helmsman.store.upkeep import RETENTION
from helmsman.tasks.model import TaskDraft

if TYPE_CHECKING:
    from collections.abc import Iterable

CLIENTS: Final = "helmsman_fleet"
"""Channel that notifies clients of changed tasks. The payload is the task id."""
WORKERS: Final = "helmsman_workers"
"""Channel that notifies workers of waiting tasks. The payload is the queue."""
STEER, ANSWER = "steer", "answer"
"""Verbs of the orders that clients give to the machine of a running task."""
ANYWHERE: Final[LiteralString] = """
    case when host is not null then 'host:' || host else agent || coalesce(
        (select string_agg('+' || label, '' order by label) from unnest(labels) label where position(':' in label) = 0), '')
    end
"""
"""SQL for the queue of a task that no longer prefers a machine (`queue_of`)."""
KEPT: Final = RETENTION // timedelta(microseconds=1)
"""Time for which a result is kept, as the store counts time."""
FIRST_PRIORITY, DEFAULT_PRIORITY, LAST_PRIORITY = 1, 100, 1000
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_HOST: Final = "host:"
_MARK: Final = "~"


def new_worker_id(name: str) -> str:
    """Return an id that is unique per start. Two workers with one id would take each other's work."""
    return f"{name}{_MARK}{uuid.uuid4().hex[:12]}"


def machine_of(worker_id: str | None) -> str | None:
    """Return the machine name of a worker."""
    return None if worker_id is None else worker_id.rpartition(_MARK)[0]


def channel_of(worker_id: str) -> str:
    """Return the channel that notifies one worker of answers and cancellation. The payload is the task id.

    `helmsman.tell_worker` in the database uses the same name.
    """
    return f"helmsman_worker_{worker_id.rpartition(_MARK)[2]}"


def checked_name(name: str, what: str) -> str:
    """Check the name of a machine or a label.

    Raises:
        InvalidInput: It is invalid.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"{what} cannot be called {name!r}. Use up to 40 small letters, digits, dots, dashes and underscores."
        )
    return name


# --- sessions ---------------------------------------------------------------------------------------------------------

# The tasks of a session run in order. It is named after the first of them, so it has an id before a machine starts it. The
# id that its agent gives it later is a column of its tasks.

_SESSION: Final = "fleet-"

PROJECT: Final = "project"
"""Key in a task's policy: the repository that its work is attributed to."""
CLIENT: Final = "client"
"""Key in a task's policy: the MCP client that requested it. That of the first task has opened the session."""


def session_of(task_id: str) -> str:
    """Return the id of the session that begins with a task."""
    return task_id.removeprefix("T-")


def is_fleets(session_id: str) -> bool:
    """Return whether an id is that of a fleet session."""
    return session_id.startswith(_SESSION)


# --- queues ----------------------------------------------------------------------------------------------------------


def queue_of(agent: str, labels: Iterable[str] = (), host: str | None = None) -> str:
    """Return the queue for work on one host, or on any machine with an agent and these labels."""
    return f"{_HOST}{host}" if host is not None else "+".join((agent, *sorted(set(labels))))


def form_label(agent: str, form: str) -> str:
    """Return the label of machines whose agent version supports a session format. User labels cannot contain the colon."""
    return f"{agent}:{form}"


def serves(queue: str, *, name: str, agents: Iterable[str], labels: Iterable[str]) -> bool:
    """Return whether a machine takes tasks from a queue."""
    if queue.startswith(_HOST):
        return queue == queue_of("", host=name)
    agent, *wanted = queue.split("+")
    return agent in agents and set(wanted) <= set(labels)


# --- values ----------------------------------------------------------------------------------------------------------


def clean_text(text: str | None) -> str | None:
    """Text as Postgres takes it: neither NUL nor half of a character."""
    if text is None:
        return None
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def cleaned(value: Any) -> Any:
    """JSON as `jsonb` takes it."""
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(key)): cleaned(part) for key, part in value.items()}
        case list() | tuple():
            return [cleaned(part) for part in value]
        case _:
            return value


def jsonb(value: Mapping[str, Any] | None) -> Jsonb | None:
    """Return a JSON object that Postgres can query."""
    return None if value is None else Jsonb(cleaned(dict(value)))


# --- tasks -----------------------------------------------------------------------------------------------------------


_LONGEST_DELAY: Final = 366 * 24 * 3600.0


class FleetDraft(Value, frozen=True, kw_only=True):
    """Task as a client requests it, and where and when a fleet may run it.

    Attributes:
        task: As on one machine. Its `spec` and `policy` may hold further facts for the machine that runs it.
        session_id: The session that it continues: its tasks run one after another, in this order.
        bundles: Files that are sent with it, by kind, stored before its id is returned. None is an empty file.
    """

    task: TaskDraft
    placement: Placement = Placement()
    session_id: str | None = None
    bundles: Mapping[str, tuple[Mapping[str, Any], Path | None]] = field(default_factory=dict[str, Any])

    @property
    def queue(self) -> str:
        """Queue that the task waits in, unless its session has a machine already."""
        return queue_of(self.task.agent, self.placement.labels, self.placement.machine)

    def check(self) -> None:
        """Make sure that it makes sense.

        Raises:
            InvalidInput: It does not.
        """
        placement = self.placement
        if placement.priority is not None and not FIRST_PRIORITY <= placement.priority <= LAST_PRIORITY:
            raise InvalidInput(
                f"priority is {placement.priority}. Use {FIRST_PRIORITY}, which comes first, to {LAST_PRIORITY}.",
                parameter="priority",
            )
        for name, seconds in (("delay", placement.delay), ("deadline", placement.deadline)):
            if seconds is not None and not (0 <= seconds <= _LONGEST_DELAY and math.isfinite(seconds)):
                raise InvalidInput(f"{name} is {seconds}. Use seconds from now, up to a year.", parameter=name)
        for label in placement.labels:
            checked_name(label, "A label")
        # All of it is stored where every machine of the fleet can read it.
        task = self.task
        refuse_secrets([task.instruction, task.spec, task.policy, task.stored_options, task.idempotency_key])


def refuse_secrets(content: Any) -> None:
    """Refuse to store a secret in the database of a fleet, where each of its machines can read it.

    Raises:
        InvalidInput: There seems to be one.
    """
    if redact_value(content) != content:
        raise InvalidInput(
            "This looks as if it held a secret, which would be stored in the fleet's database. Let the agent read it from "
            "a file or a variable of the machine instead.",
            parameter="prompt",
        )


class Machine(Value, frozen=True, kw_only=True):
    """Machine of a fleet, as last reported."""

    name: str
    labels: tuple[str, ...]
    agents: Mapping[str, Any]
    capacity: int
    running: int
    version: str
    is_draining: bool
    seen_seconds_ago: float
    is_alive: bool

    def as_dict(self) -> dict[str, Any]:
        """Return JSON for front ends."""
        return {
            "name": self.name,
            "isAlive": self.is_alive,
            "isDraining": self.is_draining,
            "running": self.running,
            "capacity": self.capacity,
            # Those that users have set.
            "labels": [label for label in self.labels if ":" not in label],
            "agents": sorted(self.agents),
            "agentVersions": {agent: version for agent, version in sorted(self.agents.items()) if version},
            "version": self.version,
            "seenSecondsAgo": round(self.seen_seconds_ago, 1),
        }


class AskedInFleet(Value, frozen=True, kw_only=True):
    """Open question of the attempt `epoch` of a task."""

    task: str
    session_id: str | None
    machine: str | None
    epoch: int
    asked_at: datetime
    expires_at: datetime | None
    question: Question
