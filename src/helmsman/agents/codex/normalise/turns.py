"""A turn out of a thread's history as the events it would have been, had somebody listened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.agents.codex.normalise.app_server import from_app_server
from helmsman.agents.codex.normalise.items import app_server_item
from helmsman.base.json_values import mapping, sequence, text
from helmsman.model.events import Event, ItemEnded, ItemStarted, TurnStarted

if TYPE_CHECKING:
    from collections.abc import Iterator


def turn_as_events(thread_id: str, raw: Any) -> Iterator[Event]:
    """The beginning of a turn, its items as far as they have come, and its end if it has ended."""
    turn = mapping(raw)
    turn_id = text(turn.get("id"))
    if not turn_id:
        return
    yield TurnStarted(session_id=thread_id, turn_id=turn_id)
    for entry in sequence(turn.get("items")):
        item = app_server_item(entry)
        kind = ItemStarted if item.status in ("started", "in_progress") else ItemEnded
        yield kind(session_id=thread_id, turn_id=turn_id, item=item)
    if turn.get("status") != "inProgress":
        ended = from_app_server("turn/completed", {"threadId": thread_id, "turn": turn})
        if ended is not None:
            yield ended
