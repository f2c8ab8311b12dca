"""Something an agent waits for a person, a rule or another agent to answer.

A `Question` is one request with one or more `Prompt`s; the answer is one string per prompt. An answer to a prompt with
options is the option's name, optionally with a reason after the first colon (`deny: touches production`); a prompt
without options takes free text. This module knows what a legal answer is, not who gives it or how it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import field

from helmsman.base.structs import Value
from helmsman.errors import AnswerInvalid

QuestionType = Literal["command_approval", "patch_approval", "permission_approval", "user_input", "mcp_elicitation"]

WhereItRuns = Literal["inside", "inside-then-outside", "outside"]
"""Where an approved action runs: certainly in the sandbox; in the sandbox, and outside if that fails; or possibly
outside.
"""

APPROVE: Final = "approve"
APPROVE_SESSION: Final = "approve_session"
APPROVE_ALWAYS: Final = "approve_always"
DENY: Final = "deny"
ABORT: Final = "abort"
ACCEPT: Final = "accept"
DECLINE: Final = "decline"
CANCEL: Final = "cancel"
REVISE: Final = "revise"
STOP: Final = "stop"
WAIT: Final = "wait"
UNANSWERED: Final = "unanswered"
"""Not an option: outcome of a question for text that had no answer."""

OWN_ASKER: Final = "Helmsman"
"""Asker of Helmsman's own questions."""
BUDGET_ASKED: Final = "budget"
"""Key of the prompt that asks for a higher budget."""

REFUSALS: Final = frozenset({DENY, ABORT, DECLINE, CANCEL, STOP})
"""Options that refuse."""

YES_MEANS: Final = (APPROVE, ACCEPT)
"""Options that `yes` represents: those that cover this question and nothing more."""
NO_MEANS: Final = (DENY, DECLINE, CANCEL, STOP, ABORT)
"""Options that `no` represents, in order of preference."""


class Prompt(Value, frozen=True, kw_only=True):
    """Prompt of a question. Without `options`, or with `free_text`, any text is an answer.

    `words` describes the text that may follow an option after a colon, for forms with a field for it.
    """

    text: str
    options: tuple[str, ...] = ()
    free_text: bool = False
    key: str = ""
    secret: bool = False
    descriptions: Mapping[str, str] = field(default_factory=dict)
    words: str | None = None


