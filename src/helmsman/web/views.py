"""Sessions in a list, turns and entries as the API shows them (`helmsman.web.api` says what the fields mean)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import iso_time, present
from helmsman.model.events import UserMessage
from helmsman.model.prompts import is_own
from helmsman.shapes.rendering import fields_as_dict
from helmsman.shapes.safe_values import one_line, safe, shown_item

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.events import Item
    from helmsman.tasks.model import Task
    from helmsman.web.transcripts import Turn

_PROMPT_CHARS: Final = 500


# --- sessions --------------------------------------------------------------------------------------------------------


def in_list(session: dict[str, Any]) -> dict[str, Any]:
    """Return a session for a list (`helmsman.shapes.listed_sessions`), with sanitized texts."""
    texts = {"summary": one_line(session.get("summary")), "name": safe(session.get("name"))}
    texts |= {"excerpt": safe(session.get("excerpt"))}
    return present({**session, **texts, "note": safe(session.get("note"))})


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
    """Return one item of a transcript, with truncated texts."""
    shown, missing = shown_item(item, text_limit)
    by = "helmsman" if isinstance(item, UserMessage) and is_own(item.text) else None
    about = {"index": index, "turn": number, "turnId": turn.id, "item": shown, "by": by}
    return present(about | {"cut": missing or None})
