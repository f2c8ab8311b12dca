"""What the app-server calls a thread item, as an `Item`. Used for notifications and for a thread's history alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import integer, mapping, optional_text, sequence, snake_case, text, texts
from helmsman.base.shortening import KEPT_CHARS, cut
from helmsman.base.structs import replace
from helmsman.model.events import (
    AgentMessage,
    AgentState,
    ChangeKind,
    CollabToolCall,
    CommandExecution,
    ContextCompaction,
    DynamicToolCall,
    FileChange,
    ImageView,
    McpToolCall,
    PathChange,
    ProposedPlan,
    Reasoning,
    Review,
    UnknownItem,
    UserMessage,
    WebSearch,
)
from helmsman.model.unified_diff import read_change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.model.events import Item, ItemStatus

_STATUSES: Final[Mapping[str, ItemStatus]] = {
    "inProgress": "in_progress",
    "in_progress": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "declined": "failed",
    "interrupted": "failed",
}
_IMAGE_INPUTS: Final = frozenset({"image", "localImage"})
_DECLINED_OUTPUT: Final = "exec command rejected by user"
"""Codex 0.93 ends a declined command twice, the second time as failed with this output."""


def app_server_item(raw: Any, *, stage: ItemStatus | None = None) -> Item:
    """An item of a notification or of a thread's history.

    `stage` is how far the item has come, where the caller knows; an item that says it has failed stays failed.
    """
    fields = mapping(raw)
    kind = text(fields.get("type"))
    status = item_status(fields, stage)
    reader = _READERS.get(kind)
    if reader is None:
        return UnknownItem(id=text(fields.get("id")), status=status, name=kind, payload=fields)
    return reader(fields, text(fields.get("id")), status)


def item_status(fields: Mapping[str, Any], stage: ItemStatus | None) -> ItemStatus:
    """The status of an item in either dialect. Types without a status of their own count as completed."""
    status = _STATUSES.get(text(fields.get("status")), "completed")
    return status if stage is None or status == "failed" else stage


def sub_agents(item: Item) -> tuple[str, ...]:
    """The threads of the sub-agents that an item names."""
    return tuple(agent.id for agent in item.agents) if isinstance(item, CollabToolCall) else ()


# --- one reader a type -----------------------------------------------------------------------------------------------


def _user_message(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    inputs = [mapping(entry) for entry in sequence(fields.get("content"))]
    return UserMessage(
        id=item_id,
        status=status,
        text="\n".join(text(entry.get("text")) for entry in inputs if entry.get("type") == "text"),
        images=sum(text(entry.get("type")) in _IMAGE_INPUTS for entry in inputs),
    )


def _agent_message(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return AgentMessage(
        id=item_id,
        status=status,
        text=text(fields.get("text")),
        phase=optional_text(fields.get("phase")),
    )


def _reasoning(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    parts = texts(fields.get("summary")) or texts(fields.get("content"))
    return Reasoning(id=item_id, status=status, text=text(fields.get("text")) or "\n\n".join(parts))


def _proposed_plan(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return ProposedPlan(id=item_id, status=status, text=text(fields.get("text")))


def _command_execution(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    output = cut(text(fields.get("aggregatedOutput")), KEPT_CHARS)
    return CommandExecution(
        id=item_id,
        status=status,
        command=text(fields.get("command")),
        directory=optional_text(fields.get("cwd")),
        exit_code=integer(fields.get("exitCode")),
        output=output,
        # Codex 0.130 and newer names a command before it asks; one that runs has a process.
        announced=status in ("started", "in_progress")
        and fields.get("source") == "agent"
        and fields.get("processId") is None,
        declined=fields.get("status") == "declined" or output == _DECLINED_OUTPUT,
        duration_ms=integer(fields.get("durationMs")),
    )


def file_change(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    """A file change, by itself or as the news of one."""
    return FileChange(
        id=item_id,
        status=status,
        changes=tuple(path_change(change) for change in sequence(fields.get("changes"))),
        declined=fields.get("status") == "declined",
    )


def _mcp_tool_call(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    result, error = mapping(fields.get("result")), fields.get("error")
    return McpToolCall(
        id=item_id,
        status=status,
        server=text(fields.get("server")),
        tool=text(fields.get("tool")),
        arguments=fields.get("arguments"),
        result=_tool_result(result) if result else None,
        error=optional_text(error) or optional_text(mapping(error).get("message")),
    )


def _tool_result(result: Mapping[str, Any]) -> str:
    shown = _content_text(result.get("content"))
    if shown:
        return shown
    structured = result.get("structuredContent", result.get("structured_content"))
    if structured is None:
        return ""
    try:
        return json.dumps(structured, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):  # nested beyond what can be written
        return ""


def _content_text(content: Any) -> str:
    """The text of a tool's answer; what is not text is named by its type."""
    blocks = [mapping(block) for block in sequence(content)]
    return "\n".join(optional_text(block.get("text")) or f"[{text(block.get('type'))}]" for block in blocks)


