"""Decide whether a due schedule starts a run. Several missed times start at most one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from helmsman.base.structs import Value
from helmsman.errors import HelmsmanError
from helmsman.model.request import TurnRequest
from helmsman.schedules.store import ScheduleRun
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.model import TaskDraft

if TYPE_CHECKING:
    from helmsman.schedules.store import Schedule

_LATE: Final = timedelta(minutes=5)
"""Delay after which a due time counts as missed."""
_STILL_RUNS: Final = "The run before was still at work."
_MISSED: Final = "The machine was off or asleep when it was due."
_NO_SENSE: Final = "This version makes no sense of it. Add it again."


class DueRun(Value, frozen=True):
    """Run with its task, or with a note why it has no task; and the schedule's next time."""

    run: ScheduleRun
    draft: TaskDraft | None
    next_at: datetime | None


def due_run(schedule: Schedule, now: datetime, *, still_runs: bool) -> DueRun:
    """Decide what to do for a due schedule. `still_runs`: its previous run still works or waits."""
    due = schedule.when.last_until(now) or schedule.next_at or now
    draft, note = None, None
    if schedule.missed == "skip" and now - due > _LATE:
        note = _MISSED
    elif still_runs and not schedule.overlap:
        note = _STILL_RUNS
    elif (draft := _draft(schedule, f"schedule {schedule.id} {due.isoformat()}")) is None:
        note = _NO_SENSE
    run = ScheduleRun(due_at=due, entered_at=now, note=note)
    return DueRun(run, draft, schedule.when.next_after(now))


def extra_run(schedule: Schedule) -> TaskDraft:
    """Return the task of a run that was requested.

    Raises:
        HelmsmanError: This version makes no sense of the schedule.
    """
    draft = _draft(schedule)
    if draft is None:
        raise HelmsmanError(f"Schedule {schedule.id} cannot be run: {_NO_SENSE}")
    return draft


def _draft(schedule: Schedule, key: str | None = None) -> TaskDraft | None:
    """Return the task of a run; None if this version cannot read the schedule. The same `key` is the same run."""
    spec = TurnRequest.unpacked(schedule.spec)
    if spec is None:
        return None
    return draft_task(
        spec,
        idempotency_key=key,
        policy=schedule.policy,
        schedule=schedule.id,
        spec=schedule.spec,
    )[1]
