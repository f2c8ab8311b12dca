"""Items in the two forms in which the removed `codex mcp-server` showed them. Pure.

`shown` is the item inside `item_started` and `item_completed`; `began` and `ended` are the older messages beside it, such as
`exec_command_begin` and `exec_command_end`.
"""

from __future__ import annotations

import os.path
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    ContextCompaction,
    FileChange,
    ImageView,
    Item,
    McpToolCall,
    ProposedPlan,
    Reasoning,
    UserMessage,
    WebSearch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from helmsman.model.events import CommandAction, PathChange

Message: TypeAlias = dict[str, Any]

_CITED: Final = {"threadIds": "rolloutIds"}
_SHELL_WORDS: Final = 3
"""`/bin/bash -lc SCRIPT`: Codex runs everything this way."""


def shown(item: Item, *, ended: bool) -> Message | None:
    """The item as such; None for what the original did not show as an item, or Helmsman does not know."""
    match item:
        case UserMessage():
            content = {"type": "text", "text": item.text, "text_elements": list[Any]()}
            return {"type": "UserMessage", "id": item.id, "content": [content]}
        case AgentMessage():
            phase = {"phase": item.phase} if item.phase is not None else {}
            content = {"type": "Text", "text": item.text if ended else ""}
            citation = {"memory_citation": _citation(item)} if item.memory_citation is not None else {}
            return {"type": "AgentMessage", "id": item.id, "content": [content], **phase, **citation}
        case Reasoning():
            return {
                "type": "Reasoning",
                "id": item.id,
                "summary_text": _parts(item),
                "raw_content": list(item.raw or ()),
            }
        case ProposedPlan():
            return {"type": "Plan", "id": item.id, "text": item.text}
        case CommandExecution():
            result = _command_result(item) if ended else {"status": "in_progress"}
            return {"type": "CommandExecution", "id": item.id, **_command(item), **result}
        case FileChange():
            status = {"status": _status(item)} if ended else {}
            return {"type": "FileChange", "id": item.id, "changes": changes_by_path(item.changes), **status}
        case McpToolCall():
            outcome = {**_mcp_result(item), "status": item.status} if ended else {"status": "inProgress"}
            return {"type": "McpToolCall", "id": item.id, **_invocation(item), **outcome, **_took(item.duration_ms)}
        case WebSearch():
            return {"type": "WebSearch", "id": item.id, "query": item.query, **_action(item)}
        case ImageView():
            return {"type": "ImageView", "id": item.id, "path": item.path}
        case ContextCompaction():
            return {"type": "ContextCompaction", "id": item.id}
        case _:
            return None


def began(item: Item) -> list[Message]:
    """What was said beside the start of an item."""
    match item:
        case CommandExecution():
            return [{"type": "exec_command_begin", "call_id": item.id, **_command(item)}]
        case FileChange():
            return [{"type": "patch_apply_begin", "call_id": item.id, "changes": changes_by_path(item.changes)}]
        case McpToolCall():
            return [{"type": "mcp_tool_call_begin", "call_id": item.id, "invocation": _invocation(item)}]
        case WebSearch():
            return [{"type": "web_search_begin", "call_id": item.id}]
        case _:
            return []


def ended(item: Item) -> list[Message]:
    """What was said beside the end of an item."""
    match item:
        case UserMessage():
            nothing = {
                name: list[Any]() for name in ("images", "local_images", "audio", "local_audio", "text_elements")
            }
            return [{"type": "user_message", "message": item.text, **nothing}]
        case AgentMessage():
            citation = {"memory_citation": _citation(item)}
            return [{"type": "agent_message", "message": item.text, "phase": item.phase, **citation}]
        case Reasoning():
            return [{"type": "agent_reasoning", "text": part} for part in _parts(item)]
        case CommandExecution():
            return [{"type": "exec_command_end", "call_id": item.id, **_command(item), **_command_result(item)}]
        case FileChange():
            success = {"success": item.status == "completed", "status": _status(item)}
            changes = changes_by_path(item.changes)
            return [{"type": "patch_apply_end", "call_id": item.id, **success, "changes": changes}]
        case McpToolCall():
            result = {"Err": item.error} if item.error is not None else {"Ok": _mcp_result(item)["result"]}
            call = {"type": "mcp_tool_call_end", "call_id": item.id, "invocation": _invocation(item)}
            return [{**call, **_took(item.duration_ms), "result": result}]
        case WebSearch():
            return [{"type": "web_search_end", "call_id": item.id, "query": item.query, **_action(item)}]
        case ImageView():
            return [{"type": "view_image_tool_call", "call_id": item.id, "path": item.path}]
        case ContextCompaction():
            return [{"type": "context_compacted"}]
        case _:
            return []


