"""Reports of what agents have spent."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from helmsman.base.json_values import iso_time
from helmsman.capabilities.usage_report import GroupBy, merged
from helmsman.model.nature import READS
from helmsman.operations.table import OperationCall, operation
from helmsman.shapes.contract import Input, Output
from helmsman.shapes.rendering import budget_as_dict, spent_as_dict

_MOST_GROUPS: Final = 100
_GROUPS_IN_WORDS: Final = 20
UNKNOWN: Final = "unknown"


class UsageInput(Input):
    since: str | None = Field(
        None,
        description="Only turns begun since then, e.g. 24h, 7d, 2w or 2026-11-01. Default: all.",
    )
    group_by: GroupBy = Field("day", description="What to sum up by, e.g. model.")
    agent: str | None = Field(None, description="Only of this agent, e.g. claude. Default: all.")


class Spent(Output):
    sessions: int
    turns: int
    input_tokens: int
    cached_input_tokens: int = Field(description="Part of the input.")
    output_tokens: int
    reasoning_output_tokens: int = Field(description="Part of the output.")
    cost_usd: float | None = Field(None, description="As the agent tells it, else at list prices. Absent: unknown.")
    unpriced_tokens: int | None = Field(None, description="Not in costUsd.")


class SpentBy(Spent):
    key: str = Field(description=f"The day, model, directory, session or agent; {UNKNOWN} where that is not known.")


class BudgetOutput(Output):
    key: str = Field(description="As in [budget] of helmsman.toml, e.g. project_day_usd.")
    used: float
    budget: float
    unit: str
    granted: float | None = Field(None, description="It was allowed up to here.")
    project: str | None = None
    fleet: bool | None = Field(None, description="It is for all machines of the fleet.")
    is_used_up: bool


class UsageReportOutput(Output):
    group_by: GroupBy
    since: str | None = None
    agent: str | None = None
    groups: list[SpentBy] = Field(description="Days oldest first; all else by tokens, most first.")
    others: Spent | None = Field(None, description="The sum of groups too many to list.")
    total: Spent = Field(description="The groups and the others.")
    unpriced_models: list[str] | None = Field(None, description="Without a known price; helmsman.toml can set one.")
    budgets: list[BudgetOutput] | None = Field(None, description="What is used of each today.")


def _in_words(output: UsageReportOutput) -> str:
    budgets = [f"{one.key}: {one.used:g} of {one.budget:g} {one.unit}" for one in output.budgets or ()]
    if not output.groups:
        return "\n".join(["Nothing was spent.", *budgets])
    # Days are oldest first: the recent ones matter. Other groups begin with the largest.
    shown = output.groups[-_GROUPS_IN_WORDS:] if output.group_by == "day" else output.groups[:_GROUPS_IN_WORDS]
    lines = [f"{group.key}: {_line(group)}" for group in shown]
    return "\n".join([*lines, f"total: {_line(output.total)}", *budgets])


def _line(spent: Spent) -> str:
    cost = "" if spent.cost_usd is None else f", ${spent.cost_usd:.2f}"
    return f"{spent.input_tokens} in ({spent.cached_input_tokens} cached), {spent.output_tokens} out{cost}"


@operation("{tool}_usage", "See what {agent} has spent", READS, _in_words)
async def usage(call: OperationCall, args: UsageInput) -> UsageReportOutput:
    """Tokens that agents have spent on this machine, with their cost where it is known: of all sessions, also those
    made in the terminal. For what is left of the rate limit use {tool}_account; for one running session,
    {tool}_status."""
    report = await call.helm.extras.usage.report(since=args.since, group_by=args.group_by, agent=args.agent)
    budgets = await call.helm.extras.budgets.states()
    # The rest is summed up, so that groups and others still add up to the total.
    listed, rest = report.first(_MOST_GROUPS)
    return UsageReportOutput(
        group_by=report.group_by,
        since=iso_time(report.since),
        agent=report.agent,
        groups=[SpentBy.model_validate({"key": group.key or UNKNOWN, **spent_as_dict(group)}) for group in listed],
        others=Spent.model_validate(spent_as_dict(merged(rest))) if rest else None,
        total=Spent.model_validate(spent_as_dict(report.total)),
        unpriced_models=list(report.unpriced_models) or None,
        budgets=[BudgetOutput.model_validate(budget_as_dict(state)) for state in budgets] or None,
    )
