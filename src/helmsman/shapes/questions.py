"""Questions as front ends show them: bounded for tools (`pendingQuestion`), as text, and in full for the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.approvals.deadline import countdown
from helmsman.base.json_values import present
from helmsman.base.sanitize import exact, visible
from helmsman.base.truncate import LINE_CHARS, QUESTION_CHARS, cut, shortened, within
from helmsman.git.diff import read_diff
from helmsman.model.question_text import GUTTER, describe, marked, question_as_dict
from helmsman.model.questions import REFUSALS
from helmsman.shapes.contract import DeadlineOutput, PendingQuestion, QuestionPart
from helmsman.shapes.safe_values import one_line, shown_files

if TYPE_CHECKING:
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

_DETAILS_CHARS: Final = 200_000  # patches may be large, and the user should see most of one before answering
_DIFF_CHARS: Final = 2 * 1024 * 1024


def pending_question(session: Session, question: Question) -> PendingQuestion:
    """Return a question with its texts bounded and cuts marked."""
    shown = question_as_dict(question)
    left = _time_left(session, question)
    return PendingQuestion(
        id=question.id,
        type=question.type,
        questions=[
            QuestionPart(question=_bounded(part["question"]), options=part["options"]) for part in shown["questions"]
        ],
        details=within(shown["details"], _DETAILS_CHARS),
        # The deadline is not among the details, because a yes approves exactly the details.
        deadline=None if left is None else DeadlineOutput.model_validate(left),
    )


def _time_left(session: Session, question: Question) -> dict[str, Any] | None:
    """Return the deadline of a question, or None if it has none."""
    deadline = session.deadlines.get(question.id)
    return None if deadline is None else deadline.as_dict()


def question_in_words(question: PendingQuestion) -> list[str]:
    """Render a question as lines: the plan, each part with its options, the time left."""
    # The plan of an agent is what is approved, so it is shown in the text too.
    plan = question.details.get("plan")
    lines = [f"Plan: {marked(str(plan))}"] if plan else []
    for part in question.questions:
        lines.append(f"Question {question.id}: {part.question}")
        if part.options:
            lines.append(f"Answers: {', '.join(map(exact, part.options))}")
    if question.deadline is not None:
        lines.append(countdown(question.deadline.seconds_left, paused=question.deadline.paused))
    return lines


def question_in_full(session: Session, question: Question) -> dict[str, Any]:
    """Return a question with all that a page shows, sanitized. `helmsman.web.api` documents the fields."""
    shown = question_as_dict(question)
    words = describe(question)
    # Counted by characters, not files: one file can be larger than all the rest.
    files, missing = shown_files(read_diff(words.diff or ""), _DIFF_CHARS)
    lines = [{"label": line.label, "text": line.text} for line in words.lines]
    if missing:  # a user must not approve a change that the page does not show in full
        told = f"{missing} characters of the diff. It can only be refused here; helmsman watch shows all of it."
        lines.append({"label": "Not shown", "text": told})
    more = {
        "sessionId": session.id,
        "asker": question.asker,
        "title": words.title,
        "lines": lines,
        "files": files or None,
        "questions": [
            {
                **part,
                # Refusing needs no full view; approving does.
                "options": [option for option in part["options"] if not missing or option in REFUSALS],
                "labels": {option: exact(option) for option in prompt.options},
                "freeText": prompt.free_text or not prompt.options,
                "secret": prompt.secret,
                "descriptions": {option: exact(text) for option, text in prompt.descriptions.items()},
            }
            for part, prompt in zip(shown["questions"], question.prompts, strict=True)
        ],
        "details": shortened(shown["details"], _DETAILS_CHARS)[0],
        "alwaysRule": visible(str(question.details.get("alwaysRule") or "")) or None,
        "deadline": _time_left(session, question),
        "directory": session.directory,
        "summary": one_line(session.state.about),
        "agentId": question.agent_id,
    }
    return present(shown | more)


def _bounded(text: str) -> str:
    """Bound a question's text. Long lines are cut first, so that Helmsman's own lines stay visible."""
    if len(text) <= QUESTION_CHARS:
        return text
    lines = [cut(line, LINE_CHARS) for line in text.split("\n")]
    return cut("\n".join(lines), QUESTION_CHARS, below=GUTTER)
