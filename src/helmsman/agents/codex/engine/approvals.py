"""What Codex asks, as a `Question`; what was chosen, as the result Codex expects.

Two tables, one for each direction, keyed by the request's method. A method that is not here is not a question: it is
refused by whoever received it. Nothing here ever gives Codex a lasting yes (`acceptForSession`,
`acceptWithExecpolicyAmendment`, MCP `persist`): what it would cover is Codex's to say, and may be more than was shown.
Each time is accepted by itself; what holds longer is a rule of Helmsman's own, which answers the next question.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.change_diff import file_change_diff
from helmsman.agents.codex.binary import TITLE
from helmsman.base.json_values import mapping, present, rows
from helmsman.errors import AnswerInvalid
from helmsman.model.questions import (
    ABORT,
    ACCEPT,
    APPROVE,
    APPROVE_SESSION,
    CANCEL,
    DECLINE,
    DENY,
    Choice,
    Prompt,
    Question,
    QuestionType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.base.jsonrpc import IncomingRequest
    from helmsman.model.events import FileChange, PathChange
    from helmsman.model.questions import WhereItRuns

COMMAND: Final = "item/commandExecution/requestApproval"
FILE_CHANGE: Final = "item/fileChange/requestApproval"
PERMISSIONS: Final = "item/permissions/requestApproval"
USER_INPUT: Final = "item/tool/requestUserInput"
ELICITATION: Final = "mcpServer/elicitation/request"
LEGACY_COMMAND: Final = "execCommandApproval"
LEGACY_FILE_CHANGE: Final = "applyPatchApproval"

_DECISIONS: Final = {APPROVE: "accept", APPROVE_SESSION: "accept", DENY: "decline", ABORT: "cancel"}
_LEGACY_DECISIONS: Final = {APPROVE: "approved", APPROVE_SESSION: "approved", DENY: "denied", ABORT: "abort"}

_TOOL_APPROVAL: Final = "mcp_tool_call_approval_"
"""Codex 0.115 asks in this way whether an MCP tool may be called, and offers answers of its own that last."""
_LASTING: Final = re.compile(r"session|always|again|remember", re.IGNORECASE)


def thread_of(request: IncomingRequest) -> str | None:
    """The thread a request belongs to."""
    thread_id = request.params.get("threadId") or request.params.get("conversationId")
    return thread_id if isinstance(thread_id, str) else None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a request refers to without saying it: the directory of its session, the file change it asks for, the MCP
    tools (server, tool) being called, and what is proved of a command (`helmsman.agents.codex.engine.sandbox_proof`)."""

    directory: str | None = None
    patch: FileChange | None = None
    tools: frozenset[tuple[str, str]] = frozenset()
    sandbox: WhereItRuns = "outside"


def item_of(request: IncomingRequest) -> str | None:
    """The item a request belongs to."""
    return _text(request.params, "itemId") or _text(request.params, "callId")


def read_question(request: IncomingRequest, session_id: str, around: RequestContext) -> Question | None:
    """The request as a question for the owner of `session_id`, or None when it is not one."""
    reader = _READERS.get(request.method)
    if reader is None:
        return None
    params = request.params
    thread_id = thread_of(request)
    turn_id = _text(params, "turnId")
    item_id = item_of(request)
    kind, prompts, details = reader(params, around)
    return Question(
        id=_question_id(thread_id, turn_id, item_id, request.id),
        type=kind,
        session_id=session_id,
        turn_id=turn_id,
        item_id=item_id,
        agent_id=thread_id if thread_id != session_id else None,
        prompts=prompts,
        details=present(details),
        environment=_text(params, "environmentId"),
        asker=TITLE,
    )


