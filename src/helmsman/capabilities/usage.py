"""Report the spending of agents on this machine: tokens, and their cost if reported or if a price is known."""

from __future__ import annotations

import logging
import re
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.agents.registry import Spendings
from helmsman.base.files import is_inside
from helmsman.capabilities.usage_report import all_spendings, report
from helmsman.errors import InvalidInput, RegistryUnavailable
from helmsman.git.worktree import places, projects
from helmsman.model.events import ModelUsage
from helmsman.steering.turn_recovery import SpentTurn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.usage_report import GroupBy, Spending, UsageReport
    from helmsman.model.events import Usage
    from helmsman.steering.core import Steering
    from helmsman.tasks.prices import Prices
    from helmsman.tasks.registry import TurnUsage

log = logging.getLogger(__name__)

_AGO: Final = re.compile(r"(?P<count>[0-9]{1,5})(?P<unit>[hdwHDW])")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


class UsageReports:
    """Reports on the spending of these agents, in Helmsman and in other programs. Created by `capabilities.Extras`."""

    def __init__(self, helm: Steering, prices: Prices) -> None:
        self._helm = helm
        self._prices = prices
        self._spendings = Spendings(helm.agents, helm.settings, helm.environment)

    async def report(
        self, *, since: datetime | str | None = None, group_by: GroupBy = "day", agent: str | None = None
    ) -> UsageReport:
        """Tokens and cost since a time (a `datetime`, or as `parse_since` reads it; without one, all there ever was), of
        all agents or of one.

        Raises:
            InvalidInput: `since` is not a time, or there is no such agent.
        """
        agent = None if agent is None else self._helm.agents[agent].name
        begin = parse_since(since) if isinstance(since, str) else since
        if begin is not None and begin.tzinfo is None:
            begin = begin.astimezone()
        tasks = await self._tasks()
        return await anyio.to_thread.run_sync(partial(self._report, tasks, group_by, begin, agent))

    async def spent_since(self, since: datetime) -> list[Spending]:
        """Return the spending of each turn begun since then, including running ones.

        The project of a turn is its directory.
        """
        tasks = await self._tasks()
        running = self._helm.task_writer.used_by_turns()
        return await anyio.to_thread.run_sync(partial(self._spent_since, tasks, running, since.timestamp()))

    async def of_session(self, session_id: str) -> list[SpentTurn]:
        """Return what each turn of a session and of its sub-agents has spent."""
        tasks = await self._tasks()
        return await anyio.to_thread.run_sync(self._of_session, tasks, session_id)

    def _of_session(self, tasks: Sequence[TurnUsage], session_id: str) -> list[SpentTurn]:
        spendings = all_spendings(self._spendings.sessions(), tasks, names_turn=self._spendings.names)
        return [
            SpentTurn(one.turn_id, one.at, ModelUsage(one.model, one.usage), is_sub_agents=one.is_sub_agents)
            for one in spendings
            if one.session_id == session_id
        ]

    def _spent_since(self, tasks: Sequence[TurnUsage], running: Mapping[str, Usage], since: float) -> list[Spending]:
        project = projects(self._helm.settings.state_dir)
        spendings = all_spendings(
            self._spendings.sessions(since), tasks, project, running, names_turn=self._spendings.names
        )
        return [spending for spending in spendings if spending.at >= since]

    def _report(
        self, tasks: Sequence[TurnUsage], group_by: GroupBy, since: datetime | None, agent: str | None
    ) -> UsageReport:
        roots, place = self._helm.allowed_roots, places(self._helm.settings.state_dir)
        spendings = all_spendings(self._spendings.sessions(), tasks, place, names_turn=self._spendings.names)
        seen = (one for one in spendings if not roots or (one.directory and is_inside(one.directory, roots)))
        return report(seen, group_by, self._prices, since=since, agent=agent)

    async def _tasks(self) -> Sequence[TurnUsage]:
        await self._helm.task_writer.write()
        try:
            return await self._helm.task_writer.registry(lambda registry: registry.turn_usages())
        except RegistryUnavailable as error:
            log.warning("what only the task registry knows is left out: %s", error)
            return ()


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """Parse a time such as `24h`, `7d`, `2w` ago, a date (from local midnight), or a date with a time.

    Raises:
        InvalidInput: It is none of these.
    """
    now = now or datetime.now().astimezone()
    text = text.strip()
    try:
        if found := _AGO.fullmatch(text):
            return now - int(found["count"]) * _UNITS[found["unit"].lower()]
        given = datetime.fromisoformat(text)
        return given if given.tzinfo is not None else given.astimezone()
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(
            f"{text!r:.100} is not a time. Use one such as 24h, 7d, 2w, 2026-11-01 or 2026-11-01T09:30.",
            parameter="since",
        ) from None
