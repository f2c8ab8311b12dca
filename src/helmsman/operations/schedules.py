"""Scheduled work."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import Field

from helmsman.errors import InvalidInput
from helmsman.model.nature import ACTS
from helmsman.operations.table import Deferred, OperationCall, operation
from helmsman.operations.texts import CODEX
from helmsman.shapes.contract import Output
from helmsman.shapes.schedules import ScheduleTerms, run_as_dict, schedule_as_dict, what_begins

ScheduleAction = Literal["add", "list", "show", "pause", "resume", "run_now", "remove"]


class ScheduleInput(ScheduleTerms):
    action: ScheduleAction = Field(description="What to do. add takes prompt and one of cron, every, at; list nothing.")
    schedule_id: str | None = Field(None, description="Which one, for all but add and list, e.g. S-3f2a9c1e.")
    prompt: str | None = Field(None, description='What each run is to do, e.g. "Look at last night\'s failures".')


class ScheduledRun(Output):
    due_at: str
    entered_at: str
    task_id: str | None = Field(None, description="Its task. Absent: note says why nothing was begun.")
    note: str | None = None


class ScheduleOutput(Output):
    schedule_id: str
    status: Literal["active", "paused", "over", "proposed"]
    proposed_by: str | None = Field(None, description="It begins nothing until a person confirms it.")
    prompt: str
    when: str
    cron: str | None = None
    every_sec: int | None = None
    at: str | None = None
    timezone: str
    next_at: str | None = None
    cwd: str
    agent: str
    model: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    enforced: bool | None = None
    worktree: bool | None = None
    missed: Literal["run", "skip"]
    overlap: bool | None = None
    max_cost_usd: float | None = None
    created_at: str
    last_run: ScheduledRun | None = None


class SchedulesOutput(Output):
    schedules: list[ScheduleOutput]
    runs: list[ScheduledRun] | None = Field(None, description="With show: what came of it, newest first.")
    task_id: str | None = Field(None, description="With run_now: the task that has begun.")


def _in_words(output: SchedulesOutput) -> str:
    lines = [f"{one.schedule_id} ({one.status}): {one.when}, next {one.next_at or 'never'}" for one in output.schedules]
    if output.task_id is not None:
        lines.append(f"Begun as {output.task_id}.")
    return "\n".join(lines) or "There are no schedules."


@operation("{tool}_schedule", "Schedule work", ACTS, _in_words)
async def schedule(call: OperationCall, args: ScheduleInput) -> SchedulesOutput | Deferred:
    """Run {agent} on a schedule, with nobody connected: add, list, show, pause, resume, run_now,
    remove. What you add is proposed: it begins nothing until the user confirms it, in a form, the dashboard or the
    terminal. Only the user resumes, runs or removes a confirmed one. Each run is a task; people answer its questions. It
    has the hub's environment, not yours. For work to be done now use {tool}_start."""
    schedules = call.helm.extras.schedules
    if args.action == "list":
        return _output(await schedules.list())
    if args.action == "add":
        return await _proposed(call, args)
    which = _required("schedule_id", args.schedule_id)
    match args.action:
        case "show":
            shown = _output([await schedules.get(which)])
            runs = [ScheduledRun.model_validate(run_as_dict(run)) for run in await schedules.runs(which)]
            return shown.model_copy(update={"runs": runs})
        case "run_now":
            task = await schedules.run_now(which)
            return _output([await schedules.get(which)]).model_copy(update={"task_id": task.id})
        case "pause" | "resume" | "remove":
            # Each of these is a method of that name, and the action's type allows no other name.
            return _output([await getattr(schedules, args.action)(which)])


async def _proposed(call: OperationCall, args: ScheduleInput) -> SchedulesOutput | Deferred:
    """Add a schedule, and ask the person at the client to confirm it, where the client can show a form."""
    schedules, confirm = call.helm.extras.schedules, call.confirmation()
    if confirm.answered is not None:  # the second leg of a call that was answered with a form
        if confirm.is_yes:
            await confirm.by_person(schedules.confirm, confirm.answered)
        return _output([await schedules.get(confirm.answered)])
    # Stored as a proposal first: if the client goes away with the form open, the user can still confirm it elsewhere.
    schedule = await schedules.add(_required("prompt", args.prompt), **args.options(CODEX))
    asked = await confirm.ask(schedule.id, what_begins(schedule), partial(schedules.confirm, schedule.id))
    return _output([await schedules.get(schedule.id)]) if asked is None else asked


def _required(name: str, value: str | None) -> str:
    if not value:
        raise InvalidInput(f"This action needs {name}.", parameter=name)
    return value


def _output(schedules: Any) -> SchedulesOutput:
    return SchedulesOutput(schedules=[ScheduleOutput.model_validate(schedule_as_dict(one)) for one in schedules])
