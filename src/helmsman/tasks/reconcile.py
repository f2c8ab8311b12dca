"""Check the registered state of a task against the evidence, and correct it.

A task is `working` because the process that follows it said so. When that process is gone, three witnesses are left: the
detached engine, which may still run it; the agent's own storage, which has the end of every turn that ended; and the time
since the last event. `reconcile` draws the conclusion. It is pure: the caller asks the witnesses.

The most important rule: nothing stays `working` for ever, and nothing is called `failed` that may still come to an end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from helmsman.model.events import USAGE_LIMIT
from helmsman.tasks.model import TaskChanges

if TYPE_CHECKING:
    from datetime import datetime

    from helmsman.agents.protocol import RecordedTurn
    from helmsman.tasks.model import Task

WAITS: Final = timedelta(days=7)
"""Longest time that a task waits for a client that can run it."""
WAITING: Final = (
    "It was acknowledged by a hub that ended before it began. It begins by itself when a client connects that has the "
    "same environment and settings as the one that asked for it; cancel it if it is not wanted any more."
)

GRACE: Final = timedelta(seconds=10)
"""Grace period: a Codex whose parent has died records the end of its turn a moment later; some versions finish the turn
first.
"""

CLOCK_SKEW: Final = timedelta(seconds=2)


def reconcile(
    task: Task, turn: RecordedTurn | None, now: datetime, agent: str, *, engine_alive: bool | None = None
) -> TaskChanges | None:
    """Return the changes for `Registry.update` of a task without a living owner, or None if it is correct.

    Cloud tasks are left alone: only the cloud knows about them.

    Args: task: The task. turn: The record of the turn that it names or, if one of both has no id, of the likeliest. now: The
    time. agent: The agent's name in sentences. engine_alive: Whether its detached engine runs; None if it has none.
    """
    if task.origin == "cloud" or task.has_ended:
        return None
    if task.is_waiting:
        return _of_waiting(task, now)
    turn = _own_turn(task, turn)
    if turn is not None and turn.outcome != "open":
        return None if may_go_on(task, turn) else _ended(task, turn, now, agent)
    if engine_alive and (turn is not None or task.turn_id is not None):
        return None if task.status == "working" else TaskChanges(status="working")
    # Ignore signs from the future: the clock was set back. Allow for an engine that has not recorded its input yet.
    may_be_known = engine_alive is None or (engine_alive and task.status == "working")
    if task.is_running and may_be_known and abs(now - _last_sign_of(task, turn)) < GRACE:
        return None
    if turn is not None:
        return _lost(task, agent)
    if task.status == "unknown" or (engine_alive and task.input_position is not None):
        return None  # the next hub asks the agent's supervisor how much input it received
    return TaskChanges(status="unknown", note=_what_is_known(task, agent))


def may_go_on(task: Task, turn: RecordedTurn) -> bool:
    """Return whether a usage limit ended the turn while no hub ran, and its caller wants it to resume, or to be asked.

    The next hub does that (`helmsman.capabilities.limits`).
    """
    reached = turn.outcome == "failed" and turn.error is not None and turn.error.code == USAGE_LIMIT
    return task.is_hubs and task.engine is not None and reached and task.on_limit in ("ask", "wait")


def _of_waiting(task: Task, now: datetime) -> TaskChanges | None:
    if now - (task.resumes_at or task.created_at) > WAITS:
        note = f"It never began: no client came in {WAITS.days} days with the environment it was asked from. Start it again."
        return TaskChanges(status="canceled", note=note, idempotency_key=None)
    return None if task.note is not None else TaskChanges(note=WAITING)


def _own_turn(task: Task, turn: RecordedTurn | None) -> RecordedTurn | None:
    """A turn that is not known by its id is this task's only if it did not begin before the task did."""
    if turn is None or (task.turn_id is not None and turn.turn_id is not None):
        return turn
    began = turn.began_at is not None and turn.began_at >= task.created_at - CLOCK_SKEW
    return turn if began else None


def _ended(task: Task, turn: RecordedTurn, now: datetime, agent: str) -> TaskChanges:
    changes = TaskChanges(completed_at=turn.ended_at or now)
    if turn.message is not None:
        changes["result"] = turn.message
    if turn.usage is not None:
        changes["usage"] = task.used_before + turn.usage
    if turn.model is not None:
        changes["model"] = turn.model
    if turn.turn_id is not None:
        changes["turn_id"] = turn.turn_id
    if turn.outcome == "completed":
        changes["status"] = "completed"
    elif turn.outcome == "interrupted":
        changes["status"] = "canceled"
        changes["note"] = "The turn was interrupted. Send the session a message to go on."
    else:
        error = turn.error
        changes["status"] = "failed"
        changes["error"] = {
            "code": "turn_failed" if error is None else error.code,
            "message": f"{agent} ended the turn as failed and did not say why." if error is None else error.message,
            "retryable": error is not None and error.retryable,
        }
    return changes


def _lost(task: Task, agent: str) -> TaskChanges:
    message = f"{agent} was stopped in the middle of this turn, and nothing is left that could finish it. "
    message += f"Send the session {task.session_id or ''} a message such as “continue” to go on.".replace("  ", " ")
    return TaskChanges(status="failed", error={"code": "engine_lost", "message": message, "retryable": True})


def _what_is_known(task: Task, agent: str) -> str:
    owner = "The process that followed this task has ended"
    if task.session_id is None:
        return f"{owner} before a session had begun, so it probably never ran. Start it again if it is still wanted."
    if task.turn_id is None:
        return f"{owner} before {agent} had begun the turn. Look at session {task.session_id} before starting it again."
    return f"{owner}, and {agent}'s storage does not tell of its turn. Look at session {task.session_id} for what was done."


def _last_sign_of(task: Task, turn: RecordedTurn | None) -> datetime:
    written = None if turn is None else turn.last_written_at
    return max(time for time in (task.updated_at, task.last_event_at, written) if time is not None)
