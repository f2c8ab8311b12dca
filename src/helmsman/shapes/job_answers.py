"""Status, questions and reports of jobs, as the job tools return them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from helmsman.capabilities.outcomes.choosing import chosen_of
from helmsman.errors import HelmsmanError
from helmsman.shapes.outcomes import OUTPUTS, JobQuestion, OutcomeOutput
from helmsman.shapes.questions import pending_question, question_in_words
from helmsman.shapes.task_answers import task_error

if TYPE_CHECKING:
    from helmsman.capabilities.outcomes.wanted import Kind
    from helmsman.capabilities.service import AgentService
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task


async def job_sessions(helm: AgentService, task: Task) -> list[Session]:
    """Return the sessions of a job that can still be opened, oldest first."""
    found: list[Session] = []
    for session_id in task.job_sessions:
        with suppress(HelmsmanError):
            found.append(await helm.session(session_id))
    return found


async def job_output(helm: AgentService, task: Task, *, with_diff: bool = False) -> OutcomeOutput:
    """Build the job tool's answer."""
    asked = [
        JobQuestion(**dict(pending_question(session, question)), session_id=session.id)
        for session in (await job_sessions(helm, task) if task.is_running else ())
        for question in session.questions
    ]
    results = await helm.tasks.results(task) if task.has_ended else None
    report = results.report if results is not None else None
    chosen = next(iter(chosen_of(task)), None)
    return OUTPUTS[cast("Kind", task.job)](
        task_id=task.id,
        status=task.status,
        agent=task.agent if report is None else report.get("agent"),
        why=report.get("why") if report is not None else None if chosen is None else chosen.why,
        progress=(task.progress or {}).get("text") if task.is_running else None,
        verified=task.status == "completed" if task.has_ended else None,
        report=report,
        diff=results.diff if results is not None and with_diff else None,
        pending_question=asked[0] if asked else None,
        more_questions=len(asked) - 1 if len(asked) > 1 else None,
        note=task.note,
        error=None if report is not None else task_error(task),
        result=task.result,
    )


def job_in_words(output: OutcomeOutput) -> str:
    """Render the answer as text for people, and for agents that read only text."""
    done = {True: " (verified)", False: " (not verified)", None: ""}[output.verified]
    lines = [f"{output.task_id}: {output.status}{done}"]
    if output.why:
        lines.append(f"{output.agent}: {output.why}")
    lines += [text for text in (output.progress, output.note) if text]
    if output.error is not None:
        lines.append(f"{output.error.code}: {output.error.message}")
    if output.pending_question is not None:
        lines.append(f"Session {output.pending_question.session_id} asks.")
        lines += question_in_words(output.pending_question)
    lines += [text for text in (output.result, output.diff) if text]
    return "\n".join(lines)