def _dynamic_tool_call(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return DynamicToolCall(
        id=item_id,
        status="failed" if fields.get("success") is False else status,
        tool=text(fields.get("tool")),
        arguments=fields.get("arguments"),
        result=_content_text(fields["contentItems"]) if isinstance(fields.get("contentItems"), list) else None,
    )


def _web_search(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    """Where the query is empty, the action says what was looked for or opened."""
    action = mapping(fields.get("action"))
    query = (
        text(fields.get("query"))
        or text(action.get("query"))
        or ", ".join(texts(action.get("queries")))
        or text(action.get("pattern"))
        or text(action.get("url"))
    )
    return WebSearch(id=item_id, status=status, query=query)


def _collab_tool_call(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    known = mapping(fields.get("agentsStates"))
    ids = dict.fromkeys([*texts(fields.get("receiverThreadIds")), *known])
    return CollabToolCall(
        id=item_id,
        status=status,
        tool=snake_case(text(fields.get("tool"))),
        prompt=optional_text(fields.get("prompt")),
        agents=tuple(_agent_state(agent_id, mapping(known.get(agent_id))) for agent_id in ids),
    )


def _agent_state(agent_id: str, state: Mapping[str, Any]) -> AgentState:
    return AgentState(
        id=agent_id,
        status=snake_case(text(state.get("status"))) or "unknown",
        message=optional_text(state.get("message")),
    )


def _sub_agent_activity(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    """Newer models' sub-agents announce themselves; the path is the name the agent was given."""
    kind = text(fields.get("kind"))
    agent = AgentState(
        id=text(fields.get("agentThreadId")), status=kind, message=optional_text(fields.get("agentPath"))
    )
    return CollabToolCall(id=item_id, status=status, tool="sub_agent_activity", agents=(agent,) if agent.id else ())


def _image_view(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return ImageView(id=item_id, status=status, path=text(fields.get("path")))


def _context_compaction(_fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return ContextCompaction(id=item_id, status=status)


def _review(fields: Mapping[str, Any], item_id: str, status: ItemStatus) -> Item:
    return Review(
        id=item_id,
        status=status,
        text=text(fields.get("review")),
        finished=fields.get("type") == "exitedReviewMode",
    )


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], str, ItemStatus], Item]]] = {
    "agentMessage": _agent_message,
    "collabAgentToolCall": _collab_tool_call,
    "commandExecution": _command_execution,
    "contextCompaction": _context_compaction,
    "dynamicToolCall": _dynamic_tool_call,
    "enteredReviewMode": _review,
    "exitedReviewMode": _review,
    "fileChange": file_change,
    "imageView": _image_view,
    "mcpToolCall": _mcp_tool_call,
    "plan": _proposed_plan,
    "reasoning": _reasoning,
    "subAgentActivity": _sub_agent_activity,
    "userMessage": _user_message,
    "webSearch": _web_search,
}


# --- file changes -----------------------------------------------------------------------------------------------------

# Codex gives the whole content of a file added or deleted, hunks without file headers for a file updated, and, where a file
# is also moved, a sentence about it after the hunks.

_MOVE_TRAILER: Final = "\n\nMoved to: "
_KINDS: Final[dict[str, ChangeKind]] = {"add": "add", "delete": "delete", "update": "update"}


def path_change(raw: Any) -> PathChange:
    """One entry of a file change's `changes`, in either dialect (exec gives no diff)."""
    change = mapping(raw)
    kind_value = change.get("kind")
    kind_fields = mapping(kind_value)
    kind = _KINDS.get(text(kind_value) or text(kind_fields.get("type")), "update")
    moved_to = optional_text(kind_fields.get("move_path"))
    diff = optional_text(change.get("diff"))
    if moved_to is not None and diff is not None:
        diff = diff.removesuffix(_MOVE_TRAILER + moved_to)
    bare = PathChange(path=text(change.get("path")), kind=kind, moved_to=moved_to, diff=diff)
    read = read_change(bare)
    return replace(bare, added=read.added, removed=read.removed)
