"""A turn as the agent's own storage has it, read back when nobody was there to hear its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from helmsman.model.events import Failure, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """What is recorded of a turn. `open` is one whose end is not. Codex 0.93 records no `turn_id`.

    `forgotten` is one that the session was taken back from.
    """

    turn_id: str | None = None
    outcome: Literal["completed", "failed", "interrupted", "open"]
    message: str | None = None
    error: Failure | None = None
    usage: Usage | None = None
    model: str | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    last_written_at: datetime | None = None
    forgotten: bool = False
