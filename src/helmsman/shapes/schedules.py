"""Schedules as front ends accept and show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from helmsman.base.json_values import present, utc_time
from helmsman.base.sanitize import exact
from helmsman.model.options import (
    DEFAULT_AGENT,
    ApprovalPolicy,
    SandboxMode,
    SessionOptions,
    approval_word,
    sandbox_word,
)
from helmsman.model.question_text import GUTTER
from helmsman.model.request import TurnRequest
from helmsman.shapes.contract import Input

if TYPE_CHECKING:
    from helmsman.schedules.store import Schedule, ScheduleRun


class ScheduleTerms(Input):
    """Times of a schedule, and options of its runs."""

    cron: str | None = Field(None, description="Five fields, e.g. 0 7 * * 1-5.")
    every: str | None = Field(None, description="An interval, e.g. 2h.")
    at: str | None = Field(None, description="Once, e.g. tomorrow 6:00, 2027-01-31 09:00, in 90 minutes.")
    timezone: str | None = Field(None, description="What cron and at mean, e.g. Europe/Berlin. Default: the machine's.")
    working_directory: str | None = Field(None, description="Where, e.g. /src/app. Default: where the server started.")
    agent: str | None = Field(None, description="Who does it, e.g. claude.")
    model: str | None = Field(None, description="As for {tool}_start; so are the next ones.")
    approval_policy: ApprovalPolicy | None = None
    sandbox: SandboxMode | None = None
    unenforced: bool = False
    trust_repository: bool = False
    worktree: bool = False
    missed: Literal["run", "skip"] = Field(
        "run", description="Times the machine slept through: run makes up for them with one run."
    )
    overlap: bool = Field(False, description="Begin even while the run before still works.")
    max_cost_usd: float | None = Field(None, gt=0, description="Stop a run that has cost more.")

    def options(self, agent: str = DEFAULT_AGENT) -> dict[str, Any]:
        """Return the options by their library names."""
        own = set(ScheduleTerms.model_fields) - {"working_directory"}
        return {"cwd": self.working_directory, "agent": agent, **self.model_dump(include=own, exclude_none=True)}


class NewScheduleInput(ScheduleTerms):
    """Schedule to add."""

    prompt: str = Field(min_length=1)


def what_begins(schedule: Schedule) -> str:
    """Return everything that confirming a proposed schedule allows."""
    shown = schedule_as_dict(schedule)
    request = TurnRequest.unpacked(schedule.spec)
    max_cost = None if request is None else request.max_cost_usd
    facts = {
        "When": shown["when"],
        "Directory": shown["cwd"],
        "Agent": shown["agent"],
        "Sandbox": shown.get("sandbox", "as configured"),
        "Asks": shown.get("approvalPolicy", "as configured"),
        "Sandbox not enforced": "yes" if shown.get("enforced") is False else None,
        "Trusts the repository": "yes" if request is not None and request.options.trust_repository else None,
        "Costs at most": None if max_cost is None else f"${max_cost:g} a run",
    }
    lines = [f"{name}: {exact(str(value))}" for name, value in facts.items() if value is not None]
    # The prompt is a model's text: it comes last and with a margin, so that it cannot imitate the lines above.
    work = "\n".join(f"{GUTTER}{exact(line)}" for line in schedule.prompt.split("\n"))
    return "\n".join(["Start this work automatically, without you present?", *lines, "Work:", work])


def schedule_as_dict(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule: its prompt, times and options."""
    request, when = TurnRequest.unpacked(schedule.spec), schedule.when
    # A request that cannot be read leaves the schedule listed, so that it can be removed.
    options = SessionOptions() if request is None else request.options
    shown = {
        "scheduleId": schedule.id,
        "status": standing(schedule),
        "proposedBy": schedule.proposed_by,
        "prompt": schedule.prompt,
        "when": str(when),
        "cron": when.cron,
        # JSON has no durations.
        "everySec": None if when.every is None else int(when.every.total_seconds()),
        "at": utc_time(when.at),
        "timezone": when.timezone,
        "nextAt": utc_time(schedule.next_at),
        "cwd": schedule.directory,
        "agent": None if request is None else options.agent,
        "model": options.model,
        "approvalPolicy": approval_word(options.asks),
        "sandbox": sandbox_word(options.writes),
        "enforced": False if options.unenforced else None,
        "worktree": True if request is not None and request.worktree else None,
        "missed": schedule.missed,
        "overlap": schedule.overlap or None,
        "maxCostUsd": None if request is None else request.max_cost_usd,
        "createdAt": utc_time(schedule.created_at),
        "lastRun": None if schedule.last is None else run_as_dict(schedule.last),
    }
    return present(shown)


def run_as_dict(run: ScheduleRun) -> dict[str, Any]:
    """Return one due time with its task, or the reason why it has no task."""
    shown = {
        "dueAt": utc_time(run.due_at),
        "enteredAt": utc_time(run.entered_at),
        "taskId": run.task_id,
        "note": run.note,
    }
    return present(shown)


def standing(schedule: Schedule) -> str:
    """Return `active`, `paused`, `proposed` until a user confirms it, or `over` if it is never due again."""
    if schedule.proposed_by is not None:
        return "proposed"
    if schedule.is_paused:
        return "paused"
    return "over" if schedule.next_at is None else "active"