class Question(Value, frozen=True, kw_only=True):
    """Request of an agent, which `asker` names.

    `details` holds the facts for a decision: command, directory, diff, reason, …, as the agent reported them;
    `question_text.describe` puts them into words that are safe to show. `environment` is where a command would run.
    """

    id: str
    type: QuestionType
    session_id: str
    turn_id: str | None
    item_id: str | None = None
    agent_id: str | None = None
    prompts: tuple[Prompt, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    environment: str | None = None
    asker: str


class Choice(Value, frozen=True):
    """Validated answer: the option or text chosen, and the reason."""

    value: str
    reason: str | None = None

    @property
    def in_full(self) -> str:
        """Answer as given: the choice, and the reason after a colon."""
        return self.value if self.reason is None else f"{self.value}: {self.reason}"


def own_question(
    session_id: str,
    turn_id: str | None,
    prompt: Prompt,
    details: Mapping[str, Any],
    question_type: QuestionType = "user_input",
) -> Question:
    """Return a question of Helmsman itself."""
    from secrets import token_hex  # few processes ask, so others need not load it

    return Question(
        id=f"q_{token_hex(5)}",
        type=question_type,
        session_id=session_id,
        turn_id=turn_id,
        asker=OWN_ASKER,
        prompts=(prompt,),
        details=details,
    )


def read_answers(question: Question, answers: Sequence[str]) -> tuple[Choice, ...]:
    """Check answers against the question.

    Raises:
        AnswerInvalid: Wrong count, an option that was not offered, or no valid text. Nothing has been sent.
    """
    prompts = question.prompts
    if question.type == "mcp_elicitation" and len(answers) == 1 and _refuses(prompts, answers[0]):
        prompts = prompts[:1]  # a declined form need not be filled in
    if len(answers) != len(prompts):
        raise AnswerInvalid(
            f"Question {question.id} has {len(question.prompts)} part(s) and got {len(answers)} answer(s). "
            "Give exactly one answer for each part, in their order.",
        )
    # An agent's own options for its user may be called anything: there, only their names are answers.
    may_use_words = question.type != "user_input" or question.asker == OWN_ASKER
    return tuple(
        _read(prompt, _in_options(prompt, answer) if may_use_words else answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    )


def _read(prompt: Prompt, answer: str) -> Choice:
    try:
        answer.encode("utf-8")
    except UnicodeEncodeError:  # it could not be sent, and the question would be closed by then
        raise AnswerInvalid("The answer has characters that are no valid text. Remove them.") from None
    # Free text may contain a colon.
    if not prompt.options:
        return Choice(answer)
    if answer in prompt.options:
        return Choice(answer)
    if (option := _offered(prompt, answer)) is not None:
        return Choice(option)
    name, colon, reason = answer.partition(":")
    if colon and (option := _offered(prompt, name)) is not None:
        return Choice(option, reason.strip() or None)
    if prompt.free_text:
        return Choice(answer)
    raise AnswerInvalid(
        f"{answer!r} was not offered. Answer with one of: {', '.join(prompt.options)} "
        "(a reason may follow after a colon).",
    )


_YES: Final = "yes"
_NO: Final = "no"
_MEANINGS: Final = {
    _YES: YES_MEANS,
    _NO: NO_MEANS,
    **dict.fromkeys((APPROVE, ACCEPT), YES_MEANS),
    # A denial lets the turn continue and an abort ends it, so neither word may select the other.
    **dict.fromkeys((DENY, DECLINE), (DENY, DECLINE)),
    **dict.fromkeys((ABORT, CANCEL), (ABORT, CANCEL)),
}
"""Meaning of common words, for every kind of question, unless the word is an option itself."""


_WORDS_OF_OURS: Final = frozenset(
    {APPROVE, APPROVE_SESSION, APPROVE_ALWAYS, DENY, ABORT, ACCEPT, DECLINE, CANCEL, REVISE, STOP, WAIT}
)


def _in_options(prompt: Prompt, answer: str) -> str:
    """Replace a common word in an answer with the option that it represents.

    A word never selects an option that covers more than this question. Agents' own options and free-text prompts have
    no common words.

    Raises:
        AnswerInvalid: It is a yes with a condition.
    """
    name, colon, reason = answer.partition(":")
    word = name.strip().lower()
    if prompt.free_text or word in prompt.options or not _WORDS_OF_OURS.issuperset(prompt.options):
        return answer
    option = next((option for option in _MEANINGS.get(word, ()) if option in prompt.options), None)
    if option is None:
        return answer
    if word == _YES and reason.strip():
        raise AnswerInvalid(
            f"{answer!r:.200} is a yes with a condition, which no agent keeps to. Answer yes alone, or no: and why."
        )
    return f"{option}{colon}{reason}"


def _refuses(prompts: Sequence[Prompt], answer: str) -> bool:
    return bool(prompts) and _in_options(prompts[0], answer.lower()).partition(":")[0].strip() in REFUSALS


def _offered(prompt: Prompt, answer: str) -> str | None:
    """Return the option that an answer names, ignoring case and surrounding spaces. None if two differ only in case."""
    name = answer.strip()
    if name in prompt.options:
        return name
    same = [option for option in prompt.options if option.lower() == name.lower()]
    return same[0] if len(same) == 1 else None


def refusal(question: Question) -> list[str] | None:
    """Return the answers that refuse a question; None if it offers no refusal."""
    options = question.prompts[0].options if question.prompts else ()
    refusals = (
        (DENY, DECLINE, STOP) if len(question.prompts) == 1 else (DENY, STOP)
    )  # each field of a form needs an answer
    return next(([answer] for answer in refusals if answer in options), None)
