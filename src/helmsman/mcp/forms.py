"""A question as a form that an MCP client shows to a person, and the filled-in form as answers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.questions import DECLINE, DENY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.questions import Prompt, Question

_SHOWN_DIFF_CHARS: Final = 4000
_DECISION: Final = "decision"
_REASON: Final = "reason"
_WORDS: Final = "_words"


def form_message(question: Question) -> str:
    """What the person reads above the fields."""
    details = question.details
    lines = [prompt.text for prompt in question.prompts[:1]]
    if directory := details.get("directory"):
        lines.append(f"In: {directory}")
    if plan := details.get("plan"):
        lines.insert(0, f"{plan}\n")
    if diff := details.get("diff"):
        lines.append(diff if len(diff) <= _SHOWN_DIFF_CHARS else diff[:_SHOWN_DIFF_CHARS] + "\n… (cut)")
    return "\n".join(lines)


def form_schema(question: Question) -> dict[str, Any]:
    """The fields, in the subset of JSON schema that elicitation allows."""
    if question.type == "user_input":
        fields = {_name(prompt, index): _field(prompt) for index, prompt in enumerate(question.prompts)}
        words = {
            f"{_name(prompt, index)}{_WORDS}": {"type": "string", "title": prompt.words}
            for index, prompt in enumerate(question.prompts)
            if prompt.words is not None
        }
        return {"type": "object", "properties": fields | words, "required": list(fields)}
    if question.type == "mcp_elicitation":
        fields = {_name(prompt, index): _field(prompt) for index, prompt in enumerate(question.prompts[1:])}
        return {"type": "object", "properties": fields}
    options = list(question.prompts[0].options)
    decision = {"type": "string", "title": "Decision", "enum": options}
    reason = {"type": "string", "title": "Reason", "description": "Why not? Codex is told."}
    return {"type": "object", "properties": {_DECISION: decision, _REASON: reason}, "required": [_DECISION]}


def form_answers(question: Question, action: str, content: Mapping[str, Any] | None) -> list[str] | None:
    """The answers that a form gives; None when the person dismissed it, which leaves the question open."""
    filled = content or {}
    if action == "cancel":
        return None
    match question.type:
        case "mcp_elicitation":
            if action == "decline":
                return [DECLINE]
            fields = [_text(filled.get(_name(prompt, index))) for index, prompt in enumerate(question.prompts[1:])]
            return ["accept", *fields]
        case "user_input":
            if action == "decline":
                return None
            return [_with_words(prompt, _name(prompt, index), filled) for index, prompt in enumerate(question.prompts)]
        case _:
            decision = DENY if action == "decline" else _text(filled.get(_DECISION)) or DENY
            reason = _text(filled.get(_REASON)).strip()
            return [f"{decision}: {reason}" if reason else decision]


def _with_words(prompt: Prompt, name: str, filled: Mapping[str, Any]) -> str:
    answer = _text(filled.get(name))
    words = _text(filled.get(f"{name}{_WORDS}")).strip() if prompt.words is not None else ""
    return f"{answer}: {words}" if words else answer


def _name(prompt: Prompt, index: int) -> str:
    return prompt.key or f"answer{index + 1}"


def _field(prompt: Prompt) -> dict[str, Any]:
    field: dict[str, Any] = {"type": "string", "title": prompt.text}
    if prompt.options and not prompt.free_text:
        field["enum"] = list(prompt.options)
    elif prompt.options:
        field["description"] = f"For example: {', '.join(prompt.options)}"
    return field


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
