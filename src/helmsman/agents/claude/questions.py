"""What Claude Code asks (`can_use_tool`), as a `Question`; what was chosen, as the answer it expects.

Nothing here ever gives a lasting yes: of the permissions it suggests to keep, none is sent back. Each call is allowed by
itself, with the very arguments that were shown; what holds longer is a rule of Helmsman's own.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.change_diff import file_change_diff
from helmsman.agents.claude.binary import TITLE
from helmsman.agents.claude.normalise import EDITS, change_of, edited
from helmsman.base.json_values import mapping, optional_text, sequence, text
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
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.questions import QuestionType, WhereItRuns

REFUSED: Final = "The user refused this."
NOBODY_ASKED: Final = "Refused: nobody is asked in this session, and this would have to be."
_BEFORE_BYTES: Final = 4 * 1024 * 1024
_YES: Final = frozenset({APPROVE, APPROVE_SESSION, ACCEPT})
_IN_THE_DIFF: Final = frozenset(
    {"file_path", "notebook_path", "content", "old_string", "new_string", "new_source", "edits", "replace_all"}
)
"""What a change of a file is given that its diff shows."""
_ASK_USER: Final = "AskUserQuestion"
EXIT_PLAN: Final = "ExitPlanMode"
"""With this it proposes its plan."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that waits for its answer, by the id that Claude Code gave it."""

    request_id: str
    question: Question
    tool: str
    given: Mapping[str, Any]


def read_question(
    line: Mapping[str, Any], session_id: str, turn_id: str | None, directory: str | None, sandbox: WhereItRuns
) -> Asked | None:
    """A `control_request` as a question; None when it is none that anybody here could answer."""
    request, request_id = mapping(line.get("request")), text(line.get("request_id"))
    if request.get("subtype") != "can_use_tool" or not request_id:
        return None
    tool, given = text(request.get("tool_name")), mapping(request.get("input"))
    kind, prompts, details = _read(tool, given, request, directory, sandbox)
    question = Question(
        id="q_" + hashlib.sha256(f"{session_id} {request_id}".encode()).hexdigest()[:10],
        type=kind,
        session_id=session_id,
        turn_id=turn_id,
        item_id=optional_text(request.get("tool_use_id")),
        agent_id=optional_text(request.get("agent_id")),
        prompts=prompts,
        details={key: value for key, value in details.items() if value is not None},
        asker=TITLE,
    )
    return Asked(request_id, question, tool, given)


_Read = tuple["QuestionType", tuple[Prompt, ...], dict[str, Any]]


def _read(
    tool: str, given: Mapping[str, Any], request: Mapping[str, Any], directory: str | None, sandbox: WhereItRuns
) -> _Read:
    approval = (APPROVE, APPROVE_SESSION, DENY, ABORT)
    reason = optional_text(given.get("description")) or optional_text(request.get("decision_reason"))
    if tool == "Bash":
        more = {key: value for key, value in given.items() if key not in ("command", "description", "timeout")}
        details = {
            "command": given.get("command"),
            "directory": directory,
            "reason": reason,
            "sandbox": sandbox,
            "more": more or None,
        }
        return "command_approval", (Prompt(text=f"{TITLE} asks to run a command.", options=approval),), details
    if tool in EDITS:
        before, is_known = _before(text(given.get("file_path")))
        unknown = _unknown(tool, given, before, is_known=is_known)
        change = change_of(tool, given, before if is_known or tool == "Write" else None)
        counts = {"added": change.added, "removed": change.removed} if unknown is None else {}
        replaces_all = any(mapping(edit).get("replace_all") for edit in (given, *sequence(given.get("edits"))))
        details = {
            "diff": None if unknown and replaces_all else file_change_diff((change,), directory),
            "unknown": unknown,
            "input": dict(given) if unknown and tool != "NotebookEdit" else None,
            "changes": [
                {"path": change.path, "kind": change.kind, **{k: v for k, v in counts.items() if v is not None}}
            ],
            "paths": [change.path],
            "sandbox": sandbox,
            "more": {key: value for key, value in given.items() if key not in _IN_THE_DIFF} or None,
        }
        return "patch_approval", (Prompt(text=f"{TITLE} asks to change files.", options=approval),), details
    if tool == _ASK_USER:
        return "user_input", tuple(_prompt(mapping(one)) for one in sequence(given.get("questions"))), {}
    if tool.startswith("mcp__"):
        _, server, name = [*tool.split("__", 2), "", ""][:3]
        # Where the server's name ends is not certain if there are more marks: then no rule allows it.
        is_clear = "__" not in tool[len("mcp__" + server) + 1 :]
        kind = "mcp_tool_call" if is_clear else "mcp_tool_call of this server or another"
        details = {"server": server, "tool": name, "toolParams": dict(given), "approvalKind": kind}
        prompt = Prompt(text=f"{TITLE} asks to call {name} of {server}.", options=(ACCEPT, DECLINE, CANCEL))
        return "mcp_elicitation", (prompt,), details
    details = {"permissions": {tool: dict(given)}, "directory": directory, "reason": reason}
    return "permission_approval", (Prompt(text=f"{TITLE} asks to use {tool}.", options=(APPROVE, DENY)),), details


