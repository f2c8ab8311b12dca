"""Convert items to both formats of the removed `codex mcp-server`.

`shown` is the item inside `item_started` and `item_completed`; `began` and `ended` are the older messages, such as
`exec_command_begin` and `exec_command_end`. Facts without a field in Helmsman come from `raw`, Codex's own item.
"""

from __future__ import annotations

import os.path
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from helmsman.base.json_values import integer, mapping, optional_text, present, sequence, snake_case, text, texts
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
    from collections.abc import Iterable, Mapping

    from helmsman.model.events import PathChange

CompatMessage: TypeAlias = dict[str, Any]
Raw: TypeAlias = "Mapping[str, Any]"

# Sessions are called rollouts in the original's messages.
_CITED: Final = {"threadIds": "rolloutIds"}
_SHELL_WORDS: Final = 3
"""`/bin/bash -lc SCRIPT`: Codex runs everything this way."""


def shown(item: Item, raw: Raw, *, ended: bool) -> CompatMessage | None:
    """Return the item; None if the original did not show it, or Helmsman does not know it."""
    match item:
        case UserMessage():
            content = {"type": "text", "text": item.text, "text_elements": list[Any]()}
            return {"type": "UserMessage", "id": item.id, "content": [content]}
        case AgentMessage():
            # The start of a message had no text yet.
            content = {"type": "Text", "text": item.text if ended else ""}
            more = present({"phase": item.phase, "memory_citation": _citation(raw)})
            return {"type": "AgentMessage", "id": item.id, "content": [content], **more}
        case Reasoning():
            parts = {"summary_text": _parts(item, raw), "raw_content": texts(raw.get("content"))}
            return {"type": "Reasoning", "id": item.id, **parts}
        case ProposedPlan():
            return {"type": "Plan", "id": item.id, "text": item.text}
        case CommandExecution():
            result = _command_result(item) if ended else {"status": "in_progress"}
            return {"type": "CommandExecution", "id": item.id, **_command(item, raw), **result}
        case FileChange():
            status = {"status": _status(item)} if ended else {}
            return {"type": "FileChange", "id": item.id, "changes": changes_by_path(item.changes), **status}
        case McpToolCall():
            # The app-server's spelling of a running tool call, unlike the snake_case of commands.
            outcome = {**_mcp_result(item, raw), "status": item.status} if ended else {"status": "inProgress"}
            return {"type": "McpToolCall", "id": item.id, **_invocation(item), **outcome, **_mcp_took(raw)}
        case WebSearch():
            return {"type": "WebSearch", "id": item.id, "query": item.query, **_action(raw)}
        case ImageView():
            return {"type": "ImageView", "id": item.id, "path": item.path}
        case ContextCompaction():
            return {"type": "ContextCompaction", "id": item.id}
        case _:
            return None


def began(item: Item, raw: Raw) -> list[CompatMessage]:
    """Return the older messages for the start of an item."""
    match item:
        case CommandExecution():
            return [{"type": "exec_command_begin", "call_id": item.id, **_command(item, raw)}]
        case FileChange():
            return [{"type": "patch_apply_begin", "call_id": item.id, "changes": changes_by_path(item.changes)}]
        case McpToolCall():
            return [{"type": "mcp_tool_call_begin", "call_id": item.id, "invocation": _invocation(item)}]
        case WebSearch():
            return [{"type": "web_search_begin", "call_id": item.id}]
        case _:
            return []


def ended(item: Item, raw: Raw) -> list[CompatMessage]:
    """Return the older messages for the end of an item."""
    match item:
        case UserMessage():
            nothing = {
                name: list[Any]() for name in ("images", "local_images", "audio", "local_audio", "text_elements")
            }
            return [{"type": "user_message", "message": item.text, **nothing}]
        case AgentMessage():
            more = {"phase": item.phase, "memory_citation": _citation(raw)}
            return [{"type": "agent_message", "message": item.text, **more}]
        case Reasoning():
            return [{"type": "agent_reasoning", "text": part} for part in _parts(item, raw)]
        case CommandExecution():
            return [{"type": "exec_command_end", "call_id": item.id, **_command(item, raw), **_command_result(item)}]
        case FileChange():
            success = {"success": item.status == "completed", "status": _status(item)}
            changes = changes_by_path(item.changes)
            return [{"type": "patch_apply_end", "call_id": item.id, **success, "changes": changes}]
        case McpToolCall():
            result = {"Err": item.error} if item.error is not None else {"Ok": _mcp_result(item, raw)["result"]}
            call = {"type": "mcp_tool_call_end", "call_id": item.id, "invocation": _invocation(item)}
            return [{**call, **_mcp_took(raw), "result": result}]
        case WebSearch():
            return [{"type": "web_search_end", "call_id": item.id, "query": item.query, **_action(raw)}]
        case ImageView():
            return [{"type": "view_image_tool_call", "call_id": item.id, "path": item.path}]
        case ContextCompaction():
            return [{"type": "context_compacted"}]
        case _:
            return []


