"""Sessions, questions, turns and entries as the API shows them (`helmsman.web.api` says what the fields mean)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helmsman.base import shown_text
from helmsman.base.json_values import iso_time, present
from helmsman.base.shortening import TEXT_CHARS, cut, shortened
from helmsman.model.events import UserMessage
from helmsman.model.own_words import is_own
from helmsman.model.question_text import describe, part_texts
from helmsman.model.unified_diff import read_diff
from helmsman.shapes.rendering import fields_as_dict
from helmsman.shapes.session_status import session_status
from helmsman.web.safe_values import safe, shown_files, shown_item

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.events import Item
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task
    from helmsman.web.transcripts import Turn

SUMMARY_CHARS: Final = 200
_PROMPT_CHARS: Final = 500
_DETAIL_CHARS: Final = 200_000


def one_line(text: str | None, width: int = SUMMARY_CHARS) -> str | None:
    return shown_text.one_line((text or "")[: 10 * width])[:width] or None


# --- sessions --------------------------------------------------------------------------------------------------------


def in_list(session: dict[str, Any]) -> dict[str, Any]:
    """A session in a list (`helmsman.shapes.listed_sessions`), its texts safe to show."""
    texts = {"summary": one_line(session.get("summary")), "name": safe(session.get("name"))}
    texts |= {"excerpt": safe(session.get("excerpt"))}
    return present({**session, **texts, "note": safe(session.get("note"))})


def session_in_full(session: Session, *, output_lines: int) -> dict[str, Any]:
    state = session.state
    # Nothing is newer than the cursor: the items are for the transcript, and of ten thousand each summary takes its time.
    known = session_status(session, output_lines=output_lines, since_cursor=session.feed.cursor)
    status = known.as_dict()
    status["itemEvents"] = []
    question = status.pop("pendingQuestion", None)
    more = {
        "name": state.name,
        "prompt": None if state.prompt is None else cut(state.prompt, TEXT_CHARS),
        "sandbox": state.sandbox,
        "approvalPolicy": state.approval_policy,
        "can": None if session.engine is None else session.engine.capabilities.as_dict()["can"],
        "elsewhere": session.elsewhere if state.is_running else None,
        "queued": len(session.queue) - (session.resumes_at is not None),
        "taskIds": list(session.task_ids),
        "createdAt": iso_time(session.created_at),
        "changedAt": iso_time(session.changed_at),
        "turnSeconds": round(session.turn_seconds, 1) if session.turn_seconds is not None else None,
        "hasDiff": bool(state.diff),
    }
    questions = [question_in_full(session, one) for one in session.questions]
    return present({**safe({**status, **more}), "pendingQuestion": question, "questions": questions})


def question_in_full(session: Session, question: Question) -> dict[str, Any]:
    details, _ = shortened(dict(question.details), _DETAIL_CHARS)
    words = describe(question)
    files, _ = shown_files(read_diff(words.diff or ""), _DETAIL_CHARS)
    deadline = session.deadlines.get(question.id)
    return present(
        {
            "sessionId": session.id,
            "id": question.id,
            "type": question.type,
            "asker": question.asker,
            "title": words.title,
            "lines": [{"label": line.label, "text": line.text} for line in words.lines],
            "files": files or None,
            "questions": [
                {
                    "question": text,
                    "options": list(prompt.options),
                    "labels": {option: shown_text.exact(option) for option in prompt.options},
                    "freeText": prompt.free_text or not prompt.options,
                    "secret": prompt.secret,
                    "descriptions": {one: shown_text.exact(text) for one, text in prompt.descriptions.items()},
                }
                for text, prompt in zip(part_texts(question), question.prompts, strict=True)
            ],
            "details": details,
            "alwaysRule": shown_text.visible(str(question.details.get("alwaysRule") or "")) or None,
            "deadline": None if deadline is None else deadline.as_dict(),
            "directory": session.directory,
            "summary": one_line(session.state.about),
            "agentId": question.agent_id,
        }
    )


# --- turns and entries -----------------------------------------------------------------------------------------------


def turn_in_timeline(number: int, turn: Turn, task: Task | None, times: Mapping[str, Any]) -> dict[str, Any]:
    """`times` has `startedAt`, `endedAt` and `usage` as Codex recorded them; a task knows them better."""
    kinds: dict[str, int] = {}
    for item in turn.items:
        kinds[item.type] = kinds.get(item.type, 0) + 1
    began = task.created_at if task is not None else times.get("began")
    ended = (task.completed_at if task is not None else None) or times.get("ended")
    usage = task.usage if task is not None and task.usage is not None else times.get("usage")
    until = datetime.now(UTC) if turn.status == "active" else ended
    return present(
        {
            "number": number,
            "turnId": turn.id,
            "status": turn.status,
            "prompt": one_line(turn.prompt, _PROMPT_CHARS),
            "firstIndex": turn.first,
            "items": len(turn.items),
            "kinds": kinds,
            "startedAt": iso_time(began),
            "endedAt": iso_time(ended) if turn.status != "active" else None,
            "seconds": round((until - began).total_seconds(), 1) if began is not None and until is not None else None,
            "taskId": None if task is None else task.id,
            "usage": None if usage is None else fields_as_dict(usage),
        }
    )


def entry(index: int, number: int, turn: Turn, item: Item, *, text_limit: int) -> dict[str, Any]:
    """One item of a transcript, with long texts cut."""
    shown, missing = shown_item(item, text_limit)
    by = "helmsman" if isinstance(item, UserMessage) and is_own(item.text) else None
    about = {"index": index, "turn": number, "turnId": turn.id, "item": shown, "by": by}
    return present(about | {"cut": missing or None})
