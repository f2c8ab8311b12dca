"""Start, follow, stop and resume jobs. A procedure for each kind does the work."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from opentelemetry import trace

from helmsman.base.caller_context import current
from helmsman.base.structs import pack, replace, unpack_if_valid
from helmsman.capabilities.outcomes.agent_selection import choose
from helmsman.capabilities.outcomes.claims import require_repository, within_scope
from helmsman.capabilities.outcomes.judging import judging_for
from helmsman.capabilities.outcomes.request import AUTO, NEVER, Wanted
from helmsman.capabilities.outcomes.reviewing import review, target_of
from helmsman.capabilities.outcomes.solving import Debug, NewTests, Refactor
from helmsman.capabilities.outcomes.steps import loop, plan
from helmsman.capabilities.outcomes.work import Work, asks, seconds_left
from helmsman.capabilities.repository_commands import hold_turn
from helmsman.capabilities.reviews import commit_named
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.git.command import find_git
from helmsman.model.events import QuestionAsked, QuestionClosed, TurnEnded
from helmsman.model.inputs import session_options
from helmsman.model.nature import STARTS, verb
from helmsman.steering.turn_policy import TurnPolicy
from helmsman.tasks.call_key import call_key
from helmsman.tasks.model import TaskChanges, TaskDraft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.budgets import Budgets
    from helmsman.model.events import Event
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.jobs import RunningJob, TurnGate
    from helmsman.tasks.model import Task
    from helmsman.tasks.outcome import TaskOutcome

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 30.0
_STOP_POLL: Final = 0.05


PROCEDURES: Final[dict[str, Callable[[Work], Awaitable[TaskOutcome]]]] = {
    "debug": Debug.procedure,
    "review": review,
    "plan": plan,
    "refactor": Refactor.procedure,
    "test": NewTests.procedure,
    "loop": loop,
}
"""Procedures that reach and verify an outcome, by its kind."""


class Outcomes:
    """`helm.extras.outcomes`."""

    def __init__(self, helm: Steering, tasks: Tasks, budgets: Budgets) -> None:
        self._helm = helm
        self._tasks = tasks
        self._budgets = budgets

    @verb(STARTS)
    async def start(self, wanted: Wanted, *, idempotency_key: str | None = None) -> Task:
        """Start a job and return its task, which names the agents and the reasons (`selected_agents`). Idempotent by key.

        Raises:
            AgentNotFound: No agent is available.
            InvalidInput: A parameter is invalid; nothing was started.
            RegistryUnavailable: The task could not be registered; nothing was started.
        """
        session_options(
            wanted.directory, {}, self._helm.allowed_roots
        )  # reject invalid options before the task is registered
        if idempotency_key is not None:
            known = await self._helm.task_writer.with_key(idempotency_key, *wanted.agents)
            if known is not None:
                await self._tasks.local.refuse_outside(known)
                return known
        # Only for its checks: a wrong target is refused before anything starts.
        if wanted.kind == "review" and "diff" not in wanted.more:
            target_of(wanted.more)
        root = await require_repository(self._helm, wanted)
        if (base := wanted.more.get("base")) is not None:
            commit = await anyio.to_thread.run_sync(commit_named, root, base, self._helm.settings.state_dir)
            # The name may mean another commit in a worktree.
            wanted = replace(wanted, more={**wanted.more, "base": commit})
        if scope := wanted.more.get("scope"):
            await anyio.to_thread.run_sync(_check_scope, root, scope, self._helm.settings.state_dir)
        used_up = [state for state in await self._budgets.states(wanted.directory) if state.is_used_up]
        chosen = await choose(self._helm, wanted, used_up)
        if wanted.judge not in (AUTO, NEVER):
            # Refuse a judge that is not available now, not when the work is done.
            await choose(self._helm, judging_for(wanted))
        called = call_key.get()
        key_of_call = None if called is None else called.take()  # a repeated call to the next hub returns this job
        draft = TaskDraft(
            instruction=f"{wanted.kind}: {wanted.request}",
            agent=chosen[0].agent,
            status="working",
            directory=wanted.directory,
            idempotency_key=idempotency_key or key_of_call,
            job=wanted.kind,
            policy=self._helm.policy(is_message=False),
            chosen=tuple((one.agent, one.why) for one in chosen),
            spec=pack(wanted),
        )
        task, is_fresh = await self._helm.task_writer.enter_job(draft)
        if is_fresh:
            self._helm.in_background(partial(self._run, task, wanted))
        return task

    async def defer_turn(
        self, gate: TurnGate, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]
    ) -> bool:
        """Hold a turn until its job's gate has finished."""
        hold_turn(self._helm, session, task_id, gate.note, gate.do, go_on)
        return True

    def resume(self, task: Task) -> None:
        """Resume a job that an earlier hub left."""
        self._helm.in_background(partial(self._resume, task))

    async def _resume(self, task: Task) -> None:
        if not await self._helm.task_writer.take_job(task):
            return
        # A later version may have written another form of the request.
        wanted = unpack_if_valid(task.spec, Wanted)
        if wanted is None:
            error = HelmsmanError("This version cannot read a record of an earlier one. Ask again.")
            await self._helm.task_writer.end_job(task.id, {"status": "failed", "error": error.as_dict()})
            return
        self._helm.task_writer.update(task.id, {"note": None})
        policy = TurnPolicy.stored_with(task)
        with current().on_behalf_of(None if policy is None else policy.client).entered():
            await self._run(task, wanted)

    async def _run(self, task: Task, wanted: Wanted) -> None:
        about = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": wanted.kind}
        tracer = trace.get_tracer("helmsman")  # without telemetry it does nothing
        with tracer.start_as_current_span(f"invoke_workflow {wanted.kind}", attributes=about) as span:
            status = await self._run_observed(task, wanted)
            if status != "completed":
                span.set_attribute("error.type", status)

    async def _run_observed(self, task: Task, wanted: Wanted) -> str:
        """Run a job and record its end. Return the status of its task."""
        writer = self._helm.task_writer
        job = writer.jobs[task.id]
        outcome: TaskOutcome | None = None
        try:
            known = await writer.registry(lambda registry: registry.steps(task.id))
            async with self._helm.staying() as helm:
                unlisten = helm.listen(partial(_on_event, helm, task.id, job))
                try:
                    with job.scope, anyio.fail_after(seconds_left(task, wanted)) as limit:
                        work = Work(helm, self._tasks, task, wanted, job, known, limit)
                        outcome = await PROCEDURES[wanted.kind](work)
                finally:
                    unlisten()
                if job.scope.cancelled_caught or outcome is None:
                    await self._stop(job)
                    changes = TaskChanges(status="canceled", note=job.cancel_reason)
                else:
                    changes = _ending(outcome)
        except TimeoutError:
            await self._stop(job)
            changes = _failure(HelmsmanError(f"It was not done within {wanted.seconds:g} s. Give it more time."))
        except HelmsmanError as error:
            changes = _failure(error)
        except Exception as error:
            log.exception("job %s has failed", task.id)
            changes = _failure(HelmsmanError(f"It failed inside Helmsman ({type(error).__name__}); the log says more."))
        await writer.end_job(task.id, changes, outcome)
        return changes["status"]

    async def _stop(self, job: RunningJob) -> None:
        """Stop all sessions of a job. A session that is about to ask is stopped when it does."""
        running = list(job.sessions)
        with anyio.move_on_after(_STOP_SECONDS, shield=True):
            while running:
                for session_id in running:
                    try:
                        await self._helm.interrupt(session_id)
                    except HelmsmanError as error:
                        log.info("session %s is not stopped: %s", session_id, error)
                known = self._helm.sessions
                running = [one for one in running if one in known and known[one].state.is_running]
                if running:
                    await anyio.sleep(_STOP_POLL)


