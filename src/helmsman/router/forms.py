"""Command forms. A request is a command only if all of it matches a form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.router import vocabulary as v
from helmsman.router.words import DURATION, ID, NUMBER, REFERENCES, SLUG

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from helmsman.router.words import Words


def _only(said: list[str], allowed: AbstractSet[str]) -> bool:
    return all(word in allowed or word in REFERENCES for word in said) and sum(word == SLUG for word in said) <= 1


def _names_task(said: list[str]) -> bool:
    return any(word in REFERENCES or word in v.PRONOUNS or word in v.TASK_NOUNS for word in said)


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a command: first words, words that may follow, and sets that must each occur."""

    leads: AbstractSet[str]
    rest: AbstractSet[str]
    needs: tuple[AbstractSet[str], ...] = ()

    def fits(self, said: list[str]) -> bool:
        needed = all(any(word in need for word in said) for need in self.needs)
        return bool(said) and said[0] in self.leads and _only(said[1:], self.rest) and needed


_NAMED: Final = REFERENCES | v.PRONOUNS | v.TASK_NOUNS | v.LAST | v.RUNNING

WIDE_APPROVAL: Final = Form(v.APPROVE_VERBS | {"always"}, v.WIDE_REST, (v.WIDE, v.APPROVE_VERBS))
APPROVAL: Final = Form(v.APPROVE_VERBS, v.ANSWER_REST)
DENIAL: Final = Form(v.DENY_VERBS, v.ANSWER_REST)
ANSWER: Final = Form(v.ANSWER_VERBS | {"the", "my", "in"}, v.ANSWER_REST | v.ANSWER_VERBS, (v.ANSWER_VERBS,))
REFUSED_APPROVAL: Final = Form(
    v.NEGATIONS | {"do"}, v.ANSWER_REST | v.APPROVE_VERBS | v.NEGATIONS, (v.APPROVE_VERBS, v.NEGATIONS)
)
FOLLOW_UP: Final = Form(v.FOLLOW_VERBS, v.FOLLOW_REST, (_NAMED,))
APPLY: Final = Form(frozenset(["apply"]), v.APPLY_REST, (frozenset([ID, SLUG]),))
"""Requires a named task, because "apply the changes" is ambiguous."""
CHOICE: Final = Form(v.CHOOSE_VERBS, v.CHOOSE_REST, (frozenset([NUMBER]),))
NUMBER_ALONE: Final = Form(v.NUMBERED | {NUMBER}, v.NUMBERED, (frozenset([NUMBER]),))
ENVIRONMENTS: Final = Form(v.ENVIRONMENTS_REST, v.ENVIRONMENTS_REST, (v.ENVIRONMENTS, frozenset(["cloud", "codex"])))

HELP: Final = (["help"], ["usage"], ["what", "can", "you", "do"], ["what", "can", "i", "say"])
"""Exact matches only: "help me with the parser" is work."""


def is_approval(said: list[str]) -> bool:
    return APPROVAL.fits(said) and _is_of_a_question(said)


def is_denial(said: list[str]) -> bool:
    return DENIAL.fits(said) and _is_of_a_question(said)


def _is_of_a_question(said: list[str]) -> bool:
    """Match "allow it", but not "allow edits" or "allow only one run", which describe a program."""
    rest = said[1:]
    return (
        said[0] in v.JUDGING_VERBS
        or any(word in v.DEFINITE or word in REFERENCES for word in rest)
        or all(word in v.PRONOUNS for word in rest)
    )


def is_pleasant(words: Words) -> bool:
    said = words.words
    return all(word in v.PLEASANT_REST for word in said) and (
        words.pleasant or any(word in v.PLEASANT for word in said)
    )


def is_setup(said: list[str]) -> bool:
    for opener in v.SETUP_OPENERS.get(said[0], ()):
        if tuple(said[: len(opener)]) == opener:
            said = said[len(opener) :]
            break
    if not all(word in v.SETUP_REST or word in v.SETUP_LEADS for word in said):
        return False
    if said == ["setup"] or said == ["github"]:
        return True
    about = any(word in v.SETUP_THINGS for word in said)
    return about and (said[0] in v.SETUP_LEADS or said[-1] in ("setup", "integration"))


def is_cancel(words: Words) -> bool:
    said = words.words
    if said[0] in v.CANCEL_VERBS:
        rest = said[1:]
        if rest and rest[0] in v.AIMS:
            return False
        if _only(rest, v.CANCEL_REST):
            return said[0] in v.CANCEL_ALONE or _names_task(rest)
        return _is_cancel_with_reason(words)
    if said[-1] in v.CANCEL_ALONE and ID in said:  # "T-local-…: stop"
        return _only(said[:-1], v.TASK_NOUNS | {"the", "my"})
    wanted = said[0] == "i" and said[1:2] in (["want"], ["need"]) and said[-1] in v.CANCELLED
    return wanted and _names_task(said[2:-1]) and _only(said[2:-1], v.NAMING | {"to", "be"})


