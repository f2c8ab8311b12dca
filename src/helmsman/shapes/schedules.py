"""A schedule as every door shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from helmsman.schedules.store import Schedule, ScheduleRun


def schedule_as_dict(schedule: Schedule) -> dict[str, Any]:
    """What it is to do, when, and under which options."""
    options = schedule.spec.get("options") or {}
    when = schedule.when
    shown = {
        "scheduleId": schedule.id,
        "status": standing(schedule),
        "prompt": schedule.prompt,
        "when": str(when),
        "cron": when.cron,
        "everySec": None if when.every is None else int(when.every.total_seconds()),
        "at": _time(when.at),
        "timezone": when.timezone,
        "nextAt": _time(schedule.next_at),
        "cwd": schedule.directory,
        "agent": schedule.spec.get("agent"),
        "model": options.get("model"),
        "approvalPolicy": options.get("approval_policy"),
        "sandbox": options.get("sandbox"),
        "worktree": schedule.spec.get("worktree") or None,
        "missed": schedule.missed,
        "overlap": schedule.overlap or None,
        "maxCostUsd": schedule.max_cost_usd,
        "createdAt": _time(schedule.created_at),
        "lastRun": None if schedule.last is None else run_as_dict(schedule.last),
    }
    return {key: value for key, value in shown.items() if value is not None}


def run_as_dict(run: ScheduleRun) -> dict[str, Any]:
    """One time that it was due: its task, or why there is none."""
    shown = {"dueAt": _time(run.due_at), "enteredAt": _time(run.entered_at), "taskId": run.task_id, "note": run.note}
    return {key: value for key, value in shown.items() if value is not None}


def standing(schedule: Schedule) -> str:
    """`active`, `paused`, or `over` where it is never due again."""
    if schedule.is_paused:
        return "paused"
    return "over" if schedule.next_at is None else "active"


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds").replace("+00:00", "Z")
