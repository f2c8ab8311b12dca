"""Tasks as the router's tools return them: status, question, results and next actions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helmsman.approvals.deadline import in_words
from helmsman.shapes.contract import ErrorOutput, ProgressOutput
from helmsman.shapes.questions import pending_question
from helmsman.shapes.rendering import ttl_ms, waits
from helmsman.shapes.session_status import files_output, usage_output
from helmsman.shapes.task_contract import CommandOutput, ResultsAnswer, ResultSummary, TaskAnswer, TaskOutput

if TYPE_CHECKING:
    from helmsman.capabilities.all_tasks import TaskResults
    from helmsman.capabilities.service import AgentService
    from helmsman.shapes.contract import PendingQuestion
    from helmsman.tasks.model import Task

AnswerT = TypeVar("AnswerT", bound=TaskAnswer)


def answer(kind: type[AnswerT], helm: AgentService, task: Task, **more: Any) -> AnswerT:
    """Return a task's status as an answer of the primitives."""
    return kind(
        task_id=task.id,
        **_standing(task),
        pending_question=question_of(helm, task),
        thread_id=task.session_id,
        external_id=task.external_id,
        cancel_reason=task.cancel_reason,
        poll_frequency_ms=0 if task.has_ended else task.poll_ms,
        keep_alive_until=_time(task.kept_until(retention_of(helm))),
        last_event_at=_time(task.last_event_at),
        error=task_error(task),
        next_actions=primitive_actions(helm, task),
        **more,
    )


def results_answer(helm: AgentService, results: TaskResults, **more: Any) -> ResultsAnswer:
    """Return a task's results as the answer of a primitive."""
    task, cloud, tests = results.task, results.cloud, results.tests
    if tests is not None:
        more |= {"passed": tests.passed, "failed": tests.failed}
    if cloud is not None:
        more |= {"attempt": cloud.attempt, "attempts": cloud.attempts}
    shown = answer(
        ResultsAnswer,
        helm,
        task,
        result=task.result,
        output=results.output,
        diff=results.diff,
        files_changed=[file.path for file in results.files] or None,
        artifacts=[file.path for file in results.files if file.kind == "added"] or None,
        usage=usage_output(task.usage),
        cost_usd=results.cost_usd,
        duration_ms=duration_ms(task),
        **more,
    )
    # Both notes matter: the task's own, and that listing and detail of the cloud disagree.
    if cloud is not None and cloud.note:
        shown.note = " ".join(filter(None, (shown.note, cloud.note)))
    return shown


def result_summary(results: TaskResults) -> ResultSummary:
    """Return a task's results as the answer of `codex`."""
    task, tests = results.task, results.tests
    return ResultSummary(
        text=task.result,
        diff=results.diff,
        files_changed=files_output(results.files),
        artifacts=[file.path for file in results.files if file.kind == "added"] or None,
        commands=[CommandOutput.model_validate(one, from_attributes=True) for one in results.commands] or None,
        passed=None if tests is None else tests.passed,
        failed=None if tests is None else tests.failed,
        skipped=None if tests is None else tests.skipped,
        duration_ms=duration_ms(task),
        usage=usage_output(task.usage),
        cost_usd=results.cost_usd,
        error=task_error(task),
        url=_url(task),
    )


def retention_of(helm: AgentService) -> timedelta:
    """Return how long results are kept."""
    return timedelta(days=helm.settings.retention_days)


def task_output(helm: AgentService, task: Task) -> TaskOutput:
    """Return a task's status as part of the answer of `codex`."""
    return TaskOutput(
        id=task.id,
        **_standing(task),
        mode=task.origin,
        session_id=task.session_id,
        enforced=False if task.is_unenforced else None,
        created_at=task.created_at.isoformat(),
        updated_at=task.updated_at.isoformat(),
        ttl_ms=ttl_ms(task.kept_until(retention_of(helm))),
        recommended_poll_ms=0 if task.has_ended else task.poll_ms,
    )


