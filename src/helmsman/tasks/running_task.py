"""Running tasks of this process: usage, progress and end of their turns; and jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import structs

from helmsman.base.json_values import present
from helmsman.base.structs import Value
from helmsman.model.events import Usage
from helmsman.sessions.progress import infer_progress
from helmsman.tasks.model import TIMED_OUT, TaskChanges, task_status_of

if TYPE_CHECKING:
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task


@dataclass(slots=True)
class RunningTask:
    """For the ledger, which writes."""

    id: str
    session: Session
    before: Usage = field(default_factory=Usage)
    """Known usage before this turn, or before the task was taken over."""
    taken_over: Task | None = None
    """The task as the process that began it left it. Its usage before the takeover is only in Codex's own record."""
    note_if_stopped: str | None = None
    note_if_over: str | None = None
    later: TaskChanges | None = None
    """Changes to write when its turn ends and the same task resumes later."""
    engine: str | None = None
    """The detached engine that its turn is, or was, in."""

    @property
    def used(self) -> Usage:
        """Tokens spent in its turn, without those of sub-agents."""
        return self.session.state.turn_usage

    @property
    def spent(self) -> Usage:
        """Tokens spent so far, with those of sub-agents."""
        return self.before + self.used + self.session.state.sub_agents_usage

    def progress(self) -> dict[str, Any] | None:
        """Return the progress of its turn."""
        session = self.session
        if not session.state.is_running:
            return None
        progress = infer_progress(session.items, turn_seconds=session.turn_seconds)
        shown = {
            "text": progress.text,
            "done": progress.done,
            "total": progress.total,
            "unit": progress.unit,
            "percent": progress.percent,
            "etaSeconds": progress.eta_seconds,
            "now": {name: value for name, value in structs.asdict(progress.now).items() if value} or None,
            "steps": [structs.asdict(step) for step in progress.steps] or None,
        }
        return present(shown)

    def ending(self) -> TaskChanges:
        """Return the changes at the end of its turn."""
        session, error, now = self.session, self.session.error, datetime.now(UTC)
        if self.later is not None:
            pausing: TaskChanges = {"turn_id": session.state.turn_id, "last_event_at": now, "usage": self.spent}
            return {**pausing, "progress": None, "input_required": False, **self.later}
        ending: TaskChanges = {
            "status": task_status_of(session.state.between_turns or session.status),
            "turn_id": session.state.turn_id,
            "model": session.model,
            "last_event_at": now,
            "completed_at": now,  # not when it is written: the session's next turn begins after this
            "result": session.result,
            "usage": self.spent,
            "progress": None,
        }
        note = self.note_if_stopped if session.status == "interrupted" else self.note_if_over
        missed = session.state.timed_out_note
        if note is not None or missed is not None:
            ending["note"] = " ".join(filter(None, (note, missed)))
        if missed is not None:
            ending["metadata"] = {TIMED_OUT: list(session.state.timed_out)}
        if error is not None:
            ending["error"] = {"code": error.code, "message": error.message, "retryable": error.retryable}
        return ending


class TurnGate(Value, frozen=True, kw_only=True):
    """Step of a job before one of its turns begins (`helmsman.capabilities.held_turns`); `note` describes it while it lasts.

    With `only_asks` the turn does not reach the agent: Helmsman only asks a question in the session.
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
