"""Tools that the agent under test offers to the model, and how scripted actions call them.

Each request lists the offered tools, so scripts are independent of this.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from helmsman.testing import script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.testing.model_request import ModelRequest


class NotOffered(script.ScriptProblem):
    """Raised when the script needs a tool that the agent does not offer in this request."""


# --- Codex -----------------------------------------------------------------------------------------------------------
# Tool names and shapes differ between Codex versions and models: `exec_command`, `shell_command` or `shell`; MCP tools
# by a long name or in a namespace; newer models have one tool, `exec`, which runs JavaScript that calls the others
# ("code mode").


_Json = dict[str, Any]

# In code mode, tools are listed only as declarations in the text of `exec`.
_NESTED_TOOL = re.compile(r"declare const tools: \{ (\w+)\(")
_AGENT_ID = re.compile(r'"agent_id"\s*:\s*"([^"]+)"')


class CodexTools:
    """Calls tools in the conversation of a request."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._kinds: dict[str, str] = {}  # name → function, custom, tool_search, …
        self._namespaces: dict[str, str] = {}  # name → namespace it is called in
        self._nested: set[str] = set()  # reachable from JavaScript only
        self._mcp_tools: set[tuple[str, str]] = set()  # namespace and name; names repeat among servers
        for tool in request.tools:
            self._take(tool, namespace=None)

    def _take(self, tool: Mapping[str, Any], namespace: str | None) -> None:
        kind, name = str(tool.get("type")), str(tool.get("name") or tool.get("type"))
        if kind == "namespace":
            for member in tool.get("tools") or ():
                self._take(member, namespace=name)
            return
        if namespace is not None and namespace.startswith("mcp__"):
            self._mcp_tools.add((namespace, name))
            return
        self._kinds[name] = kind
        if namespace is not None:
            self._namespaces[name] = namespace
        if name == "exec" and kind == "custom":
            self._nested.update(_NESTED_TOOL.findall(str(tool.get("description", ""))))

    @property
    def code_mode(self) -> bool:
        return self._kinds.get("exec") == "custom"

    def item(self, part: script.ToolCall, call_id: str) -> _Json:
        """Return the output item for `part`.

        Raises:
            NotOffered: This Codex has no tool for it.
        """
        match part:
            case script.Run():
                return self._run(part, call_id)
            case script.Patch(text):
                return self._patch(text, call_id)
            case script.Plan(steps, explanation):
                listed = [{"step": step.text, "status": step.status} for step in steps]
                return self._call("update_plan", _without_none(plan=listed, explanation=explanation), call_id)
            case script.McpCall(server, tool, arguments):
                return self._mcp(server, tool, dict(arguments), call_id)
            case script.AskUser():
                return self._call("request_user_input", {"questions": _questions(part)}, call_id)
            case script.RequestPermissions():
                return self._call("request_permissions", _permissions(part), call_id)
            case script.SpawnAgent(message, name=name):
                return self._spawn(message, name, call_id)
            case script.WaitAgents(timeout_ms=timeout_ms):
                return self._wait_agents(timeout_ms, call_id)
            case script.Call(name, arguments):
                return self._call(name, dict(arguments), call_id)
            case _:
                raise AssertionError(f"no tool is known for {part!r}")

    def _run(self, part: script.Run, call_id: str) -> _Json:
        shell = next((name for name in ("exec_command", "shell_command", "shell") if self._offers(name)), None)
        if shell is None:
            raise self._refusal("a shell")
        arguments = _without_none(workdir=part.workdir)
        if part.escalate is not None:
            arguments |= {"sandbox_permissions": "require_escalated", "justification": part.escalate}
            arguments |= _without_none(prefix_rule=part.prefix_rule)
        # Versions differ in the name and in the form of the command.
        if shell == "exec_command":
            arguments |= {"cmd": part.command, **_without_none(yield_time_ms=part.yield_ms)}
        else:
            arguments["command"] = part.command if shell == "shell_command" else ["bash", "-lc", part.command]
        return self._call(shell, arguments, call_id)

    def _patch(self, text: str, call_id: str) -> _Json:
        if self._offers("apply_patch"):
            takes_text = self._kinds.get("apply_patch", "custom") == "custom"
            return self._call("apply_patch", text if takes_text else {"input": text}, call_id)
        # Codex recognises this form of the command and treats it as the missing tool.
        return self._run(script.Run(f"apply_patch <<'EOF'\n{text.rstrip()}\nEOF"), call_id)

    def _mcp(self, server: str, tool: str, arguments: _Json, call_id: str) -> _Json:
        long_name = f"mcp__{server}__{tool}"
        if self.code_mode:
            return _javascript(long_name, arguments, call_id, self._namespaces.get("exec"))
        if long_name in self._kinds:
            return self._call(long_name, arguments, call_id)
        # With or without the trailing underscores, by version.
        for namespace in (f"mcp__{server}__", f"mcp__{server}"):
            if (namespace, tool) in self._mcp_tools:
                return _function(tool, arguments, call_id, namespace)
        if "tool_search" in self._kinds:  # offered on demand; Codex accepts the call without a prior search
            return _function(tool, arguments, call_id, f"mcp__{server}")
        raise self._refusal(f"the tool {tool!r} of the MCP server {server!r}")

    def _spawn(self, message: str, name: str, call_id: str) -> _Json:
        if self._namespaces.get("spawn_agent") == "collaboration":
            return self._call("spawn_agent", {"message": message, "task_name": name}, call_id)
        return self._multi_agent("spawn_agent", {"message": message}, call_id)

    def _wait_agents(self, timeout_ms: int, call_id: str) -> _Json:
        if self._namespaces.get("wait_agent") == "collaboration":
            return self._call("wait_agent", {"timeout_ms": timeout_ms}, call_id)
        # The ids are only in the outputs of the calls that started them.
        agents = [agent for output in self._request.tool_outputs for agent in _AGENT_ID.findall(output)]
        tool = "wait" if "wait" in self._kinds else "wait_agent"  # 0.93 has the short name
        key = "ids" if self._parameter(tool, "ids") else "targets"
        return self._multi_agent(tool, {key: agents, "timeout_ms": timeout_ms}, call_id)

    def _multi_agent(self, name: str, arguments: _Json, call_id: str) -> _Json:
        if not self._offers(name) and "tool_search" in self._kinds:
            return _function(name, arguments, call_id, "multi_agent_v1")
        return self._call(name, arguments, call_id)

    def _parameter(self, tool: str, parameter: str) -> bool:
        offered = next((offer for offer in self._request.tools if offer.get("name") == tool), {})
        return parameter in offered.get("parameters", {}).get("properties", {})

    def _offers(self, name: str) -> bool:
        return name in self._kinds or name in self._nested

    def _call(self, name: str, arguments: _Json | str, call_id: str) -> _Json:
        namespace = self._namespaces.get(name)
        if name in self._kinds:
            # A custom tool takes text, a function an object.
            if isinstance(arguments, str):
                return _custom(name, arguments, call_id, namespace)
            return _function(name, arguments, call_id, namespace)
        if name in self._nested:
            return _javascript(name, arguments, call_id, self._namespaces.get("exec"))
        raise self._refusal(f"the tool {name!r}")

    def _refusal(self, wanted: str) -> NotOffered:
        offered = ", ".join(sorted({*self._kinds, *self._nested, *map(".".join, self._mcp_tools)}))
        return NotOffered(f"The script needs {wanted}, but this Codex offers only: {offered}.")


