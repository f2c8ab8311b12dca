"""Map the actions of a script to the tools of each agent.

Every agent names its shell, write and edit tools differently. The schemas in the request give the argument names; other
required arguments are filled in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from helmsman.testing import script
from helmsman.testing.dialect import NotOffered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.testing.model_request import ModelRequest

SHELLS: Final = ("run_shell_command", "bash", "Bash", "shell")
WRITERS: Final = ("write_file", "write", "create", "Write")
EDITORS: Final = ("replace", "edit", "Edit")
_PATHS: Final = ("file_path", "filePath", "absolute_path", "path")
_CONTENTS: Final = ("content", "file_text", "contents")
_OLD: Final = ("old_string", "oldString", "old_str")
_NEW: Final = ("new_string", "newString", "new_str")
# Agents refuse a call without an argument that their schema requires.
_FILLED: Final[Mapping[str, Any]] = {"string": "scripted", "boolean": False, "integer": 1, "number": 1, "array": []}
_DIRECTORY: Final = re.compile(
    r"(?i)(?:working|workspace|project)\s+(?:directory|root|folder)[^\n/]{0,40}(/[^\s<>'\"`)]+)"
)


def agent_calls(part: script.ToolCall, request: ModelRequest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tools to call for a part, with their arguments.

    Raises:
        NotOffered: This agent has no tool for it.
    """
    match part:
        case script.Run(command, yield_ms=yield_ms):
            # Claude Code has no time after which a command moves to the background, only a flag.
            later: dict[tuple[str, ...], Any] = {} if yield_ms is None else {("run_in_background",): True}
            yield _filled(request, SHELLS, {("command",): command, ("description",): "run a command", **later})
        case script.Patch():
            for change in part.changes():
                yield _changed(change, request)
        case script.AskUser(questions):
            asked = [
                {
                    "question": one.text,
                    "header": one.header,
                    "multiSelect": False,
                    "options": [{"label": option, "description": option} for option in one.options],
                }
                for one in questions
            ]
            yield _offered(request, ("AskUserQuestion",)), {"questions": asked}
        case script.McpCall(server, tool, arguments):
            yield _offered(request, (f"mcp__{server}__{tool}",)), arguments
        case script.SpawnAgent(message, name=name):
            given = {"description": name, "prompt": message, "subagent_type": "general-purpose"}
            yield _offered(request, ("Agent",)), given
        case script.Call(name, arguments):
            # Claude Code finds further tools on demand, which no request lists.
            yield name if "ToolSearch" in request.tool_names else _offered(request, (name,)), arguments
        case _:
            raise NotOffered(f"No tool of this agent is known for {type(part).__name__}.")


def _changed(change: script.FileEdit, request: ModelRequest) -> tuple[str, Mapping[str, Any]]:
    # The tools of these agents take absolute paths only.
    path = change.path if change.path.startswith("/") else f"{_directory(request)}/{change.path}"
    if change.kind == "add":
        return _filled(request, WRITERS, {_PATHS: path, _CONTENTS: change.new})
    if change.kind == "update" and change.moved_to is None:
        return _filled(request, EDITORS, {_PATHS: path, _OLD: change.old, _NEW: change.new})
    raise NotOffered("This agent deletes and moves files by commands only. Use run().")


def _directory(request: ModelRequest) -> str:
    """Return the agent's working directory from its instructions to the model."""
    # Agents tell their model the directory in their own words, and some in a message instead of the instructions.
    said = [request.instructions, *(str(item.get("content", "")) for item in request.input)]
    found = next((match for text in said if (match := _DIRECTORY.search(text)) is not None), None)
    if found is None:
        raise NotOffered("This agent does not tell its model where it works. Use an absolute path.")
    return found[1].rstrip("/.")


def _filled(
    request: ModelRequest, names: Sequence[str], values: Mapping[tuple[str, ...], Any]
) -> tuple[str, Mapping[str, Any]]:
    name = _offered(request, names)
    schema = _schema(request, name)
    properties = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    for spellings, value in values.items():
        # Each agent has its own spelling, and its schema tells which.
        known = next((spelling for spelling in spellings if spelling in properties), None)
        if known is not None:
            arguments[known] = value
    for required in schema.get("required") or ():
        if required not in arguments:
            kind = str(properties.get(required, {}).get("type", "string")).lower()
            arguments[required] = _FILLED.get(kind, {})
    return name, arguments


def _schema(request: ModelRequest, name: str) -> Mapping[str, Any]:
    offered = next(tool for tool in request.tools if tool.get("name") == name)
    schema = offered.get("parameters") or offered.get("input_schema")
    return schema if isinstance(schema, dict) else {}


def _offered(request: ModelRequest, names: Sequence[str]) -> str:
    for name in names:
        if name in request.tool_names:
            return name
    raise NotOffered(f"The script needs one of {list(names)}, but this agent offers only: {request.tool_names}.")
