"""Convert a question to a form of a client, and the completed form to answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.base.sanitize import exact
from helmsman.model.question_text import describe
from helmsman.model.questions import DECLINE, DENY, REFUSALS, Prompt, Question

if TYPE_CHECKING:
    from collections.abc import Mapping


SHOWN_DIFF_CHARS: Final = 8000
"""Length up to which a form shows a diff.

A longer diff is cut, with the names and counts of all its files, and cannot be approved there.
"""
TOO_LONG: Final = (
    "This is too long for a form, so it can only be refused here. Look at all of it in the dashboard or in a terminal, and "
    "approve it there: helmsman watch {}"
)
ON_A_PAGE: Final = "A form cannot ask this. Open the question in the dashboard, and answer it there."
_DECISION: Final = "decision"
_REASON: Final = "reason"
_WORDS: Final = "_words"


def form_message(question: Question) -> str:
    """Return the text above the fields."""
    text = describe(question).text(diff_chars=SHOWN_DIFF_CHARS)
    return f"{text}\n{TOO_LONG.format(question.session_id)}" if _is_cut(question) else text


def fits_a_form(question: Question) -> bool:
    """Return whether a form can show all of a question, and may ask it: it is no place for a secret."""
    return not _is_cut(question) and not any(prompt.secret for prompt in question.prompts)


def page_message(question: Question) -> str:
    """Return the text for a client that opens the question in the dashboard."""
    return f"{describe(question).title}\n{ON_A_PAGE}"


def form_schema(question: Question) -> dict[str, Any]:
    """Return the fields, in the subset of JSON schema that elicitation allows."""
    if question.type == "user_input":
        fields = {_name(prompt, index): _field(prompt) for index, prompt in enumerate(question.prompts)}
        words = {
            f"{_name(prompt, index)}{_WORDS}": {"type": "string", "title": exact(prompt.words)}
            for index, prompt in enumerate(question.prompts)
            if prompt.words is not None
        }
        return {"type": "object", "properties": fields | words, "required": list(fields)}
    if question.type == "mcp_elicitation":
        fields = {_name(prompt, index): _field(prompt) for index, prompt in enumerate(question.prompts[1:])}
        return {"type": "object", "properties": fields}
    # Many clients have the first choice selected when the form opens: Enter, pressed by habit, says no.
    options = sorted(_offered(question), key=lambda option: option not in REFUSALS)
    decision = {"type": "string", "title": "Decision", "enum": options}
    reason = {"type": "string", "title": "Reason", "description": f"Why not? {question.asker} is told."}
    return {"type": "object", "properties": {_DECISION: decision, _REASON: reason}, "required": [_DECISION]}


def form_answers(question: Question, action: str, content: Mapping[str, Any] | None) -> list[str] | None:
    """Return the answers in a form; None if the user dismissed it, which leaves the question open."""
    filled = content or {}
    if action == "cancel":
        return None
    match question.type:
        case "mcp_elicitation":
            if action == "decline":
                return [DECLINE]
            fields = [
                _chosen(prompt, filled.get(_name(prompt, index))) for index, prompt in enumerate(question.prompts[1:])
            ]
            return ["accept", *fields]
        case "user_input":
            if action == "decline":
                return None
            return [_with_words(prompt, _name(prompt, index), filled) for index, prompt in enumerate(question.prompts)]
        case _:
            # A form without a decision never counts as a yes.
            decision = DENY if action == "decline" else _text(filled.get(_DECISION)) or DENY
            if _is_cut(question) and decision not in REFUSALS:
                return None  # a form approves only the parts that it shows
            reason = _text(filled.get(_REASON)).strip()
            return [f"{decision}: {reason}" if reason else decision]


def _is_cut(question: Question) -> bool:
    return describe(question).is_cut(SHOWN_DIFF_CHARS)


def _offered(question: Question) -> list[str]:
    """Return the options that a form offers: no yes to content that it does not show."""
    options = question.prompts[0].options
    return [option for option in options if option in REFUSALS or not _is_cut(question)]


def _with_words(prompt: Prompt, name: str, filled: Mapping[str, Any]) -> str:
    answer = _chosen(prompt, filled.get(name))
    words = _text(filled.get(f"{name}{_WORDS}")).strip() if prompt.words is not None else ""
    return f"{answer}: {words}" if words else answer


def _name(prompt: Prompt, index: int) -> str:
    return prompt.key or f"answer{index + 1}"


def _field(prompt: Prompt) -> dict[str, Any]:
    field: dict[str, Any] = {"type": "string", "title": exact(prompt.text)}
    shown = list(_shown_options(prompt))
    if shown and not prompt.free_text:
        field["enum"] = shown
    # An enum would allow nothing else, so suggestions for free text go into the description.
    elif shown:
        field["description"] = f"For example: {', '.join(shown)}"
    return field


def _shown_options(prompt: Prompt) -> dict[str, str]:
    """Return the options by their labels: clients show the values of a field unchanged."""
    return {exact(option): option for option in prompt.options}


def _chosen(prompt: Prompt, value: Any) -> str:
    text = _text(value)
    return _shown_options(prompt).get(text, text)


def _text(value: Any) -> str:
    # As JSON spells it: `str` would write True and False.
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
