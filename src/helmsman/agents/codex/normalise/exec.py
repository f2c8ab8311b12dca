"""Lines of `codex exec --json` as events, in the spelling of today and in the one before it (`item_type`, …).

exec names no turns, and a line may mean several things at once: the caller gives the ids, and gets all events of a line
in their order. Its items are those of the app-server in snake case, but for the few that are read here. Total, like its
sibling: no line whatever raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.normalise.failures import failure_from_sentence, notice_kind
from helmsman.agents.codex.normalise.items import app_server_item, item_status
from helmsman.agents.codex.normalise.usage import read_usage
from helmsman.base.json_values import camel_case, mapping, sequence, text
from helmsman.model.events import (
    ErrorItem,
    Event,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    Notice,
    PlanStep,
    TodoList,
    TurnEnded,
    TurnStarted,
    Unknown,
    UnknownItem,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.events import Item, ItemStatus

_RETRYING: Final = "Reconnecting..."
_ITEM_TYPES: Final = {
    "agent_message": "agentMessage",
    "assistant_message": "agentMessage",
    "collab_tool_call": "collabAgentToolCall",
    "command_execution": "commandExecution",
    "file_change": "fileChange",
    "mcp_tool_call": "mcpToolCall",
    "reasoning": "reasoning",
    "web_search": "webSearch",
}
"""What the app-server calls an item of exec."""


def from_exec(line: object, session_id: str, turn_id: str) -> tuple[Event, ...]:
    """Return the events that a line means; none for `thread.started`, which the engine reads itself."""
    fields = mapping(line)
    return tuple(event.with_raw(fields) for event in _events(fields, {"session_id": session_id, "turn_id": turn_id}))


def _events(fields: Mapping[str, Any], where: dict[str, Any]) -> tuple[Event, ...]:
    match fields.get("type"):
        case "thread.started":
            return ()
        case "turn.started":
            return (TurnStarted(**where),)
        case "turn.completed":
            ended = TurnEnded(**where, outcome="completed")
            # exec counts the whole thread here, what earlier processes spent on it included
            total = read_usage(fields.get("usage"))
            return (ended,) if total is None else (UsageReported(**where, total=total), ended)
        case "turn.failed":
            failure = failure_from_sentence(text(mapping(fields.get("error")).get("message")))
            return (TurnEnded(**where, outcome="failed", failure=failure),)
        case "error":  # not fatal by itself: Codex may try again, and says so, or `turn.failed` follows
            message = text(fields.get("message"))
            kind = notice_kind(failure_from_sentence(message)) if message.startswith(_RETRYING) else "warning"
            return (Notice(**where, kind=kind, message=message),)
        case "item.started":
            return (ItemStarted(**where, item=exec_item(fields.get("item"), stage="started")),)
        case "item.updated":
            return (ItemUpdated(**where, item=exec_item(fields.get("item"), stage="in_progress")),)
        case "item.completed":
            return (ItemEnded(**where, item=exec_item(fields.get("item"), stage="completed")),)
        case unknown:
            return (Unknown(**where, name=text(unknown), payload=fields),)


def exec_item(raw: Any, *, stage: ItemStatus) -> Item:
    """An item of exec, which has come as far as `stage` says unless it says itself that it failed."""
    fields = mapping(raw)
    kind = text(fields.get("type")) or text(fields.get("item_type"))
    item_id, status = text(fields.get("id")), item_status(fields, stage)
    if kind == "todo_list":
        return TodoList(id=item_id, status=status, steps=tuple(map(_step, sequence(fields.get("items")))))
    if kind == "error":
        return ErrorItem(id=item_id, status=status, message=text(fields.get("message")))
    if kind not in _ITEM_TYPES:
        return UnknownItem(id=item_id, status=status, name=kind, payload=fields)
    spelled = {camel_case(name): value for name, value in fields.items()}
    return app_server_item({**spelled, "type": _ITEM_TYPES[kind]}, stage=stage)


def _step(raw: Any) -> PlanStep:
    """exec only says which steps are done; which one is being worked on it does not tell."""
    entry = mapping(raw)
    return PlanStep(text(entry.get("text")), "completed" if entry.get("completed") is True else "pending")
