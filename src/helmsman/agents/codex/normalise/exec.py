"""Lines of `codex exec --json` as events, in the spelling of today and in the one before it (`item_type`, …).

exec names no turns, and a line may mean several things at once: the caller gives the ids, and gets all events of a line
in their order. Total, like its sibling: no line whatever raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.normalise.failures import failure_from_sentence, notice_kind
from helmsman.agents.codex.normalise.items import collab_tool_call, file_change, item_status, mcp_tool_call, web_search
from helmsman.agents.codex.normalise.reading import integer, mapping, sequence, text
from helmsman.base.shortening import KEPT_CHARS, cut
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    ErrorItem,
    Event,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    Notice,
    PlanStep,
    Reasoning,
    TodoList,
    TurnEnded,
    TurnStarted,
    Unknown,
    UnknownItem,
    Usage,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.model.events import Item, ItemStatus

_RETRYING: Final = "Reconnecting..."


def from_exec(line: object, session_id: str, turn_id: str) -> tuple[Event, ...]:
    """The events a line means; none for `thread.started`, which whoever runs exec reads for itself."""
    fields = mapping(line)
    kind = text(fields.get("type"))
    handler = _HANDLERS.get(kind)
    if handler is not None:
        return handler(fields, session_id, turn_id)
    return (Unknown(session_id=session_id, turn_id=turn_id, name=kind, payload=fields),)


def exec_item(raw: Any, *, stage: ItemStatus) -> Item:
    """An item of exec, which has come as far as `stage` says unless it says itself that it failed."""
    fields = mapping(raw)
    kind = text(fields.get("type")) or text(fields.get("item_type"))
    item_id, status = text(fields.get("id")), item_status(fields, stage)
    reader = _READERS.get(kind)
    if reader is None:
        return UnknownItem(id=item_id, status=status, name=kind, payload=fields)
    return reader(fields, item_id, status)


# --- lines -----------------------------------------------------------------------------------------------------------


def _thread_started(_line: Mapping[str, Any], _session_id: str, _turn_id: str) -> tuple[Event, ...]:
    return ()


def _turn_started(_line: Mapping[str, Any], session_id: str, turn_id: str) -> tuple[Event, ...]:
    return (TurnStarted(session_id=session_id, turn_id=turn_id),)


def _turn_completed(line: Mapping[str, Any], session_id: str, turn_id: str) -> tuple[Event, ...]:
    ended = TurnEnded(session_id=session_id, turn_id=turn_id, outcome="completed")
    usage = line.get("usage")
    if not isinstance(usage, dict):
        return (ended,)
    # exec counts the whole thread here, what earlier processes spent on it included
    total = Usage(
        input_tokens=integer(usage.get("input_tokens")) or 0,
        cached_input_tokens=integer(usage.get("cached_input_tokens")) or 0,
        output_tokens=integer(usage.get("output_tokens")) or 0,
        reasoning_output_tokens=integer(usage.get("reasoning_output_tokens")) or 0,
    )
    return UsageReported(session_id=session_id, turn_id=turn_id, total=total), ended


def _turn_failed(line: Mapping[str, Any], session_id: str, turn_id: str) -> tuple[Event, ...]:
    failure = failure_from_sentence(text(mapping(line.get("error")).get("message")))
    return (TurnEnded(session_id=session_id, turn_id=turn_id, outcome="failed", failure=failure),)


def _error(line: Mapping[str, Any], session_id: str, turn_id: str) -> tuple[Event, ...]:
    """Not fatal by itself: Codex may try again, and says so, or `turn.failed` follows."""
    message = text(line.get("message"))
    kind = notice_kind(failure_from_sentence(message)) if message.startswith(_RETRYING) else "warning"
    return (Notice(session_id=session_id, turn_id=turn_id, kind=kind, message=message),)


def _item_started(line: Mapping[str, Any], session_id: str, turn_id: str) -> tuple[Event, ...]:
    item = exec_item(line.get("item"), stage="started")
    return (ItemStarted(session_id=session_id, turn_id=turn_id, item=item),)


def _item_updated(line: Mapping[str, Any], session_id: str, turn_id: str) -> tuple[Event, ...]:
    item = exec_item(line.get("item"), stage="in_progress")
    return (ItemUpdated(session_id=session_id, turn_id=turn_id, item=item),)


def _item_completed(line: Mapping[str, Any], session_id: str, turn_id: str) -> tuple[Event, ...]:
    item = exec_item(line.get("item"), stage="completed")
    return (ItemEnded(session_id=session_id, turn_id=turn_id, item=item),)


_HANDLERS: Final[Mapping[str, Callable[[Mapping[str, Any], str, str], tuple[Event, ...]]]] = {
    "error": _error,
    "item.completed": _item_completed,
    "item.started": _item_started,
    "item.updated": _item_updated,
    "thread.started": _thread_started,
    "turn.completed": _turn_completed,
    "turn.failed": _turn_failed,
    "turn.started": _turn_started,
}


# --- one reader a type of item ---------------------------------------------------------------------------------------


def _agent_message(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return AgentMessage(id=item_id, status=status, text=text(fields.get("text")))


def _reasoning(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return Reasoning(id=item_id, status=status, text=text(fields.get("text")))


def _command_execution(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return CommandExecution(
        id=item_id,
        status=status,
        command=text(fields.get("command")),
        exit_code=integer(fields.get("exit_code")),
        output=cut(text(fields.get("aggregated_output")), KEPT_CHARS),
        declined=fields.get("status") == "declined",
    )


def _todo_list(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    """exec only says which steps are done; which one is being worked on it does not tell."""
    entries = [mapping(entry) for entry in sequence(fields.get("items"))]
    steps = tuple(
        PlanStep(text(entry.get("text")), "completed" if entry.get("completed") is True else "pending")
        for entry in entries
    )
    return TodoList(id=item_id, status=status, steps=steps)


def _collab_tool_call(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return collab_tool_call(fields, item_id, status, receivers="receiver_thread_ids", states="agents_states")


def _error_item(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return ErrorItem(id=item_id, status=status, message=text(fields.get("message")))


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], str, ItemStatus], Item]]] = {
    "agent_message": _agent_message,
    "assistant_message": _agent_message,
    "collab_tool_call": _collab_tool_call,
    "command_execution": _command_execution,
    "error": _error_item,
    "file_change": file_change,
    "mcp_tool_call": mcp_tool_call,
    "reasoning": _reasoning,
    "todo_list": _todo_list,
    "web_search": web_search,
}
