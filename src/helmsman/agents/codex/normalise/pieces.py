"""Joins the pieces of one text that have come at once.

Codex sends what a model writes and what a command prints in small pieces, thousands a second when many sessions are at
work. Pieces that have come together are of use to nobody one by one: they become one piece, before anything else is done
with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PIECES: Final = ("item/agentMessage/delta", "item/commandExecution/outputDelta", "item/reasoning/textDelta")


def join_pieces(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, with the pieces of an item in one that have nothing of their session between them."""
    joined: list[dict[str, Any]] = []
    last: dict[str, dict[str, Any]] = {}
    for message in messages:
        params = message.get("params")
        thread_id = params.get("threadId") if isinstance(params, dict) else None
        if not isinstance(params, dict) or not isinstance(thread_id, str):
            last.clear()  # what is about no session may be about any
        elif message.get("method") in _PIECES and isinstance(params.get("delta"), str):
            before = last.get(thread_id)
            if before is not None and before["method"] == message["method"] and _same(before["params"], params):
                before["params"]["delta"] += params["delta"]
                continue
            last[thread_id] = message
        else:
            last.pop(thread_id, None)
        joined.append(message)
    return joined


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (
        one.get("itemId") == other.get("itemId")
        and one.get("turnId") == other.get("turnId")
        and one.get("contentIndex") == other.get("contentIndex")
    )