_REASONS: Final = frozenset(["because", "since", "i", "i'm"])
"""First words of a reason without a preceding comma."""


def _is_cancel_with_reason(words: Words) -> bool:
    """Match "cancel it, I changed my mind": a complete order, followed by a common reason."""
    said = words.words
    ends = next(
        (place for place, word in enumerate(said) if place and word not in v.CANCEL_REST and word not in REFERENCES), 0
    )
    for begin in range(ends, 0, -1):
        order, reason = said[1:begin], said[begin:]
        if reason[0] not in v.REASON_LEADS or not (begin in words.clauses or reason[0] in _REASONS):
            continue
        if reason[0] in ("no", "not") and (
            reason[1:2] == [] or begin + 1 in words.clauses or reason[1] in v.TAKES_BACK
        ):
            return False
        complete = _names_task(order) or (not order and reason[0] in ("i", "i'm", "i'll", "we"))
        return all(word in v.REASON_REST for word in reason) and complete and _only(order, v.CANCEL_REST)
    return False


def is_refused_cancel(said: list[str]) -> bool:
    order = said[2:] if said[:2] == ["do", "not"] else said[1:]
    refused = said[0] in v.NEGATIONS or said[:2] == ["do", "not"]
    return refused and bool(order) and order[0] in v.CANCEL_ALONE and _only(order, v.CANCEL_REST)


def is_wait(said: list[str]) -> bool:
    allowed = v.WAIT_REST | {DURATION}
    if said[0] in v.WAIT_LEADS or (said[0] in ("hold", "block") and said[1:2] in (["until"], ["till"])):
        return _only(said[1:], allowed)
    if said[:2] == ["keep", "waiting"]:
        return _only(said[2:], allowed)
    if said[0] in v.TELL_LEADS and said[1:2] == ["me"]:
        until = any(word in v.WHENS for word in said) and any(word in v.STATES or word in v.ENDINGS for word in said)
        return until and _only(said[1:], allowed)
    return said[-1] in v.WAIT_LEADS and ID in said and _only(said[:-1], v.TASK_NOUNS | {"the", "my"})


def is_results(said: list[str]) -> bool:
    first, rest = said[0], said[1:]
    if any(word in v.STATUS_NOUNS for word in said) or not _only(rest, v.RESULTS_REST):
        return False
    nouns = any(word in v.RESULT_NOUNS for word in said)
    logs = any(word in v.LOGS for word in (rest if first in v.ASKING_LEADS else said)) and _names_task(rest)
    if first in v.ASKING_LEADS:
        return nouns or logs or _is_what_was_done(rest) or (first == "show" and _is_a_task_to_show(rest))
    if first in ("what", "what's"):
        return nouns or said in (["what", "changed"], ["what", "happened"]) or _asks_of_deeds(said)
    return (nouns or logs) and first in v.RESULTS_REST | REFERENCES


def _is_what_was_done(shown: list[str]) -> bool:
    return "what" in shown and any(word in v.DEEDS for word in shown)


def _is_a_task_to_show(shown: list[str]) -> bool:
    if any(word in v.PLURALS for word in shown):
        return False
    return shown == ["me"] or any(word in REFERENCES or word in ("it", "task", "one", "job") for word in shown)


def _asks_of_deeds(said: list[str]) -> bool:
    """Match "what did it change" and "what it did"."""
    doer = _names_task(said) or "you" in said or "codex" in said
    asked = said[1:2] and (said[1] in ("did", "has", "have", "came") or said[-1] in v.DEEDS - {"do", "done"})
    return bool(asked) and doer and any(word in v.DEEDS for word in said)


def is_check(said: list[str]) -> bool:
    first, rest = said[0], said[1:]
    if first in v.CHECK_LEADS:
        return _only(rest, v.QUESTION_REST) and rest[:1] != ["out"]
    if first in v.ASKING_LEADS:
        subject = any(word in v.STATUS_NOUNS or word in v.PLURALS for word in rest)
        return _only(rest, v.QUESTION_REST) and (subject or said == ["list"])
    if first == "update":
        return not rest or (rest[0] in ("me", "on", "about", "for") and _only(rest, v.NOUN_PHRASE))
    if first in v.STATE_LEADS and _only(rest, v.STATES | v.NAMING):
        return True
    if _only(said, v.NOUN_PHRASE) and any(
        word in v.STATUS_NOUNS or word in REFERENCES or word in ("task", "tasks", "jobs") for word in said
    ):
        return True
    if first in v.QUESTION_LEADS and _only(rest, v.QUESTION_REST):
        asks = v.STATES | v.STATUS_NOUNS | {"long"}
        if first in ("did", "was", "has", "is"):
            asks = asks | v.CANCEL_ALONE | {"work"}
        elif first in ("how", "how's"):
            asks = asks | REFERENCES | {"things", "everything"}
        return any(word in asks for word in rest) or said[:3] == ["where", "are", "we"]
    return False
