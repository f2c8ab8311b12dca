"""Status, questions and reports of jobs, as the job tools return them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.truncate import cut
from helmsman.capabilities.outcomes.agent_selection import selected_agents
from helmsman.errors import HelmsmanError
from helmsman.shapes.outcomes import JobQuestion, OutcomeOutput
from helmsman.shapes.questions import pending_question, question_in_words
from helmsman.shapes.task_answers import task_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.service import AgentService
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task


async def job_sessions(helm: AgentService, task: Task) -> list[Session]:
    """Return the sessions of a job that can still be opened, oldest first."""
    found: list[Session] = []
    for session_id in task.job_sessions:
        # An agent may have deleted its session, or its program may be gone. The others still count.
        with suppress(HelmsmanError):
            found.append(await helm.session(session_id))
    return found


async def job_output(
    helm: AgentService, task: Task, *, with_diff: bool = False, with_output: bool = False
) -> OutcomeOutput:
    """Build the job tool's answer."""
    asked = [
        JobQuestion(**dict(pending_question(session, question)), session_id=session.id)
        for session in (await job_sessions(helm, task) if task.is_running else ())
        for question in session.questions
    ]
    results = await helm.tasks.results(task) if task.has_ended else None
    report = results.report if results is not None else None
    chosen = next(iter(selected_agents(task)), None)
    return OutcomeOutput(
        task_id=task.id,
        status=task.status,
        agent=task.agent if report is None else report.get("agent"),
        why=report.get("why") if report is not None else None if chosen is None else chosen.why,
        progress=(task.progress or {}).get("text") if task.is_running else None,
        # A job completes only if its result was verified.
        verified=task.status == "completed" if task.has_ended else None,
        report=report if report is None or with_output else short_report(report),
        diff=results.diff if results is not None and with_diff else None,
        pending_question=asked[0] if asked else None,
        more_questions=len(asked) - 1 if len(asked) > 1 else None,
        note=task.note,
        error=None if report is not None else task_error(task),
        result=task.result,
    )


_REPORT_CHARS: Final = 4_500  # at most 1,500 tokens
# From generous to tight: the first limit that fits wins, so short reports lose nothing.
_TEXT_LIMITS: Final = (400, 200, 100, 60)
_ENTRIES: Final = 10
_IN_FULL: Final = "withOutput: true brings all of it"


def short_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report that a model can read in 1,500 tokens: evidence once, and only the ends of outputs.

    All keys stay, because clients check reports against the output schema.
    """
    short = dict(report)
    if isinstance(candidates := short.get("candidates"), list):
        short["candidates"] = [one | {"evidence": _why_not(one, len(candidates))} for one in candidates]
    if _fits(short):
        return short
    for name in ("evidence", "rejected", "findings"):
        if isinstance(entries := short.get(name), list) and len(entries) > _ENTRIES:
            # Failures first: they explain the verdict, and the passed checks are many.
            failed_first = sorted(entries, key=lambda one: bool(one.get("ok", True)))
            short[name] = failed_first[:_ENTRIES]
            short["says"] = f"{short['says']} ({len(entries) - _ENTRIES} of {name} are left out; {_IN_FULL}.)"
    cut_short = short
    for limit in _TEXT_LIMITS:
        # `says` stays whole: it is the verdict, and names what is left out.
        cut_short = {name: _shortened(part, limit) if name != "says" else part for name, part in short.items()}
        if _fits(cut_short):
            break
    return cut_short


def _why_not(candidate: Mapping[str, Any], count: int) -> list[Any]:
    """Return the evidence against a candidate that lost. That of the winner is the report's own."""
    if candidate.get("winner") or count == 1:
        return []
    return [{"ok": one["ok"], "what": one["what"]} for one in candidate["evidence"] if not one["ok"]]


def _fits(report: Mapping[str, Any]) -> bool:
    return len(json.dumps(report)) <= _REPORT_CHARS


def _shortened(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return cut(value, limit, _IN_FULL)
    if isinstance(value, list):
        return [_shortened(one, limit) for one in value]
    return {key: _shortened(one, limit) for key, one in value.items()} if isinstance(value, dict) else value


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
