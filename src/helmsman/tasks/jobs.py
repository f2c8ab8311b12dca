"""Jobs: tasks that run turns of sessions, each of which is a separate task.

The job's task holds the request. Each finished step is stored (`Registry.keep_step`), so that the next hub resumes there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from helmsman.base.structs import Value


class TurnGate(Value, frozen=True, kw_only=True):
    """Step of a job before one of its turns begins (`helmsman.capabilities.repository_commands.HeldTurn`).

    `note` describes it while it lasts. With `only_asks` the turn does not reach the agent: Helmsman only asks a question in
    the session.
    """

    note: str
    do: Callable[[Any], Awaitable[Any]]
    only_asks: bool = False


@dataclass(slots=True)
class RunningJob:
    """Job that runs here.

    `sessions` are those with turns that it has run; `changed` is set when one of them asks. `gates` are the steps of its
    procedure before a turn begins, by the task of that turn.
    """

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    sessions: dict[str, None] = field(default_factory=dict)
    gates: dict[str, TurnGate] = field(default_factory=dict)
    ended: anyio.Event = field(default_factory=anyio.Event)
    changed: anyio.Event = field(default_factory=anyio.Event)
    cancel_reason: str | None = None

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()
