"""Sessions, questions, turns and entries as the API shows them (`helmsman.web.api` says what the fields mean)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helmsman.base import shown_text
from helmsman.base.shortening import TEXT_CHARS, cut, shortened
from helmsman.model.question_text import describe, part_texts
from helmsman.model.unified_diff import read_diff
from helmsman.shapes.rendering import fields_as_dict, session_info_as_dict
from helmsman.shapes.session_status import known_status, session_status
from helmsman.web.safe_values import safe, shown_files, shown_item

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.agents.protocol import SessionInfo
    from helmsman.model.events import Item
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task
    from helmsman.web.transcripts import Turn

SUMMARY_CHARS: Final = 200
_PROMPT_CHARS: Final = 500
_DETAIL_CHARS: Final = 200_000


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have something in them."""
    return {name: value for name, value in fields.items() if value is not None}


def one_line(text: str | None, width: int = SUMMARY_CHARS) -> str | None:
    return shown_text.one_line((text or "")[: 10 * width])[:width] or None


def time(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat(timespec="seconds")


# --- sessions --------------------------------------------------------------------------------------------------------


def listed(info: SessionInfo | None, session: Session | None, tasks: Sequence[Task]) -> dict[str, Any]:
    """A session in a list, by what is known of it on disk, here and in the registry."""
    status = known_status(session, tasks)
    shown = {} if info is None else session_info_as_dict(info)
    if session is not None:
        changed_at = session.changed_at.astimezone(UTC)
        shown.setdefault("sessionId", session.id)
        shown.setdefault("timestamp", time(changed_at))
        live = {"agent": session.options.agent, "directory": session.directory, "model": session.model}
        live |= {"name": session.state.name, "summary": session.state.name or session.state.prompt}
        shown = present(live) | shown
    elif tasks:
        shown.setdefault("sessionId", tasks[0].session_id)
        shown.setdefault("timestamp", time(tasks[0].updated_at))
        known = {"agent": tasks[0].agent, "directory": tasks[0].directory, "summary": tasks[-1].instruction}
        shown = present(known) | shown
    shown["summary"] = one_line(shown.get("summary"))
    shown["isActive"] = status in ("active", "awaiting_approval")
    shown["status"] = status
    shown["resumesAt"] = time(next((task.resumes_at for task in tasks if task.waiting_for is not None), None))
    shown["questions"] = (len(session.state.questions) or None) if session is not None else None
    shown["name"] = safe(shown.get("name"))
    shown["note"] = safe(session.state.note or session.state.timed_out_note) if session is not None else None
    shown["timedOut"] = len(timed_out(session, tasks)) or None
    shown["taskIds"] = [task.id for task in reversed(tasks)] or None
    shown["archived"] = shown.get("archived") or None
    shown.pop("engineVersion", None)
    shown.pop("parentId", None)
    return present(shown)


def timed_out(session: Session | None, tasks: Sequence[Task]) -> Sequence[str]:
    """The questions of the last turn that the deadline denied; what ran elsewhere is known from its task."""
    if session is not None and (session.engine is not None or not tasks):
        return session.state.timed_out
    return tasks[0].timed_out if tasks else ()


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
        "resumesAt": time(session.resumes_at),
        "taskIds": list(session.task_ids),
        "createdAt": time(session.created_at),
        "changedAt": time(session.changed_at),
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
            "summary": one_line(session.state.name or session.state.prompt),
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
            "startedAt": time(began),
            "endedAt": time(ended) if turn.status != "active" else None,
            "seconds": round((until - began).total_seconds(), 1) if began is not None and until is not None else None,
            "taskId": None if task is None else task.id,
            "usage": None if usage is None else fields_as_dict(usage),
        }
    )


def entry(index: int, number: int, turn: Turn, item: Item, *, text_limit: int) -> dict[str, Any]:
    """One item of a transcript, with long texts cut."""
    shown, missing = shown_item(item, text_limit)
    return present({"index": index, "turn": number, "turnId": turn.id, "item": shown, "cut": missing or None})
