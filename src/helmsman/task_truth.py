"""What is true of a task whose process may be gone: asks the witnesses that `helmsman.tasks.reconcile` judges.

They are the process that followed it, the detached engine that may still run it, and Codex's own record of the turn.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman.engines import engine_is_alive, past_turn
from helmsman.tasks.reconcile import CLOCK_SKEW, Truth, TurnTruth, reconcile

if TYPE_CHECKING:
    from helmsman.engine import SessionInfo
    from helmsman.engines import SessionIndex
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task, TaskChanges


class TaskTruth:
    """Finds out. Everything here is read from disk, on a thread."""

    def __init__(self, settings: Settings, index: SessionIndex) -> None:
        self._settings = settings
        self._index = index

    async def changes(self, task: Task) -> TaskChanges | None:
        """What the registry has to change of a local task, or None if it is right."""
        return await anyio.to_thread.run_sync(self._changes, task)

    async def find(self, session_id: str) -> SessionInfo | None:
        """A session on disk."""
        return await anyio.to_thread.run_sync(self._index.find, session_id)

    async def turn(self, session_id: str, turn_id: str | None = None) -> TurnTruth | None:
        """What Codex has written down of a turn, of the last one by default."""
        return await anyio.to_thread.run_sync(self._turn, session_id, turn_id, None)

    def _changes(self, task: Task) -> TaskChanges | None:
        if task.owner is not None and task.owner.is_alive():
            return None
        truth = Truth(
            owner_alive=False,
            engine_alive=None if task.engine is None else engine_is_alive(self._settings, task.engine),
            turn=None if task.session_id is None else self._turn(task.session_id, task.turn_id, _begun_since(task)),
        )
        return reconcile(task, truth, datetime.now(UTC))

    def _turn(self, session_id: str, turn_id: str | None, since: datetime | None) -> TurnTruth | None:
        info = self._index.find(session_id)
        turn = None if info is None or info.path is None else past_turn(info.path, turn_id, since=since)
        if turn is None:
            return None
        return TurnTruth(
            outcome=turn.outcome,
            message=turn.message,
            error=turn.error,
            usage=turn.usage,
            model=turn.model,
            turn_id=turn.turn_id,
            began_at=turn.began_at,
            ended_at=turn.ended_at,
            last_written_at=turn.last_written_at,
        )


def _begun_since(task: Task) -> datetime:
    """When its turn can have begun at the earliest."""
    return task.created_at - CLOCK_SKEW