def command_words(command: str) -> list[str]:
    """Split a command into words; the engine has it as one string."""
    try:
        return shlex.split(command)
    except ValueError:  # not something that words were joined to
        return [command]


def parsed_command(words: list[str], raw: Raw, directory: str | None) -> list[CompatMessage]:
    """Return Codex's analysis of a command (`commandActions`), or `unknown`, which is always valid."""
    actions = [_parsed(mapping(action), directory) for action in sequence(raw.get("commandActions"))]
    # A wrapped command has three words; its script is the last.
    return actions or [{"type": "unknown", "cmd": words[-1] if len(words) == _SHELL_WORDS else shlex.join(words)}]


def _parsed(action: Raw, directory: str | None) -> CompatMessage:
    command, path = text(action.get("command")), optional_text(action.get("path"))
    match action.get("type"):
        case "read":
            name = optional_text(action.get("name"))
            return {"type": "read", "cmd": command, "name": name, "path": _path_as_written(command, path, directory)}
        case "search":
            return {"type": "search", "cmd": command, "query": optional_text(action.get("query")), "path": path}
        case "listFiles":
            return {"type": "list_files", "cmd": command, "path": path}
        case _:
            return {"type": "unknown", "cmd": command}


def _path_as_written(command: str, path: str | None, directory: str | None) -> str | None:
    """Return the path of a file as the command has it: the app-server makes it absolute."""
    if path is None or directory is None:
        return path
    # Compared after normalization, because the command may say ./file or dir/../file.
    file = Path(os.path.normpath(path))
    for word in command_words(command):
        if os.path.normpath(Path(directory, word)) == str(file):
            return word
    return str(file.relative_to(directory)) if file.is_relative_to(directory) else path


def changes_by_path(changes: Iterable[PathChange]) -> CompatMessage:
    """Return the files of a change, each with its new content, its old content, or its diff."""
    return {change.path: _file_change(change) for change in changes}


def _file_change(change: PathChange) -> CompatMessage:
    if change.kind == "update":
        return {"type": "update", "unified_diff": change.diff or "", "move_path": change.moved_to}
    return {"type": change.kind, "content": change.diff or ""}


def _parts(item: Reasoning, raw: Raw) -> list[str]:
    """Return the parts of the summary, or one part if Codex does not separate them (`--engine exec`)."""
    return texts(raw["summary"]) if "summary" in raw else [item.text] if item.text else []


def _citation(raw: Raw) -> CompatMessage | None:
    """Return the memories that a message cites, with the original's name for their sessions."""
    return {_CITED.get(name, name): value for name, value in mapping(raw.get("memoryCitation")).items()} or None


def _action(raw: Raw) -> CompatMessage:
    """Return the action of a web search."""
    action = present(mapping(raw.get("action")))
    return {"action": {**action, "type": snake_case(text(action.get("type")))}} if action else {}


def _mcp_took(raw: Raw) -> CompatMessage:
    milliseconds = integer(raw.get("durationMs"))
    return {} if milliseconds is None else _took(milliseconds)


def _took(milliseconds: int) -> CompatMessage:
    return {"duration": {"secs": milliseconds // 1000, "nanos": milliseconds % 1000 * 1_000_000}}


def _command(item: CommandExecution, raw: Raw) -> CompatMessage:
    words = command_words(item.command)
    return {
        "command": words,
        # The original sent a URI, which exists for absolute paths only.
        "cwd": Path(item.directory).as_uri() if item.directory and Path(item.directory).is_absolute() else None,
        "parsed_cmd": parsed_command(words, raw, item.directory),
        **present({"process_id": raw.get("processId"), "source": snake_case(text(raw.get("source"))) or None}),
    }


def _command_result(item: CommandExecution) -> CompatMessage:
    return {
        "status": item.status,
        "stdout": item.output,
        # Codex merges both streams of a command.
        "stderr": "",
        "aggregated_output": item.output,
        "formatted_output": item.output,
        "exit_code": item.exit_code,
        **_took(item.duration_ms or 0),
    }


def _status(item: FileChange) -> str:
    return "declined" if item.declined else item.status


def _invocation(item: McpToolCall) -> CompatMessage:
    return {"server": item.server, "tool": item.tool, "arguments": item.arguments}


def _mcp_result(item: McpToolCall, raw: Raw) -> CompatMessage:
    if item.error is not None:
        return {"error": {"message": item.error}}
    result = mapping(raw.get("result"))
    # Both spellings occur.
    structured = result.get("structuredContent", result.get("structured_content"))
    return {"result": {"content": result.get("content", []), **present({"structuredContent": structured})}}
