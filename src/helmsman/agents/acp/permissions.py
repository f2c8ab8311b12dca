"""What an agent asks before it acts, as a `Question`; what was chosen, as the answer it expects.

An option is chosen by its kind, never by its place or its name. The only yes that is ever sent is `allow_once`: an agent's
own "always" covers more than was shown (a first word, all edits, other sessions), and some write it into the repository.
What holds longer is a rule of Helmsman's own.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.acp.updates import (
    EDITS,
    PLACES,
    AgentCall,
    changes_of,
    command_of,
    is_piece_of_many,
    place_of,
    words_of,
)
from helmsman.agents.change_diff import file_change_diff
from helmsman.base.json_values import mapping, optional_text, sequence, text
from helmsman.model.questions import ABORT, APPROVE, APPROVE_SESSION, DENY, Prompt, Question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.base.jsonrpc import RequestId
    from helmsman.model.events import PathChange
    from helmsman.model.questions import Choice, QuestionType

REQUEST: Final = "session/request_permission"
CANCELLED: Final[Mapping[str, Any]] = {"outcome": {"outcome": "cancelled"}}
_ALLOW: Final = "allow_once"
_REJECT: Final = "reject_once"
_ACTS: Final = frozenset({"execute", *EDITS})
_UNKNOWN: Final = "It replaces a text that may occur several times in the file. Helmsman cannot tell how often."
_SHOWN: Final = frozenset({"command", "description", *PLACES})
_GRANTS_NOTHING: Final = frozenset({"timeout", "initial_wait"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Who asks, and where: what a request does not say itself."""

    title: str
    session_id: str
    turn_id: str
    directory: str
    request_id: RequestId
    sandbox: str
    tool: str | None = None
    """The tool by the name that its program gave it."""
    announced: str | None = None
    """The title that the call had before it was asked about."""
    times: int = 0
    """How often this was asked before in other words, since the call had changed."""


def read_question(params: Mapping[str, Any], call: Mapping[str, Any], asking: Asking) -> Question:
    """A request for a permission as a question. `call` is all that was known of the tool call; what is said now counts."""
    whole = AgentCall("", dict(call))
    whole.take(mapping(params.get("toolCall")))
    call = whole.fields
    if asked := user_questions(params, text(call.get("kind"))):
        return _question(params, asking, "user_input", _user_prompts(asked), {})
    directory = asking.directory
    details: dict[str, Any]
    made: QuestionType
    kind = text(call.get("kind"))
    if kind == "execute":
        details = {**_command(call, directory), "sandbox": asking.sandbox}
        says, made = "run a command", "command_approval"
    elif kind in EDITS and (changes := changes_of(call)):
        is_unknown = is_piece_of_many(call)
        is_shown = any(change.diff for change in changes) and not is_unknown
        details = {
            "diff": None if is_unknown else file_change_diff(changes, directory),
            "changes": [
                {"path": change.path, "kind": change.kind} if is_unknown else _shown(change) for change in changes
            ],
            "paths": [change.path for change in changes],
            "sandbox": asking.sandbox,
            "unknown": _UNKNOWN if is_unknown else None,
            "input": None if is_shown else dict(mapping(call.get("rawInput"))) or None,
            "says": sequence(call.get("content")) or None if is_unknown else None,
        }
        says, made = "change files", "patch_approval"
    else:
        title = text(call.get("title"))
        tool = asking.tool or text(call.get("name")) or title
        details = {
            "permissions": {"tool": tool, "kind": kind or "other"},
            "title": title if title != tool else None,
            "announced": asking.announced if asking.announced not in (title, tool) else None,
            "input": dict(mapping(call.get("rawInput"))) or None,
            "call": optional_text(call.get("toolCallId")),
            "says": words_of(call) or None,
            "directory": directory,
        }
        says, made = "use a tool", "permission_approval"
    can_allow = allowing(params) is not None
    options = (*((APPROVE, APPROVE_SESSION) if can_allow else ()), DENY, ABORT)
    if made == "permission_approval":  # there is no rule that would cover the next one
        options = tuple(option for option in options if option != APPROVE_SESSION)
    return _question(params, asking, made, (Prompt(text=f"{asking.title} asks to {says}.", options=options),), details)


def write_answer(
    params: Mapping[str, Any], question: Question, choices: tuple[Choice, ...] | None
) -> Mapping[str, Any]:
    """The result that carries the choices to the agent; None refuses.

    What they mean is what they meant in the question as it was shown: the request may read otherwise.
    """
    if question.type == "user_input" and choices:
        given = {str(index): choice.value for index, choice in enumerate(choices[: len(question.prompts)])}
        chosen = allowing(params)
        return CANCELLED if chosen is None else {**_selected(chosen), "answers": given}
    if choices and choices[0].value in (APPROVE, APPROVE_SESSION) and (allowed := allowing(params)) is not None:
        return _selected(allowed)
    return refusing(params)