def write_answer(request: IncomingRequest, choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    """The result that carries the choices to Codex; None refuses.

    Raises:
        AnswerInvalid: A form field's text does not fit its type.
    """
    return _WRITERS[request.method](request.params, choices)


def _question_id(*identity: object) -> str:
    # The same request sent again (to a new connection) keeps its id, and an id never comes back for another question:
    # Codex numbers its requests from 0 in each process, so the number alone would.
    return "q_" + hashlib.sha256(repr(identity).encode()).hexdigest()[:10]


def _text(params: Mapping[str, Any], key: str) -> str | None:
    value = params.get(key)
    return value if isinstance(value, str) and value else None


_Read = tuple[QuestionType, tuple[Prompt, ...], dict[str, Any]]

# --- commands and file changes ---------------------------------------------------------------------------------------


def _read_command(params: Mapping[str, Any], around: RequestContext) -> _Read:
    command = params.get("command")
    if isinstance(command, list):  # the legacy form sends the words
        command = shlex.join(str(word) for word in command)
    reason = _text(params, "reason")
    extra = params.get("additionalPermissions")
    # A command that brings extra permissions is approved each time: "the same command again" does not cover them.
    options = (APPROVE, DENY, ABORT) if extra else (APPROVE, APPROVE_SESSION, DENY, ABORT)
    kind = params.get("kind")
    details = {
        "command": command,
        "kind": kind if kind != "command" else None,
        "directory": _text(params, "cwd"),
        "reason": reason,
        "additionalPermissions": extra,
        "networkContext": params.get("networkApprovalContext"),
        "sandbox": around.sandbox,
    }
    return "command_approval", (Prompt(text="Codex asks to run a command.", options=options),), details


def _read_file_change(params: Mapping[str, Any], around: RequestContext) -> _Read:
    reason = _text(params, "reason")
    root = _text(params, "grantRoot")
    changes = around.patch.changes if around.patch is not None else ()
    details = {
        "diff": file_change_diff(changes, around.directory) if changes else None,
        "changes": list(map(_change, changes)) or None,
        "paths": [path for change in changes for path in (change.path, change.moved_to) if path is not None] or None,
        "reason": reason,
        "grantRoot": root,
        "files": params.get("fileChanges"),
    }
    prompt = Prompt(text="Codex asks to change files.", options=(APPROVE, APPROVE_SESSION, DENY, ABORT))
    return "patch_approval", (prompt,), details


def _change(change: PathChange) -> dict[str, Any]:
    told = {
        "path": change.path,
        "kind": change.kind,
        "movedTo": change.moved_to,
        "added": change.added,
        "removed": change.removed,
    }
    return present(told)


def _write_decision(_params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    return {"decision": _DECISIONS[choices[0].value if choices else DENY]}


def _write_legacy_decision(_params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    return {"decision": _LEGACY_DECISIONS[choices[0].value if choices else DENY]}


# --- permissions -----------------------------------------------------------------------------------------------------


def _read_permissions(params: Mapping[str, Any], _around: RequestContext) -> _Read:
    reason = _text(params, "reason")
    wanted = mapping(params.get("permissions"))
    details = {"permissions": wanted, "directory": _text(params, "cwd"), "reason": reason}
    prompt = Prompt(text="Codex asks for more permissions.", options=(APPROVE, APPROVE_SESSION, DENY))
    return "permission_approval", (prompt,), details


def _write_permissions(params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    choice = choices[0].value if choices else DENY
    if choice == DENY:
        return {"permissions": {}, "scope": "turn"}
    granted = present(mapping(params.get("permissions")))
    return {"permissions": granted, "scope": "session" if choice == APPROVE_SESSION else "turn"}


# --- questions of the model ------------------------------------------------------------------------------------------


def _read_user_input(params: Mapping[str, Any], _around: RequestContext) -> _Read:
    prompts: list[Prompt] = []
    for entry in rows(params.get("questions")):
        options = rows(entry.get("options"))
        labels = {str(option["label"]): str(option.get("description") or "") for option in options if "label" in option}
        if str(entry.get("id", "")).startswith(_TOOL_APPROVAL):
            labels = {label: text for label, text in labels.items() if not _LASTING.search(label)}
        prompts.append(
            Prompt(
                text=_text(entry, "question") or _text(entry, "header") or "Codex asks for your input.",
                options=tuple(labels),
                free_text=bool(entry.get("isOther")) or not labels,
                key=str(entry.get("id", "")),
                secret=bool(entry.get("isSecret")),
                descriptions={label: text for label, text in labels.items() if text},
            )
        )
    headers = [_text(entry, "header") for entry in rows(params.get("questions"))]
    return "user_input", tuple(prompts), {"headers": headers if any(headers) else None}


def _write_user_input(params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    keys = [str(entry.get("id", "")) for entry in rows(params.get("questions"))]
    given = zip(keys, choices or (), strict=False)
    return {"answers": {key: {"answers": [choice.in_full]} for key, choice in given}}


# --- elicitations of MCP servers -------------------------------------------------------------------------------------


def _read_elicitation(params: Mapping[str, Any], around: RequestContext) -> _Read:
    meta = mapping(params.get("_meta"))
    server = _text(params, "serverName")
    message = _text(params, "message") or f"The MCP server {server} asks for input."
    prompts = [Prompt(text=message, options=(ACCEPT, DECLINE, CANCEL))]
    for name, schema in _fields(params).items():
        choices = _choices(schema)
        label = _text(schema, "title") or name
        hint = _text(schema, "description")
        prompts.append(
            Prompt(
                text=f"{label}: {hint}" if hint else label,
                options=tuple(choices),
                key=name,
                descriptions={value: title for value, title in choices.items() if title != value},
            )
        )
    details = {
        "server": server,
        "mode": _text(params, "mode"),
        "url": _text(params, "url"),
        "approvalKind": _text(meta, "codex_approval_kind"),
        "tool": _called_tool(message, around.tools, server) if "codex_approval_kind" in meta else None,
        "toolDescription": _text(meta, "tool_description"),
        "toolParams": meta.get("tool_params"),
    }
    return "mcp_elicitation", tuple(prompts), details


def _called_tool(message: str, running: frozenset[tuple[str, str]], server: str | None) -> str | None:
    """The tool to be approved: the request names it in its sentence only, so it counts only if it is being called."""
    named = re.search(r'run tool "(.+)"\?$', message)
    tool = named.group(1) if named is not None else None
    return tool if tool is not None and server is not None and (server, tool) in running else None


def _fields(params: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = mapping(mapping(params.get("requestedSchema")).get("properties"))
    return {name: mapping(schema) for name, schema in properties.items()}


def _choices(schema: Mapping[str, Any]) -> dict[str, str]:
    """The values a form field allows, each with its title; empty when any text will do."""
    if schema.get("type") == "boolean":
        return {"true": "true", "false": "false"}
    titled = schema.get("oneOf")
    if isinstance(titled, list):
        return {str(mapping(one)["const"]): str(mapping(one).get("title")) for one in titled if "const" in mapping(one)}
    values = schema.get("enum")
    if isinstance(values, list):
        names = schema.get("enumNames")
        titles = names if isinstance(names, list) and len(names) == len(values) else values
        return {str(value): str(title) for value, title in zip(values, titles, strict=True)}
    return {}


def _write_elicitation(params: Mapping[str, Any], choices: tuple[Choice, ...] | None) -> Mapping[str, Any]:
    action = choices[0].value if choices else DECLINE
    if action != ACCEPT:
        return {"action": action, "content": None}
    fields = _fields(params)
    required = mapping(params.get("requestedSchema")).get("required")
    needed = set(required) if isinstance(required, list) else set[str]()
    content: dict[str, Any] = {}
    for (name, schema), choice in zip(fields.items(), (choices or ())[1:], strict=True):
        text = choice.in_full
        if text or name in needed:
            content[name] = _field_value(name, schema, text)
    return {"action": ACCEPT, "content": content}


def _field_value(name: str, schema: Mapping[str, Any], text: str) -> Any:
    kind = schema.get("type")
    try:
        match kind:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return {"true": True, "false": False}[text]
            case "array":
                return [part.strip() for part in text.split(",") if part.strip()]
            case _:
                return text
    except (ValueError, KeyError):
        raise AnswerInvalid(f"{text!r} is not a valid {kind} for {name!r}. Give a value of that type.") from None


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], RequestContext], _Read]]] = {
    COMMAND: _read_command,
    FILE_CHANGE: _read_file_change,
    PERMISSIONS: _read_permissions,
    USER_INPUT: _read_user_input,
    ELICITATION: _read_elicitation,
    LEGACY_COMMAND: _read_command,
    LEGACY_FILE_CHANGE: _read_file_change,
}

_WRITERS: Final[Mapping[str, Callable[[Mapping[str, Any], tuple[Choice, ...] | None], Mapping[str, Any]]]] = {
    COMMAND: _write_decision,
    FILE_CHANGE: _write_decision,
    PERMISSIONS: _write_permissions,
    USER_INPUT: _write_user_input,
    ELICITATION: _write_elicitation,
    LEGACY_COMMAND: _write_legacy_decision,
    LEGACY_FILE_CHANGE: _write_legacy_decision,
}
