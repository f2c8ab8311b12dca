"""Cost and working time of listed sessions.

A loaded session knows its own. Tasks know it immediately if all turns of a session were tasks. For the rest, the
agents' files are summed up in the background, at most once a minute while the page is open.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helmsman.capabilities.usage_report import tokens
from helmsman.errors import HelmsmanError
from helmsman.model.events import ModelUsage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.usage_report import UsageGroup
    from helmsman.service import HelmsmanService
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 60.0


class SessionSpendings:
    """Knows it for the sessions of a Helmsman."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm
        self._known: Mapping[str, UsageGroup] = {}
        self._read_at = -_EVERY_SECONDS
        self._reading = False

    def now(self) -> Mapping[str, UsageGroup]:
        """Return the known costs of all sessions, by id."""
        if not self._reading and time.monotonic() - self._read_at >= _EVERY_SECONDS:
            self._reading = True
            self._helm.in_background(self._read)
        return self._known

    async def _read(self) -> None:
        try:
            report = await self._helm.extras.usage.report(group_by="session")
            self._known = {group.key: group for group in report.groups if group.key is not None}
        except HelmsmanError as error:
            log.warning("what sessions have cost is not known: %s", error)
        finally:
            self._read_at = time.monotonic()
            self._reading = False

    def of(self, session_id: str, tasks: Sequence[Task], known: Mapping[str, UsageGroup]) -> dict[str, Any]:
        """Return the fields of one session."""
        turns = [task for task in tasks if not task.is_waiting]
        ends = ((task, task.completed_at or datetime.now(UTC)) for task in turns)
        seconds = sum((end - task.created_at).total_seconds() for task, end in ends)
        shown: dict[str, Any] = {"seconds": round(seconds, 1) if turns else None}
        session = self._helm.sessions.get(session_id)
        if session is not None:
            parts = session.state.usage_by_model
            return shown | _spent(tokens(session.usage), self._helm.tasks.prices.cost_of(parts))
        spent = known.get(session_id)
        if spent is not None and spent.turns >= sum(task.usage is not None for task in turns):
            return shown | _spent(spent.tokens, spent.cost_usd)
        usages = [ModelUsage(task.model, task.usage) for task in turns if task.usage is not None]
        return shown | _spent(sum(tokens(one.usage) for one in usages), self._helm.tasks.prices.cost_of(usages))


def _spent(used: int, cost: float | None) -> dict[str, Any]:
    return {"tokens": used, "costUsd": cost} if used else {}