def unasked(params: Mapping[str, Any], *, yes: bool) -> Mapping[str, Any]:
    """The answer that Helmsman gives itself. What is asked in words nobody but a person can answer."""
    allowed = allowing(params) if yes and not user_questions(params) else None
    return refusing(params) if allowed is None else _selected(allowed)


def allowing(params: Mapping[str, Any]) -> str | None:
    """The option that lets this happen once; None where there is none, or more than one and nobody can tell which."""
    return _the_only(params, _ALLOW)


def refusing(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer that lets nothing happen."""
    rejected = _the_only(params, _REJECT)
    return CANCELLED if rejected is None else _selected(rejected)


def user_questions(params: Mapping[str, Any], kind: str = "") -> list[Mapping[str, Any]]:
    """What the agent asks a person in words, where that is what it asks. `kind` is what is known of the call's."""
    call = mapping(params.get("toolCall"))
    is_act = kind in _ACTS or call.get("kind") in _ACTS  # a yes in disguise
    meta = {} if is_act else mapping(call.get("_meta"))
    return [mapping(one) for one in sequence(meta.get("qwenQuestions")) if isinstance(one, dict)]


def _the_only(params: Mapping[str, Any], kind: str) -> str | None:
    options = [mapping(option) for option in sequence(params.get("options"))]
    found = [optional_text(option.get("optionId")) for option in options if option.get("kind") == kind]
    is_clear = len(found) == 1 and [option.get("optionId") for option in options].count(found[0]) == 1
    return found[0] if is_clear else None


def _selected(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


def _question(
    params: Mapping[str, Any],
    asking: Asking,
    kind: QuestionType,
    prompts: tuple[Prompt, ...],
    details: Mapping[str, Any],
) -> Question:
    item_id = optional_text(mapping(params.get("toolCall")).get("toolCallId"))
    # The agent numbers its requests from 0 in each process; turns are never the same.
    again = (asking.times,) if asking.times else ()
    identity = repr((asking.session_id, asking.turn_id, asking.request_id, *again)).encode()
    return Question(
        id="q_" + hashlib.sha256(identity).hexdigest()[:10],
        type=kind,
        session_id=asking.session_id,
        turn_id=asking.turn_id,
        item_id=item_id,
        prompts=prompts,
        asker=asking.title,
        details={name: value for name, value in details.items() if value is not None},
    )


def _command(call: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """A command, where it runs, and what else it is given, as far as that can change what happens."""
    given = mapping(call.get("rawInput"))
    command = text(given.get("command"))
    details: dict[str, Any] = {"command": command_of(call)}
    if not command and (words := words_of(call)):
        return details | _in_words(words, directory)
    more: dict[str, Any] = {}
    for name, value in given.items():
        parts = sequence(value) if name == "commands" else ()  # Copilot's own reading of the command
        is_same = bool(parts) and all(isinstance(part, str) and part in command for part in parts)
        is_shown = name in _SHOWN and isinstance(value, str)
        if value and not is_shown and not is_same and name not in _GRANTS_NOTHING and (name, value) != ("mode", "sync"):
            more[name] = value
    reason = optional_text(given.get("description"))
    return details | {"directory": place_of(call, directory), "reason": reason, "more": more or None}


def _in_words(words: str, directory: str) -> dict[str, Any]:
    """Where a command runs that has its arguments in words alone, as Gemini's have. What is not clear is shown as it is."""
    for here in (directory, os.path.realpath(directory)):
        said = f"[current working directory {here}]"
        if words.startswith(said):
            rest = words.removeprefix(said).strip()
            is_reason = not rest or (rest.startswith("(") and rest.endswith(")"))
            return (
                {"directory": directory, "reason": rest[1:-1] or None, "more": None} if is_reason else {"more": words}
            )
    return {"more": words}


def _shown(change: PathChange) -> dict[str, Any]:
    told = {"path": change.path, "kind": change.kind, "added": change.added, "removed": change.removed}
    return {name: value for name, value in told.items() if value is not None}


def _user_prompts(asked: list[Mapping[str, Any]]) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    for one in asked:
        options = [mapping(option) for option in sequence(one.get("options"))]
        labels = {text(option.get("label")): text(option.get("description")) for option in options}
        prompts.append(
            Prompt(
                text=text(one.get("question")) or text(one.get("header")),
                options=tuple(label for label in labels if label),
                free_text=True,
                key=str(len(prompts)),
                descriptions={label: words for label, words in labels.items() if label and words},
            )
        )
    return tuple(prompts)
