"""Budgets of a fleet: amounts in its database, counted over the tasks of all its machines.

Amounts and grants work as on one machine (`helmsman.capabilities.budgets`), and a machine that runs a task checks these
budgets at the same moments. It stores the usage of the task, under its epoch, before it reads the sums: of two machines
that spend concurrently, one sees both. Usage has the prices of the machine that looks. Days are in UTC, by the database's
clock; a task counts for the day of its last change.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from helmsman.base.budget import Budget
from helmsman.capabilities.budgets import BudgetState
from helmsman.capabilities.usage_report import tokens
from helmsman.errors import InvalidSetting
from helmsman.fleet.owned_task import NotOwner
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.rows import DictRow

    from helmsman.fleet.database import FleetDatabase
    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.tasks.model import TaskChanges
    from helmsman.tasks.prices import Prices

NONE: Final = "none"
"""Value that removes an amount."""

# A sum for each model, because models have different prices, and for usage with a cost that its agent has reported.
_SPENT: Final = """
    with spent as (
        select project, model, id = %(task)s as is_own, usage::jsonb as usage,
            updated_at >= extract(epoch from date_trunc('day', clock_timestamp(), 'UTC')) * 1000000 as is_todays
        from helmsman_store.tasks where usage is not null and (
            id = %(task)s
            or updated_at >= extract(epoch from date_trunc('day', clock_timestamp(), 'UTC')) * 1000000
        )
    )
    select project, model, is_own, is_todays,
        coalesce(sum((usage ->> 'inputTokens')::bigint), 0)::bigint as input,
        coalesce(sum((usage ->> 'cachedInputTokens')::bigint), 0)::bigint as cached,
        coalesce(sum((usage ->> 'outputTokens')::bigint), 0)::bigint as output,
        coalesce(sum((usage ->> 'reasoningOutputTokens')::bigint), 0)::bigint as reasoning,
        sum((usage ->> 'costUsd')::float) as cost
    from spent group by project, model, is_own, is_todays, jsonb_exists(usage, 'costUsd')
"""
_GRANTED: Final = """
    select key, amount, project, max(up_to) as up_to from helmsman.grants
    where case when key like 'task_%%' then task = %(task)s
        else day = (clock_timestamp() at time zone 'UTC')::date end
    group by key, amount, project
"""
# The epoch keeps a machine that has lost the task from raising its budget.
_GRANT: Final = """
    insert into helmsman.grants (key, amount, up_to, project, task)
    select %(key)s, %(amount)s, %(up_to)s, %(project)s, id from helmsman_store.tasks
    where id = %(task)s and epoch = %(epoch)s
    returning task
"""


class _Used(NamedTuple):
    """The amounts, and what today's tasks and one task have used and were granted."""

    budget: Mapping[str, float]
    spent: Sequence[DictRow]
    granted: Sequence[DictRow]

    @classmethod
    async def read(cls, database: FleetDatabase, task_id: str | None = None) -> _Used:
        task = {"task": task_id}
        amounts = await database.all("select key, amount from helmsman.budget order by key")
        spent, granted = await database.all(_SPENT, task), await database.all(_GRANTED, task)
        return cls({row["key"]: row["amount"] for row in amounts}, spent, granted)

    def states(self, prices: Prices, project: str | None, scopes: Sequence[str]) -> list[BudgetState]:
        """Return the use of each budget with one of these scopes."""
        return [
            self._state(prices, key, amount, project if key.startswith("project_") else None)
            for key, amount in self.budget.items()
            if key.rpartition("_")[0] in scopes
        ]

    def _state(self, prices: Prices, key: str, amount: float, project: str | None) -> BudgetState:
        used = 0.0
        for row in self.spent:
            counts = row["is_own"] if key.startswith("task_") else row["is_todays"]
            if counts and (not key.startswith("project_") or row["project"] == project):
                usage = Usage(row["input"], row["cached"], row["output"], row["reasoning"], row["cost"])
                used += (prices.cost(row["model"], usage) or 0.0) if key.endswith("_usd") else tokens(usage)
        about = key, amount, project
        grants = [row["up_to"] for row in self.granted if (row["key"], row["amount"], row["project"]) == about]
        granted = max(grants, default=None)
        return BudgetState(key=key, used=used, budget=amount, granted=granted, project=project, fleet=True)


