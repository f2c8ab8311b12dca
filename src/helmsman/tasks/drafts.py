"""A turn as a task that has not begun."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from helmsman.tasks.calls import call_key
from helmsman.tasks.model import MAX_COST, OF_JOB, SCHEDULE, TERMS, TaskDraft, new_task_id, options_to_keep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.options import SessionOptions


class JobTurn:
    """The next turn that is drafted is a job's. It is one turn: what else is begun in the same context is not."""

    def __init__(self, job_id: str) -> None:
        self._job_id: str | None = job_id

    def take(self) -> str | None:
        job_id, self._job_id = self._job_id, None
        return job_id


for_job: Final[ContextVar[JobTurn | None]] = ContextVar("for_job", default=None)


def draft_task(
    instruction: str,
    options: SessionOptions,
    *,
    session_id: str | None = None,
    idempotency_key: str | None = None,
    terms: Mapping[str, Any] | None = None,
    max_cost_usd: float | None = None,
    schedule: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> tuple[str, TaskDraft]:
    """A turn as a task that has not begun: its id, and all that is known of it."""
    task_id = new_task_id("local")
    turn = for_job.get()
    job_id = None if turn is None else turn.take()
    if idempotency_key is None and (called := call_key.get()) is not None:
        idempotency_key = called.take()
    return task_id, TaskDraft(
        id=task_id,
        agent=options.agent,
        instruction=instruction,
        directory=str(options.cwd) if options.cwd is not None else None,
        session_id=session_id,
        idempotency_key=idempotency_key,
        model=options.model,
        metadata={
            "options": options_to_keep(options),
            **({} if terms is None else {TERMS: dict(terms)}),
            **({} if max_cost_usd is None else {MAX_COST: max_cost_usd}),
            **({} if schedule is None else {SCHEDULE: schedule}),
            **({} if job_id is None else {OF_JOB: job_id}),
        },
        spec=spec,
    )
