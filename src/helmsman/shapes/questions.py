"""A question as doors show it: bounded for tools (`pendingQuestion`), in words, and in full for the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.approvals.deadline import countdown
from helmsman.base.json_values import present
from helmsman.base.shortening import LINE_CHARS, QUESTION_CHARS, cut, shortened, within
from helmsman.base.shown_text import exact, visible
from helmsman.model.question_text import GUTTER, describe, marked, question_as_dict
from helmsman.model.questions import REFUSALS
from helmsman.model.unified_diff import read_diff
from helmsman.shapes.contract import DeadlineOutput, PendingQuestion, QuestionPart
from helmsman.shapes.safe_values import one_line, shown_files

if TYPE_CHECKING:
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

_DETAILS_CHARS: Final = 200_000
"""What a question is about: a patch may be large, and whoever answers should see most of it."""
_DIFF_CHARS: Final = 2 * 1024 * 1024


def pending_question(session: Session, question: Question) -> PendingQuestion:
    """What is asked, bounded: what is cut says so. The deadline is no detail, since details are what a yes covers."""
    shown = question_as_dict(question)
    left = _time_left(session, question)
    return PendingQuestion(
        id=question.id,
        type=question.type,
        questions=[
            QuestionPart(question=_bounded(part["question"]), options=part["options"]) for part in shown["questions"]
        ],
        details=within(shown["details"], _DETAILS_CHARS),
        deadline=None if left is None else DeadlineOutput.model_validate(left),
    )


def _time_left(session: Session, question: Question) -> dict[str, Any] | None:
    """How long a question may still be answered; None where it waits until somebody answers."""
    deadline = session.deadlines.get(question.id)
    return None if deadline is None else deadline.as_dict()


def question_in_words(question: PendingQuestion) -> list[str]:
    """What is asked, the answers that it takes, and the time there is for one."""
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
    """What is asked, with all that a page shows beside it, safe to show (`helmsman.web.api` says what the fields mean)."""
    shown = question_as_dict(question)
    words = describe(question)
    files, missing = shown_files(read_diff(words.diff or ""), _DIFF_CHARS)
    lines = [{"label": line.label, "text": line.text} for line in words.lines]
    if missing:  # no yes to what the page does not show
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
    """What a question says, in a size. Long lines give way first, so that what stands in lines of ours is seen."""
    if len(text) <= QUESTION_CHARS:
        return text
    lines = [cut(line, LINE_CHARS) for line in text.split("\n")]
    return cut("\n".join(lines), QUESTION_CHARS, below=GUTTER)
