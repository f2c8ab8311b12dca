"""A task that is running here: what its turn has used, how far it has come, what is written down of its end; and jobs."""

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
    """What it is known to have used before this turn, or before it was taken over."""
    taken_over: Task | None = None
    """As another process left it that began it: what it used before we came is in Codex's own record only."""
    note_if_stopped: str | None = None
    note_if_over: str | None = None
    later: TaskChanges | None = None
    """What is written down of it when its turn ends and it goes on later, as the same task."""
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
        """How far it has come."""
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
        """What changes with the end of its turn."""
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
    """What a job does before one of its turns begins (`helmsman.capabilities.held_turns`); `note` says so while it lasts.

    With `only_asks` the turn is none of its agent's: Helmsman itself asks something in the session, and that is all.
    """

    note: str
    do: Callable[[Any], Awaitable[Any]]
    only_asks: bool = False


@dataclass(slots=True)
class RunningJob:
    """A job while it runs here.

    `sessions` are those whose turns it has run; `changed` is set when one of them asks. `gates` are what its procedure does
    before a turn begins, by the task of that.
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