def _unknown(tool: str, given: Mapping[str, Any], before: str | None, *, is_known: bool) -> str | None:
    """Return why the diff of a change may not be all that it does; None where it is."""
    if tool == "NotebookEdit":
        return "What the cell holds now is not shown."
    if not is_known:
        return "The file cannot be read as text here, so what this replaces, and how often, is not known."
    if tool != "Write" and edited(before or "", given) is None:
        return "The text to be replaced is not in the file exactly once as it is written here, so what happens is not known."
    return None


def _prompt(asked: Mapping[str, Any]) -> Prompt:
    options = [mapping(option) for option in sequence(asked.get("options"))]
    labels = {text(option.get("label")): text(option.get("description")) for option in options}
    return Prompt(
        text=text(asked.get("question")),
        options=tuple(labels),
        free_text=True,
        key=text(asked.get("question")),
        descriptions={label: said for label, said in labels.items() if said and said != label},
    )


def _before(path: str) -> tuple[str | None, bool]:
    """What a file holds now, None where there is none; and whether that is known: it may be too large, or no text."""
    try:
        file = Path(path)
        if not file.is_absolute():
            return None, False
        if not file.is_file() or file.stat().st_size > _BEFORE_BYTES:  # a pipe or a device would be read for ever
            return ("", False) if os.path.lexists(file) else (None, True)
        return _decoded(file.read_bytes()), True
    except (OSError, ValueError):
        return "", False


def _decoded(content: bytes) -> str:
    """Decode a file as Claude Code does, which takes all but little-endian UTF-16 for UTF-8.

    Raises:
        ValueError: It is neither.
    """
    return content.decode("utf-16-le" if content.startswith(codecs.BOM_UTF16_LE) else "utf-8")


# --- answers ---------------------------------------------------------------------------------------------------------


def write_answer(asked: Asked, choices: tuple[Choice, ...] | None) -> dict[str, Any]:
    """The answer to a question; None refuses."""
    if asked.tool == _ASK_USER:
        if choices is None:
            return _response(asked.request_id, {"behavior": "deny", "message": REFUSED})
        given = zip(asked.question.prompts, choices, strict=False)
        answers = {prompt.key: choice.in_full for prompt, choice in given}
        return _response(asked.request_id, {"behavior": "allow", "updatedInput": {**asked.given, "answers": answers}})
    choice = choices[0] if choices else Choice(DENY)
    if choice.value in _YES:
        return allowed(asked)
    return refused(asked, choice.reason or REFUSED, stop=choice.value in (ABORT, CANCEL))


def allowed(asked: Asked) -> dict[str, Any]:
    """This once, and with nothing but what was shown."""
    return _response(asked.request_id, {"behavior": "allow", "updatedInput": dict(asked.given)})


def refused(asked: Asked, message: str, *, stop: bool = False) -> dict[str, Any]:
    """The model reads the message as what its tool gave."""
    return _response(
        asked.request_id, {"behavior": "deny", "message": message, **({"interrupt": True} if stop else {})}
    )


def not_answered(request_id: str, subtype: str) -> dict[str, Any]:
    """To a request that is no question: it is never left waiting, and nothing is granted."""
    error = f"Helmsman does not answer {subtype}"
    return {"type": "control_response", "response": {"subtype": "error", "request_id": request_id, "error": error}}


def _response(request_id: str, response: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": request_id, "response": response},
    }
