"""Jobs: tasks that run turns of sessions, each of which is a separate task.

The job's task holds the request. Each finished step is stored (`Registry.keep_step`), so that the next hub resumes there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.base.structs import replace
from helmsman.tasks.running_task import RunningJob

if TYPE_CHECKING:
    from helmsman.tasks.ledger import Ledger
    from helmsman.tasks.model import Task, TaskChanges, TaskDraft
    from helmsman.tasks.outcome import TaskOutcome


async def enter_job(ledger: Ledger, draft: TaskDraft) -> tuple[Task, bool]:
    """Register a job that runs here from now on. Return False with the existing job if its idempotency key is in use.

    Raises:
        RegistryUnavailable: It cannot be registered. No hub could resume it, so it does not begin.
    """
    task, is_fresh = await ledger.registry(lambda registry: registry.add(replace(draft, owner=ledger.me)))
    if is_fresh:
        ledger.jobs[task.id] = RunningJob()
    return task, is_fresh


async def take_job(ledger: Ledger, task: Task) -> bool:
    """Claim a job that an earlier hub left. Return False if another process runs it, or it has ended."""
    if not await ledger.take(task):
        return False
    ledger.jobs[task.id] = RunningJob()
    ledger.no_longer_starts(task.id)
    return True


async def end_job(ledger: Ledger, task_id: str, changes: TaskChanges, outcome: TaskOutcome | None = None) -> None:
    """End a job, and store its outcome."""
    if outcome is not None:
        ledger.keep_outcome(task_id, outcome)
    ledger.update(task_id, changes)
    job = ledger.jobs.pop(task_id, None)
    await ledger.write()
    if job is not None:
        job.ended.set()
        job.notify()
