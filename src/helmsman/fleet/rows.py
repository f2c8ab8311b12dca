"""Conversion of a task's row to a `Task`, and the names of machines, labels and queues."""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, LiteralString, cast, get_args

from psycopg.types.json import Jsonb

from helmsman.errors import InvalidInput
from helmsman.model.events import Usage
from helmsman.tasks.model import RUNNING, Task, TaskStatus, WaitsFor, alias_stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from psycopg.rows import DictRow

DOORS: Final = "helmsman_fleet"
"""Channel that notifies clients of changed tasks. The payload is the task id."""
WORKERS: Final = "helmsman_workers"
"""Channel that notifies workers of waiting tasks. The payload is the queue."""
ANYWHERE: Final[LiteralString] = """
    case when host is not null then 'host:' || host else agent || coalesce(
        (select string_agg('+' || label, '' order by label) from unnest(labels) label where position(':' in label) = 0), '')
    end
"""
"""SQL for the queue of a task that no longer prefers a machine (`queue_of`)."""
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


# --- queues ----------------------------------------------------------------------------------------------------------


def queue_of(agent: str, labels: Iterable[str] = (), host: str | None = None) -> str:
    """Return the queue for work on one host, or on any machine with an agent and these labels."""
    return f"{_HOST}{host}" if host is not None else "+".join((agent, *sorted(set(labels))))


def host_of(queue: str) -> str | None:
    """Return the machine that owns this queue, or None."""
    return queue.removeprefix(_HOST) if queue.startswith(_HOST) else None


def form_label(agent: str, form: str) -> str:
    """Return the label of machines whose agent version supports a session format. User labels cannot contain the colon."""
    return f"{agent}:{form}"


def named_labels(labels: Iterable[str]) -> list[str]:
    """Return the labels that users have set."""
    return [label for label in labels if ":" not in label]


def serves(queue: str, *, name: str, agents: Iterable[str], labels: Iterable[str]) -> bool:
    """Return whether a machine takes tasks from a queue."""
    if (host := host_of(queue)) is not None:
        return host == name
    agent, *wanted = queue.split("+")
    return agent in agents and set(wanted) <= set(labels)


# --- values ----------------------------------------------------------------------------------------------------------


def clean_text(text: str | None) -> str | None:
    """Text as Postgres takes it: neither NUL nor half of a character."""
    if text is None:
        return None
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(key)): _cleaned(part) for key, part in value.items()}
        case list() | tuple():
            return [_cleaned(part) for part in value]
        case _:
            return value


def jsonb(value: Mapping[str, Any] | None) -> Jsonb | None:
    """Return a JSON object that Postgres can query."""
    return None if value is None else Jsonb(_cleaned(dict(value)))


# --- tasks -----------------------------------------------------------------------------------------------------------


def new_fleet_task(instruction: str) -> tuple[str, str]:
    """Return the id and alias of a new task. Both are unique among machines."""
    number = uuid.uuid4().hex[:12]
    return f"T-fleet-{number}", f"{alias_stem(instruction)}-{number[:4]}"


def usage_as_json(usage: Usage | None) -> dict[str, Any] | None:
    return None if usage is None else {"counts": list(usage.counts), "cost": usage.cost_usd}


def _usage_of(kept: Mapping[str, Any]) -> Usage:
    given, cached, output, reasoning = kept["counts"]
    return Usage(given, cached, output, reasoning, kept["cost"])


def task_of(row: DictRow) -> Task:
    """Convert a row to a task."""
    usage: Mapping[str, Any] | None = row["usage"]
    placed = {
        "machine": machine_of(row["worker"]),
        "attempt": row["epoch"] or None,
        "queue": row["queue"],
        "priority": row["priority"],
        "labels": named_labels(row["labels"]) or None,
        "host": row["host"],
        "notBefore": row["not_before"] and row["not_before"].isoformat(),
        "deadline": row["deadline"] and row["deadline"].isoformat(),
    }
    waiting_for = row["metadata"].get(WAITING_FOR) if row["status"] in RUNNING else None
    waits: WaitsFor | None = waiting_for if waiting_for in get_args(WaitsFor) else None
    return Task(
        id=row["id"],
        origin="fleet",
        agent=row["agent"],
        alias=row["alias"],
        status=cast("TaskStatus", row["status"]),
        note=row["note"],
        instruction=row["instruction"],
        directory=row["directory"],
        session_id=row["session_id"],
        turn_id=row["turn_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        completed_at=row["completed_at"],
        last_event_at=row["last_event_at"],
        progress=row["progress"],
        input_required=row["input_required"],
        expires_at=row["expires_at"],
        idempotency_key=row["key"],
        result=row["result"],
        error=row["error"],
        usage=None if usage is None else _usage_of(usage),
        model=row["model"],
        waiting_for=waits,
        resumes_at=None if waits is None else _time(row["metadata"].get(RESUMES_AT)),
        stored_options=row["metadata"].get(OPTIONS),
        max_cost_usd=row["metadata"].get(MAX_COST),
        schedule=row["metadata"].get(SCHEDULE),
        metadata={**row["metadata"], FLEET: {key: value for key, value in placed.items() if value is not None}},
        revision=row["revision"],
    )


WAITING_FOR: Final = "waitingFor"
RESUMES_AT: Final = "resumesAt"


def waiting_facts(task: Task) -> dict[str, Any]:
    """Return why a task waits on its worker, for the metadata of the fleet's task."""
    at = None if task.resumes_at is None else task.resumes_at.isoformat()
    return {WAITING_FOR: task.waiting_for, RESUMES_AT: at}


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


OPTIONS, MAX_COST, SCHEDULE = "options", "maxCostUsd", "schedule"
"""Keys of facts in the metadata that a task has as fields."""
CLIENT: Final = "client"
"""MCP client that requested a task. The client of a session's first task has opened the session."""
FLEET: Final = "fleet"
"""Metadata key of the fleet's facts about a task."""
