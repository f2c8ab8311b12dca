"""Budgets of a fleet: amounts in its database, counted over all its machines.

Amounts and grants work as on one machine (`helmsman.capabilities.budgets`), and a machine that runs a task checks these
budgets at the same moments. It stores the usage of the task, under its epoch, before it reads the sums: of two machines
that spend concurrently, one sees both. Prices are those of the machine that runs a task. Days are in UTC, by the
database's clock.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.budget import Budget
from helmsman.capabilities.budgets import BudgetState
from helmsman.capabilities.usage_report import tokens
from helmsman.errors import InvalidSetting
from helmsman.fleet.values import PLACE, PROJECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.rows import DictRow

    from helmsman.fleet.database import FleetDatabase
    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.model.events import Usage
    from helmsman.tasks.prices import Prices

NONE: Final = "none"
"""Value that removes an amount."""

# With `greatest`, because a report that arrives late must not lower the sum.
_SPENT: Final = """
    insert into helmsman.spendings (task, epoch, part, project, usd, tokens)
    select id, epoch, %(part)s, %(project)s, %(usd)s, %(tokens)s
    from helmsman.queue where id = %(task)s and epoch = %(epoch)s
    on conflict (task, epoch, part) do update
    set usd = greatest(spendings.usd, excluded.usd), tokens = greatest(spendings.tokens, excluded.tokens)
    returning task
"""
_STATES: Final = """
    with spent as (
        select *, day = (clock_timestamp() at time zone 'UTC')::date as is_todays from helmsman.spendings
        where task = %(task)s or day = (clock_timestamp() at time zone 'UTC')::date
    )
    select key, amount, case when key like 'project_%%' then %(project)s::text end as project,
        (
            select coalesce(sum(case when key like '%%_usd' then usd else tokens end), 0) from spent
            where case when key like 'task_%%' then task = %(task)s
                when key like 'project_%%' then is_todays and project = %(project)s else is_todays end
        ) as used,
        (
            select max(up_to) from helmsman.grants given where given.key = budget.key and given.amount = budget.amount
            and case when given.key like 'task_%%' then given.task = %(task)s
                else given.day = (clock_timestamp() at time zone 'UTC')::date
                    and (given.key not like 'project_%%' or given.project = %(project)s) end
        ) as granted
    from helmsman.budget order by key
"""
_SHOWN: Final = """
    with spent as (
        select project, sum(usd) as usd, sum(tokens) as tokens from helmsman.spendings
        where day = (clock_timestamp() at time zone 'UTC')::date group by project
    ),
    used as (
        select key, amount, null as project,
            (select coalesce(sum(case when key like '%%_usd' then usd else tokens end), 0) from spent) as used
        from helmsman.budget where key like 'day_%%'
        union all
        select key, amount, project, case when key like '%%_usd' then usd else tokens end
        from helmsman.budget, spent
        where key like 'project_%%' and project is not null and (%(project)s::text is null or project = %(project)s)
    )
    select used.*, (
        select max(up_to) from helmsman.grants given where given.key = used.key and given.amount = used.amount
            and given.day = (clock_timestamp() at time zone 'UTC')::date and given.project is not distinct from used.project
    ) as granted
    from used order by project nulls first, key
"""
# The epoch keeps a machine that has lost the task from raising its budget.
_GRANT: Final = """
    insert into helmsman.grants (key, amount, up_to, project, task)
    select %(key)s, %(amount)s, %(up_to)s, %(project)s, id from helmsman.queue
    where id = %(task)s and epoch = %(epoch)s
    returning task
"""


def _state(row: DictRow) -> BudgetState:
    return BudgetState(
        key=row["key"],
        used=row["used"],
        budget=row["amount"],
        granted=row["granted"],
        project=row["project"],
        fleet=True,
    )


def _project_of(row: Mapping[str, Any]) -> str | None:
    """Return the project of a task."""
    project: str | None = row["metadata"].get(PROJECT) or row["metadata"].get(PLACE) or row["directory"]
    return project


class FleetBudgets:
    """Budgets of a fleet for the machine that runs its tasks, by that machine's own task ids."""

    def __init__(self, database: FleetDatabase, prices: Prices) -> None:
        self._database = database
        self._prices = prices
        self._tasks: dict[str, tuple[OwnedTask, int]] = {}
        """Tasks of the fleet by those of this machine, each with the number of its part."""

    def entered(self, local_id: str, owned: OwnedTask) -> None:
        """Record that a task of this machine is the next part of one of the fleet."""
        part = sum(one is owned for one, _ in self._tasks.values())
        self._tasks[local_id] = owned, part

    def left(self, owned: OwnedTask) -> None:
        """Record that a task no longer runs here."""
        self._tasks = {local_id: known for local_id, known in self._tasks.items() if known[0] is not owned}

    async def spent(self, local_id: str, model: str | None, usage: Usage) -> None:
        """Store the usage of a task as soon as the database is available."""
        if local_id not in self._tasks:
            return
        owned, part = self._tasks[local_id]
        values = {
            **self._about(owned),
            "part": part,
            "usd": self._prices.cost(model, usage) or 0.0,
            "tokens": tokens(usage),
        }
        # Money was spent already, so an outage must not lose the amount.
        await self._database.keep_trying(partial(self._database.one, _SPENT, values), "what was spent")

    async def states(self, local_id: str, model: str | None, usage: Usage) -> list[BudgetState]:
        """Return the use of each budget, including this usage of a task that runs here."""
        if local_id not in self._tasks:
            return []
        # Stored before the sums are read: of two machines that spend at the same time, one sees both.
        await self.spent(local_id, model, usage)
        look = partial(self._database.all, _STATES, self._about(self._tasks[local_id][0]))
        return [_state(row) for row in await self._database.keep_trying(look, "a budget")]

    async def grant(self, local_id: str, states: Sequence[BudgetState]) -> None:
        """Store a grant, up to the amount in the question."""
        owned, _ = self._tasks[local_id]
        for state in states:
            values = {"key": state.key, "amount": state.budget, "up_to": state.next_grant}
            grant = partial(self._database.one, _GRANT, {**self._about(owned), **values, "project": state.project})
            await self._database.keep_trying(grant, "what was granted")

    def _about(self, owned: OwnedTask) -> dict[str, Any]:
        return {"task": owned.id, "epoch": owned.epoch, "project": _project_of(owned.row)}


async def states_of_fleet(database: FleetDatabase, project: str | None = None) -> tuple[BudgetState, ...]:
    """Return today's use of the budget for all work, and of one project's, or of all projects with spending today."""
    rows = await database.soon(lambda: database.all(_SHOWN, {"project": project}))
    return tuple(_state(row) for row in rows)


async def budget_of_fleet(database: FleetDatabase) -> dict[str, float]:
    """Return the configured amounts."""
    rows = await database.soon(lambda: database.all("select key, amount from helmsman.budget order by key"))
    return {row["key"]: row["amount"] for row in rows}


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