def _function(name: str, arguments: _Json, call_id: str, namespace: str | None = None) -> _Json:
    item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)}
    return item | _without_none(namespace=namespace)


def _custom(name: str, text: str, call_id: str, namespace: str | None = None) -> _Json:
    item = {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": text}
    return item | _without_none(namespace=namespace)


def _javascript(name: str, arguments: _Json | str, call_id: str, namespace: str | None) -> _Json:
    # The default of ten seconds is short on a busy machine: Codex would start the next step while the tool runs.
    program = (
        '// @exec: {"yield_time_ms": 60000}\n'
        f"const result = await tools.{name}({json.dumps(arguments)});\n"
        'const content = result?.content?.map((piece) => piece.text).join("");\n'
        'text(typeof result === "string" ? result : result?.output ?? content ?? JSON.stringify(result));\n'
    )
    return _custom("exec", program, call_id, namespace)


def _questions(part: script.AskUser) -> list[_Json]:
    return [
        {
            "id": question.id,
            "header": question.header,
            "question": question.text,
            "options": [{"label": option, "description": option} for option in question.options],
        }
        for question in part.questions
    ]


def _permissions(part: script.RequestPermissions) -> _Json:
    files = _without_none(read=list(part.read) or None, write=list(part.write) or None)
    asked = _without_none(network={"enabled": True} if part.network else None, file_system=files or None)
    return {"reason": part.reason, "permissions": asked}


def _without_none(**values: Any) -> _Json:
    return {key: value for key, value in values.items() if value is not None}


# --- other agents ----------------------------------------------------------------------------------------------------
# Every agent names its shell, write and edit tools differently. The schemas in the request give the argument names;
# other required arguments are filled in.


SHELLS: Final = ("run_shell_command", "bash", "Bash", "shell", "execute_bash")
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
            yield _offered_name(request, ("AskUserQuestion",)), {"questions": asked}
        case script.McpCall(server, tool, arguments):
            yield _offered_name(request, (f"mcp__{server}__{tool}",)), arguments
        case script.SpawnAgent(message, name=name):
            given = {"description": name, "prompt": message, "subagent_type": "general-purpose"}
            yield _offered_name(request, ("Agent",)), given
        case script.Call(name, arguments):
            # Claude Code finds further tools on demand, which no request lists.
            yield name if "ToolSearch" in request.tool_names else _offered_name(request, (name,)), arguments
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
    name = _offered_name(request, names)
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


def _offered_name(request: ModelRequest, names: Sequence[str]) -> str:
    for name in names:
        if name in request.tool_names:
            return name
    raise NotOffered(f"The script needs one of {list(names)}, but this agent offers only: {request.tool_names}.")