def _ending(outcome: TaskOutcome) -> TaskChanges:
    report = outcome.report or {}
    changes = TaskChanges(status="completed" if report["verified"] else "failed", result=outcome.output)
    if not report["verified"]:
        message = str(report.get("says") or outcome.output)
        changes["error"] = {"code": "not_verified", "message": message, "retryable": False}
    return changes


def _failure(error: HelmsmanError) -> TaskChanges:
    return TaskChanges(status="failed", error=error.as_dict())


def _on_event(helm: Steering, task_id: str, job: RunningJob, session: Session, event: Event) -> None:
    """Update the job's waiting state when one of its sessions asks or stops asking."""
    if session.id in job.sessions and isinstance(event, QuestionAsked | QuestionClosed | TurnEnded):
        helm.task_writer.update(task_id, {"input_required": asks(helm, job)})
        job.notify()


def _check_scope(root: Path, scope: Sequence[str], state_dir: Path) -> None:
    """Reject a scope without files: any change would be outside of it. Blocks."""
    git = find_git(root, state_dir)
    files = [] if git is None else git.names("ls-files", "-z")
    if files and all(not within_scope([file], scope).verified for file in files):
        raise InvalidInput(
            f"There is nothing at {', '.join(scope)} in {root}. Name a file or a directory by its path from there, or a "
            "pattern.",
            parameter="scope",
        )