class FleetBudgets:
    """Budgets of a fleet for the machine that runs its tasks, by that machine's own task ids."""

    def __init__(self, database: FleetDatabase, prices: Prices) -> None:
        self._database = database
        self._prices = prices
        self._tasks: dict[str, OwnedTask] = {}
        """Tasks of the fleet by those of this machine, of which several may carry out one."""
        self._used: dict[str, Usage] = {}
        self._stored: dict[str, Usage] = {}
        """What is stored, by the fleet's task ids."""
        self._storing = anyio.Lock()

    def entered(self, local_id: str, owned: OwnedTask) -> None:
        """Record that a task of this machine carries out one of the fleet."""
        self._tasks[local_id] = owned

    def left(self, owned: OwnedTask) -> None:
        """Record that a task no longer runs here."""
        self._tasks = {local_id: known for local_id, known in self._tasks.items() if known is not owned}
        self._used = {local_id: usage for local_id, usage in self._used.items() if local_id in self._tasks}
        self._stored.pop(owned.id, None)

    async def spent(self, local_id: str, model: str | None, usage: Usage) -> None:
        """Store the usage of a task that runs here, in addition to that of earlier attempts."""
        if (owned := self._tasks.get(local_id)) is None:
            return
        # A report that arrives late must not lower the sum.
        self._used[local_id] = max(usage, self._used.get(local_id, Usage()), key=tokens)
        async with self._storing:
            total = sum((used for one, used in self._used.items() if self._tasks[one] is owned), owned.used_before)
            if total == self._stored.get(owned.id):
                return
            changes: TaskChanges = {"usage": total, "model": model}
            with suppress(NotOwner):
                await self._database.keep_trying(partial(owned.update, **changes), "what was spent")
            self._stored[owned.id] = total

    async def states(self, local_id: str, model: str | None, usage: Usage) -> list[BudgetState]:
        """Return the use of each budget, including this usage of a task that runs here."""
        if (owned := self._tasks.get(local_id)) is None:
            return []
        # Stored before the sums are read: of two machines that spend at the same time, one sees both.
        await self.spent(local_id, model, usage)
        look = partial(_Used.read, self._database, owned.id)
        used = await self._database.keep_trying(look, "a budget")
        return used.states(self._prices, owned.row["project"], ("day", "project_day", "task"))

    async def grant(self, local_id: str, states: Sequence[BudgetState]) -> None:
        """Store a grant, up to the amount in the question."""
        owned = self._tasks[local_id]
        for state in states:
            about = {"task": owned.id, "epoch": owned.epoch, "project": state.project}
            values = {**about, "key": state.key, "amount": state.budget, "up_to": state.next_grant}
            grant = partial(self._database.one, _GRANT, values)
            await self._database.keep_trying(grant, "what was granted")


async def budget_of_fleet(
    database: FleetDatabase, prices: Prices, project: str | None = None
) -> tuple[Mapping[str, float], tuple[BudgetState, ...]]:
    """Return the amounts, and today's use for all work and for one project, or for all projects with spending today."""
    used = await database.soon(lambda: _Used.read(database))
    spending = dict.fromkeys(row["project"] for row in used.spent if row["project"] is not None)
    states = used.states(prices, None, ("day",))
    for one in sorted(spending) if project is None else (project,):
        states += used.states(prices, one, ("project_day",))
    return used.budget, tuple(states)


async def set_budget(database: FleetDatabase, given: Mapping[str, str]) -> None:
    """Set amounts, or remove them (`NONE`). All or nothing.

    Raises:
        InvalidSetting: One is invalid; nothing was changed.
    """
    amounts = {key: None if value == NONE else _number(value) for key, value in given.items()}
    # Removed keys are checked, too, so that a misspelt one is an error.
    set_ = {key: 1 if amount is None else amount for key, amount in amounts.items()}
    Budget.read(set_, Path("the fleet"))

    async def write() -> None:
        async with database.connection() as connection, connection.transaction():
            for key, amount in amounts.items():
                # Delete and insert, in one transaction: readers see the old or the new amount.
                await connection.execute("delete from helmsman.budget where key = %s", (key,))
                if amount is not None:
                    await connection.execute("insert into helmsman.budget values (%s, %s)", (key, amount))

    await database.soon(write)


def _number(text: str) -> float:
    try:
        # Tokens are whole numbers; a float would be refused as such.
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise InvalidSetting(f"{text!r:.100} is no amount. Use a number, or {NONE}.") from None
