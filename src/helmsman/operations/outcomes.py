"""Outcomes that Helmsman itself verifies: debug, review, plan, refactor, test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.errors import InvalidInput
from helmsman.model.nature import STARTS, STARTS_REVIEW
from helmsman.operations.table import Deferred, OperationCall, operation
from helmsman.shapes import outcomes as shapes
from helmsman.shapes.job_answers import job_in_words, job_output

if TYPE_CHECKING:
    from helmsman.tasks.model import Task


@operation("debug", "Debug: find a failure's cause and fix it", STARTS, job_in_words)
async def debug(call: OperationCall, args: shapes.DebugInput) -> shapes.OutcomeOutput | Deferred:
    """Reproduce a failure, find its cause and fix it, in a git worktree. Helmsman runs the check before (it fails) and
    after (it passes), in a fresh checkout, with the check's own files as they were; what is not verified is not done.
    Returns a taskId at once; call again with taskId until status is completed or failed. Then report has the
    evidence."""
    return await _asked(call, args)


@operation("review", "Review a change", STARTS_REVIEW, job_in_words, like="debug")
async def review(call: OperationCall, args: shapes.ReviewJobInput) -> shapes.OutcomeOutput | Deferred:
    """Review a change, with one agent or several. Helmsman drops findings that cite what is not in the diff, and
    another look tries to refute the worst. Changes nothing. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args)


@operation("plan", "Plan, and carry it out step by step", STARTS, job_in_words, like="debug")
async def plan(call: OperationCall, args: shapes.PlanJobInput) -> shapes.OutcomeOutput | Deferred:
    """Plan a goal: steps, files, risks, checks and open questions as data, with nothing changed. The plan comes as
    pendingQuestion; approved, each step is done and checked by itself. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args)


@operation("refactor", "Refactor, with the check green before and after", STARTS, job_in_words, like="debug")
async def refactor(call: OperationCall, args: shapes.RefactorInput) -> shapes.OutcomeOutput | Deferred:
    """Improve code without changing what it does, in a git worktree. Helmsman runs the check before and after, checks that
    nothing outside scope changed, and compares what functions return. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args)


@operation("test", "Write tests that can fail", STARTS, job_in_words, like="debug")
async def test(call: OperationCall, args: shapes.NewTestsInput) -> shapes.OutcomeOutput | Deferred:
    """Write tests, in a git worktree. Helmsman runs them, and checks that they pass each time and fail against small
    mutations of the code under test. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args)


async def _asked(call: OperationCall, args: shapes.OutcomeInput) -> shapes.OutcomeOutput | Deferred:
    """Begin a job, or follow one."""
    seconds = args.wait_sec if args.timeout_sec is None else args.timeout_sec
    if args.task_id is None:
        task = await call.helm.extras.outcomes.start(args.wanted(), idempotency_key=args.idempotency_key)
    else:
        # A job takes minutes, so starting one returns immediately. Following one waits as long as every client allows.
        task = await _job(call, args)
        seconds = shapes.WAIT_SECONDS if seconds is None else seconds
        if args.cancel:
            task, _ = await call.helm.tasks.cancel(task)
    if seconds:
        waited = await call.wait_for_job(task, seconds=seconds)
        if waited is not None:
            return waited
    return await job_output(
        call.helm, await call.helm.tasks.get(task.id), with_diff=args.wants_diff, with_output=args.with_output
    )


async def _job(call: OperationCall, args: shapes.OutcomeInput) -> Task:
    """Return the job to follow.

    Raises:
        InvalidInput: It is not a job, or has another kind.
    """
    # Options of the job itself are refused with a taskId: they would have no effect on a job that runs.
    begins = set(args.model_fields_set) - {"task_id", "timeout_sec", "wait_sec", "cancel", "with_diff", "with_output"}
    if begins:
        raise InvalidInput(
            "A task that was begun takes taskId, timeoutSec, cancel and withDiff alone.", parameter="taskId"
        )
    task = await call.helm.tasks.find(args.task_id or "")
    if task.job != args.kind:
        tool = "tool that began it" if task.job is None else f"tool {task.job}"
        raise InvalidInput(f"{task.id} is no {args.kind}. Follow it with the {tool}.", parameter="taskId")
    return task
