"""Joins the pieces of one text that have come at once.

Codex sends what a model writes and what a command prints in small pieces, thousands a second when many sessions are at
work. Pieces that have come together are of use to nobody one by one: they become one piece, before anything else is done
with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PIECES: Final = frozenset(
    {"item/agentMessage/delta", "item/commandExecution/outputDelta", "item/reasoning/textDelta", "item/plan/delta"}
)


def join_pieces(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, with the pieces of an item in one that have nothing of their session between them."""
    joined: list[dict[str, Any]] = []
    last: dict[Any, dict[str, Any]] = {}
    for message in messages:
        params = message.get("params")
        if not isinstance(params, dict):
            last.clear()
            joined.append(message)
            continue
        thread_id = params.get("threadId")
        if message.get("method") not in _PIECES or not isinstance(params.get("delta"), str):
            # A message about no session may be about any; one with a text for an id is about nothing we know.
            last.pop(thread_id, None) if isinstance(thread_id, str) else last.clear()
        elif isinstance(thread_id, str):
            before = last.get(thread_id)
            if before is not None and before["method"] == message["method"] and _same(before["params"], params):
                before["params"]["delta"] += params["delta"]
                continue
            last[thread_id] = message
        joined.append(message)
    return joined


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (
        one.get("itemId") == other.get("itemId")
        and one.get("turnId") == other.get("turnId")
        and one.get("contentIndex") == other.get("contentIndex")
    )