def command_words(command: str) -> list[str]:
    """A command as the words it is run with; the engine has them joined as one would type them."""
    try:
        return shlex.split(command)
    except ValueError:  # not something that words were joined to
        return [command]


def parsed_command(words: list[str], actions: Sequence[CommandAction] | None, directory: str | None) -> list[Message]:
    """What a command does, as Codex sees it; where it did not say, `unknown` is always true."""
    if not actions:
        return [{"type": "unknown", "cmd": words[-1] if len(words) == _SHELL_WORDS else shlex.join(words)}]
    return [_parsed(action, directory) for action in actions]


def _parsed(action: CommandAction, directory: str | None) -> Message:
    parsed: Message = {"type": action.kind, "cmd": action.command}
    match action.kind:
        case "read":
            return {**parsed, "name": action.name, "path": _path_as_written(action, directory)}
        case "search":
            return {**parsed, "query": action.query, "path": action.path}
        case "list_files":
            return {**parsed, "path": action.path}
        case _:
            return parsed


def _path_as_written(action: CommandAction, directory: str | None) -> str | None:
    """The file that is read, as the command names it: Codex's app-server makes the path absolute."""
    if action.path is None or directory is None:
        return action.path
    path = Path(os.path.normpath(action.path))
    for word in command_words(action.command):
        if os.path.normpath(Path(directory, word)) == str(path):
            return word
    return str(path.relative_to(directory)) if path.is_relative_to(directory) else action.path


def changes_by_path(changes: Iterable[PathChange]) -> Message:
    """The files of a change, each with its new content, its old one, or its difference."""
    return {change.path: _file_change(change) for change in changes}


def _file_change(change: PathChange) -> Message:
    if change.kind == "update":
        return {"type": "update", "unified_diff": change.diff or "", "move_path": change.moved_to}
    return {"type": change.kind, "content": change.diff or ""}


def _parts(item: Reasoning) -> list[str]:
    """The parts of the summary; where there is none, the text is what was thought word for word."""
    if item.parts is not None:
        return list(item.parts)
    return [] if item.text == "\n\n".join(item.raw or ()) else [item.text]


def _citation(item: AgentMessage) -> Message | None:
    """The memories that a message rests on; the sessions they come from had another name in the original."""
    if item.memory_citation is None:
        return None
    return {_CITED.get(name, name): value for name, value in item.memory_citation.items()}


def _action(item: WebSearch) -> Message:
    return {"action": item.action} if item.action is not None else {}


def _took(milliseconds: int | None) -> Message:
    """A duration, where Codex told one."""
    if milliseconds is None:
        return {}
    return {"duration": {"secs": milliseconds // 1000, "nanos": milliseconds % 1000 * 1_000_000}}


def _command(item: CommandExecution) -> Message:
    words = command_words(item.command)
    directory = Path(item.directory).as_uri() if item.directory and Path(item.directory).is_absolute() else None
    told = {"process_id": item.process_id, "source": item.source}
    return {
        "command": words,
        "cwd": directory,
        "parsed_cmd": parsed_command(words, item.actions, item.directory),
        **{name: value for name, value in told.items() if value is not None},
    }


def _command_result(item: CommandExecution) -> Message:
    return {
        "status": item.status,
        "stdout": item.output,
        "stderr": "",
        "aggregated_output": item.output,
        "formatted_output": item.output,
        "exit_code": item.exit_code,
        **_took(item.duration_ms or 0),
    }


def _status(item: FileChange) -> str:
    return "declined" if item.declined else item.status


def _invocation(item: McpToolCall) -> Message:
    return {"server": item.server, "tool": item.tool, "arguments": item.arguments}


def _mcp_result(item: McpToolCall) -> Message:
    if item.error is not None:
        return {"error": {"message": item.error}}
    structured = {"structuredContent": item.structured} if item.structured is not None else {}
    return {"result": {"content": [{"type": "text", "text": item.result or ""}], **structured}}
