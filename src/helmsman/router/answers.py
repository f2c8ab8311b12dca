"""Map plain-language answers to the options of a question, never to one that covers more than the question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.errors import AnswerInvalid, InvalidInput
from helmsman.model.questions import (
    APPROVE_ALWAYS,
    APPROVE_SESSION,
    NO_MEANS,
    YES_MEANS,
    read_answers,
)
from helmsman.router.intent import PlainAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.model.questions import Prompt, Question

_OPTIONS: Final = {"approve": YES_MEANS, "deny": NO_MEANS}
"""Options for each answer kind, in order of preference."""
_WIDER: Final = frozenset([APPROVE_SESSION, APPROVE_ALWAYS])


def answers_to(question: Question, answer: PlainAnswer | None, given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the answers for plain words or a hint, limited to this question.

    Raises:
        InvalidInput: The answer would cover more, or is ambiguous.
        AnswerInvalid: The question has no such answer.
    """
    answer = answer or PlainAnswer("text")
    if given and answer.kind != "text" and given[0].partition(":")[0].strip() not in _OPTIONS[answer.kind]:
        raise InvalidInput(
            f"The words say {answer.kind}, and hints.answers says {given[0]!r:.100}. Nothing was answered: say one of them.",
            parameter="hints.answers",
        )
    answers = tuple(given) if given else tuple(_answer(question, prompt, answer) for prompt in question.prompts[:1])
    if answer.wide or any(choice.value in _WIDER for choice in read_answers(question, answers)):
        raise InvalidInput(
            "Only this one question is answered in plain words. To approve for the session or for good, look at the "
            "question and use codex_respond or agent_respond, the dashboard or the command line."
        )
    return answers


def _answer(question: Question, prompt: Prompt, answer: PlainAnswer) -> str:
    match answer.kind:
        case "approve" | "deny":
            found = next((option for option in _OPTIONS[answer.kind] if option in prompt.options), None)
            if found is None:
                raise InvalidInput(
                    f"Question {question.id} is none to {answer.kind}. Answer it: “answer: …”"
                    + (f", with one of {', '.join(prompt.options)}." if prompt.options else ".")
                )
            return f"{found}: {answer.text}" if answer.text else found
        case _:
            exactly = {option.lower(): option for option in prompt.options}
            name = answer.text.partition(":")[0]
            if prompt.options and not prompt.free_text and name.strip().lower() not in exactly:
                # A yes among other words may be about anything: only "approve it" and the names of options grant something.
                raise AnswerInvalid(
                    f"{answer.text!r:.200} was not offered. Answer with one of: {', '.join(prompt.options)}."
                )
            return exactly.get(answer.text.strip().lower(), answer.text)
