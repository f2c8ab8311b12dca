"""Values of a fleet: tasks as clients request them, machines, questions, and events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import field

from helmsman.base.redaction import redact_value
from helmsman.base.structs import Value
from helmsman.errors import InvalidInput
from helmsman.fleet.rows import DEFAULT_PRIORITY, FIRST_PRIORITY, LAST_PRIORITY, checked_name, named_labels
from helmsman.model.questions import Question

_LONGEST_DELAY: Final = 366 * 24 * 3600.0


class FleetDraft(Value, frozen=True, kw_only=True):
    """Task as a client requests it.

    Attributes:
        spec: What the machine needs to run it (`helmsman.model.request.TurnRequest.packed`), and further facts.
        session_id: The session that it continues: its tasks run one after another, in this order.
        lane: The same by its lane, also before any machine has begun it.
        host: The one machine that may run it; else any that has the agent and all of `labels`.
        priority: From 1, which comes first, to 1000.
        delay: Seconds from now before which it does not begin.
        deadline: Seconds from now after which it is stopped, on any machine.
        images: Images for its agent, each with its file name suffix.
        bundles: Data that is sent with it, by kind, stored before its id is returned.
    """

    agent: str
    instruction: str
    spec: Mapping[str, Any]
    directory: str | None = None
    session_id: str | None = None
    lane: str | None = None
    model: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    idempotency_key: str | None = None
    priority: int = DEFAULT_PRIORITY
    delay: float | None = None
    deadline: float | None = None
    labels: tuple[str, ...] = ()
    host: str | None = None
    images: tuple[tuple[str, bytes], ...] = ()
    bundles: Mapping[str, tuple[Mapping[str, Any], Sequence[bytes]]] = field(default_factory=dict[str, Any])

    def check(self) -> None:
        """Make sure that it makes sense.

        Raises:
            InvalidInput: It does not.
        """
        if not FIRST_PRIORITY <= self.priority <= LAST_PRIORITY:
            raise InvalidInput(
                f"priority is {self.priority}. Use {FIRST_PRIORITY}, which comes first, to {LAST_PRIORITY}.",
                parameter="priority",
            )
        for name, seconds in (("delay", self.delay), ("deadline", self.deadline)):
            if seconds is not None and not (0 <= seconds <= _LONGEST_DELAY and math.isfinite(seconds)):
                raise InvalidInput(f"{name} is {seconds}. Use seconds from now, up to a year.", parameter=name)
        for label in self.labels:
            checked_name(label, "A label")
        refuse_secrets([self.instruction, dict(self.spec), dict(self.metadata), self.idempotency_key])


def refuse_secrets(content: Any) -> None:
    """Refuse to store a secret in the database of a fleet, where each of its machines can read it.

    Raises:
        InvalidInput: There seems to be one.
    """
    if redact_value(content) != content:
        raise InvalidInput(
            "This looks as if it held a secret, which would be stored in the fleet's database. Have the agent read it from "
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
            "labels": named_labels(self.labels),
            "agents": sorted(self.agents),
            "agentVersions": {agent: version for agent, version in sorted(self.agents.items()) if version},
            "version": self.version,
            "seenSecondsAgo": round(self.seen_seconds_ago, 1),
        }


class AskedInFleet(Value, frozen=True, kw_only=True):
    """Open question. `refused` says why the last answer was invalid."""

    task: str
    session_id: str | None
    machine: str | None
    asked_at: datetime
    expires_at: datetime | None
    question: Question
    refused: str | None = None


class FleetEvents(Value, frozen=True, kw_only=True):
    """Events of a task from an offset on: `events` are `Event`s, or the fleet's own facts as dictionaries."""

    events: tuple[Any, ...]
    offset: int
    """Offset to continue from."""
    is_over: bool
    """True if nothing follows: the task has ended, and everything has stopped."""
