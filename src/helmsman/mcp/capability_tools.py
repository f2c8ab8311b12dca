"""The toolset `capabilities`: an outcome is asked for, and Helmsman itself looks whether it was reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from helmsman.errors import InvalidInput
from helmsman.mcp.session_tools import SESSION_TOOLS
from helmsman.mcp.toolset import ACTS, BEGINS, CallContext, Instead, Offered, Tool, tool
from helmsman.mcp.waiting import wait_for_job
from helmsman.shapes import outcomes as shapes
from helmsman.shapes.job_answers import job_in_words, job_output

if TYPE_CHECKING:
    from collections.abc import Container

    from helmsman.tasks.model import Task

OutputT = TypeVar("OutputT", bound=shapes.OutcomeOutput)


@tool("Debug: find a failure's cause and fix it", ACTS, job_in_words)
async def debug(call: CallContext, args: shapes.DebugInput) -> shapes.DebugOutput | Instead:
    """Have a failure reproduced, its cause found and fixed, in a git worktree. Helmsman runs the check before (it fails) and
    after (it passes), in a fresh checkout, with the check's own files as they were; what is not verified is not done.
    Returns a taskId at once; call again with taskId and waitSec until status is completed or failed. Then report has the
    evidence."""
    return await _asked(call, args, shapes.DebugOutput)


@tool("Review a change", BEGINS, job_in_words)
async def review(call: CallContext, args: shapes.ReviewJobInput) -> shapes.ReviewJobOutput | Instead:
    """Have a change reviewed, by one agent or several. Helmsman drops findings that cite what is not in the diff, and
    another look tries to refute the worst. Changes nothing. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args, shapes.ReviewJobOutput)


@tool("Plan, and carry it out step by step", ACTS, job_in_words)
async def plan(call: CallContext, args: shapes.PlanJobInput) -> shapes.PlanJobOutput | Instead:
    """Have a goal planned: steps, files, risks, checks and open questions as data, with nothing changed. The plan comes as
    pendingQuestion; approved, each step is done and checked by itself. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args, shapes.PlanJobOutput)


@tool("Refactor, with the check green before and after", ACTS, job_in_words)
async def refactor(call: CallContext, args: shapes.RefactorInput) -> shapes.RefactorOutput | Instead:
    """Have code made better without changing what it does, in a git worktree. Helmsman runs the check before and after, and
    checks that nothing outside scope was touched. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args, shapes.RefactorOutput)


@tool("Write tests that can fail", ACTS, job_in_words)
async def test(call: CallContext, args: shapes.NewTestsInput) -> shapes.NewTestsOutput | Instead:
    """Have tests written, in a git worktree. Helmsman runs them, and checks that they pass each time and fail against small
    mutations of the code under test. Returns a taskId at once; follow it as debug."""
    return await _asked(call, args, shapes.NewTestsOutput)


async def _asked(call: CallContext, args: shapes.OutcomeInput, output: type[OutputT]) -> OutputT | Instead:
    """Begin a job, or follow one."""
    seconds = args.wait_sec
    if args.task_id is None:
        task = await call.helm.extras.outcomes.start(args.wanted(), idempotency_key=args.idempotency_key)
    else:
        task = await _job(call, args)
        seconds = shapes.WAIT_SECONDS if seconds is None else seconds
        if args.cancel:
            task, _ = await call.helm.tasks.cancel(task)
    if seconds:
        waited = await wait_for_job(call, task, seconds=seconds)
        if waited is not None:
            return waited
    answer = await job_output(call.helm, await call.helm.tasks.get(task.id), with_diff=args.wants_diff)
    assert isinstance(answer, output)
    return answer


async def _job(call: CallContext, args: shapes.OutcomeInput) -> Task:
    """The job to follow.

    Raises:
        InvalidInput: It is none, or one of another kind.
    """
    begins = set(args.model_fields_set) - {"task_id", "wait_sec", "cancel", "with_diff"}
    if begins:
        raise InvalidInput(
            "A task that was begun takes taskId, waitSec, cancel and withDiff alone.", parameter="taskId"
        )
    task = await call.helm.tasks.find(args.task_id or "")
    if task.job != args.kind:
        tool = "tool that began it" if task.job is None else f"tool {task.job}"
        raise InvalidInput(f"{task.id} is no {args.kind}. Follow it with the {tool}.", parameter="taskId")
    return task


_ANSWERS: Final = next(one for one in SESSION_TOOLS if one.name == "codex_respond")
_CAPABILITIES: Final[tuple[Tool[Any], ...]] = (debug, review, plan, refactor, test)


def capability_tools(toolsets: Container[str]) -> list[Offered]:
    """The five, and what answers their questions, where no other toolset brings that.

    Which tool that is, their descriptions say.
    """
    if "sessions" in toolsets:
        return list(_CAPABILITIES)
    for_any = [one.for_any_agent() for one in _CAPABILITIES]
    return [*for_any] if "agents" in toolsets else [*for_any, _ANSWERS.for_any_agent()]