def _standing(task: Task) -> dict[str, Any]:
    """Return the fields that all answers share."""
    return {
        "alias": task.alias,
        "agent": task.agent,
        "status": task.status,
        "progress": task_progress(task),
        "input_required": task.input_required,
        **waits(task.waiting_for, task.resumes_at),
        "url": _url(task),
        "note": task.note,
    }


def question_of(helm: AgentService, task: Task) -> PendingQuestion | None:
    """Return the task's first question, if this process has its session."""
    session = helm.tasks.local.session_of(task)
    questions = session.questions if session is not None else []
    return pending_question(session, questions[0]) if session is not None and questions else None


def how_to_answer(helm: AgentService, task: Task) -> str:
    """Say how to answer the question of a task with the tools this client has."""
    where = task.session_id if task.job is None else " or ".join(task.job_sessions)  # any session of the job may ask
    # Name a tool that this client lists: a model cannot call another.
    if "agents" in helm.settings.tools:
        return f"Answer its question with agent_respond in session {where}, then wait again"
    if "sessions" in helm.settings.tools:
        return f"Answer its question with codex_respond in session {where}, then wait again"
    if task.job is not None:
        return f"A person has to answer its question, with `helmsman respond` or in the dashboard (session {where})"
    say = f"“check {task.id}”, then “approve {task.id}” or “deny {task.id}: …”"
    return f"Answer its question: {task.agent} with the request {say}"


def primitive_actions(helm: AgentService, task: Task) -> list[str]:
    """List the tool calls that make sense for the task now."""
    if task.input_required:
        return [how_to_answer(helm, task)]
    tool = f"_{task.agent}_{task.origin}"
    match task.status:
        case "pending" | "working":
            wait = f"Wait for it: {tool}_wait with task_id {task.id}"
            # `codex cloud` cannot cancel anything.
            return [wait] if task.origin == "cloud" else [wait, f"Stop it: {tool}_cancel with task_id {task.id}"]
        case "unknown":
            # Nothing can be read or stopped for certain; the note says what is known.
            return [f"Read the note, then look at thread {task.session_id}." if task.session_id else "Read the note."]
        case _:
            follow = [f"Go on: _{task.agent}_local_resume with thread_id {task.session_id}"] if task.session_id else []
            return [f"Read all: {tool}_results with task_id {task.id}", *follow]


def duration_ms(task: Task) -> int | None:
    if task.completed_at is None:
        return None
    return int((task.completed_at - task.created_at).total_seconds() * 1000)


def task_progress(task: Task) -> ProgressOutput | None:
    known = task.progress
    if known is None or "text" not in known:
        return None
    shown = ProgressOutput.model_validate(known)
    if task.is_running and (began := task.asked_at) is not None:
        # Computed at each read, because a stored age would be stale.
        shown.elapsed_seconds = max(0, int((datetime.now(UTC) - began).total_seconds()))
    return shown


def task_age(task: Task) -> str:
    """Return how long ago a task ended, or else began."""
    since, what = (task.created_at, "started") if task.completed_at is None else (task.completed_at, "ended")
    return f"{what} {about((datetime.now(UTC) - since).total_seconds())} ago"


def about(seconds: float) -> str:
    """Format a duration, without seconds if it is longer than a minute."""
    seconds = max(seconds, 0.0)
    # Seconds of an hour-long task change with each look and tell nothing.
    return in_words(seconds if seconds < _MINUTE else seconds // _MINUTE * _MINUTE)


_MINUTE: Final = 60.0


def task_error(task: Task) -> ErrorOutput | None:
    if task.error is None:
        return None
    return ErrorOutput(
        code=str(task.error.get("code", "unknown")),
        message=str(task.error.get("message", "")),
        retryable=bool(task.error.get("retryable")),
    )


def _url(task: Task) -> str | None:
    url = task.url
    # Stored metadata is untyped.
    return url if isinstance(url, str) else None


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time is not None else None
