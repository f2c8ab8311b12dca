"""Begin the runs of schedules that are due. Several missed times start at most one run."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from helmsman.base.structs import Value
from helmsman.errors import HelmsmanError
from helmsman.model.request import TurnRequest
from helmsman.schedules.store import ScheduleRun
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.model import TaskDraft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.schedules.store import Schedule, ScheduleStore, TaskQueue
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

_Enter: TypeAlias = "Callable[[Callable[[TaskQueue], Task | None]], Awaitable[Task | None]]"

_LATE: Final = timedelta(minutes=5)
"""Delay after which a due time counts as missed."""
_STILL_RUNS: Final = "The run before was still at work."
_MISSED: Final = "The machine was off or asleep when it was due."
_NO_SENSE: Final = "This version cannot read it. Add it again."


class DueRun(Value, frozen=True):
    """Run with its task, or with a note why it has no task; and the schedule's next time."""

    run: ScheduleRun
    draft: TaskDraft | None
    next_at: datetime | None


async def begin_due(
    store: ScheduleStore,
    enter: _Enter,
    begun: Callable[[Task], Awaitable[object]],
) -> datetime | None:
    """Begin the due runs, or write down why not. Return when the next one is due.

    `enter` calls a function with the queue that takes the tasks, on a thread. Each run that was entered is passed to
    `begun`. Other processes may do the same at the same time: each run is entered once.
    """
    now = await store.now()
    next_at = await store.next_at()
    if next_at is None or next_at > now:
        # One query for the minimum: reading all schedules decodes each of them.
        return next_at
    schedules = await store.all()
    due = [one for one in schedules if one.next_at is not None and one.next_at <= now]
    for schedule in due:
        try:
            await begin_run(store, schedule, now, enter, begun)
        # One schedule that cannot begin must not hold up the others.
        except HelmsmanError as error:
            log.warning("schedule %s is due and not begun: %s", schedule.id, error)
    # The begun runs have moved their schedules, so read the times again.
    times = (one.next_at for one in (await store.all() if due else schedules))
    return min((time for time in times if time is not None), default=None)


async def begin_run(
    store: ScheduleStore,
    schedule: Schedule,
    now: datetime,
    enter: _Enter,
    begun: Callable[[Task], Awaitable[object]],
) -> None:
    """Begin the run of one schedule that was due when it was read."""
    still_runs = not schedule.overlap and await store.still_runs(schedule.id)
    due = due_run(schedule, now, still_runs=still_runs)
    if due.draft is None:
        await store.skip(schedule, due.run, due.next_at)
        return
    task = await enter(partial(store.begin, schedule=schedule, run=due.run, draft=due.draft, next_at=due.next_at))
    # This run was entered before, or the schedule has changed. At most its next time is still to be set.
    if task is None:
        await store.move(schedule, due.next_at)
        return
    log.info("schedule %s begins task %s", schedule.id, task.id)
    await begun(task)


def due_run(schedule: Schedule, now: datetime, *, still_runs: bool) -> DueRun:
    """Decide what to do for a due schedule. `still_runs`: its previous run still works or waits."""
    # The newest of the missed times, so that all of them make one run.
    due = schedule.when.last_until(now) or schedule.next_at or now
    draft, note = None, None
    if schedule.missed == "skip" and now - due > _LATE:
        note = _MISSED
    elif still_runs and not schedule.overlap:
        note = _STILL_RUNS
    # Every process makes the same key for this due time, so its task is entered once.
    elif (draft := _draft(schedule, f"schedule {schedule.id} {due.isoformat()}")) is None:
        note = _NO_SENSE
    run = ScheduleRun(due_at=due, entered_at=now, note=note)
    return DueRun(run, draft, schedule.when.next_after(now))


def extra_run(schedule: Schedule) -> TaskDraft:
    """Return the task of a run that was requested.

    Raises:
        HelmsmanError: This version does not understand the schedule.
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
