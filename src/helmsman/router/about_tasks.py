"""Detect requests that are not commands but may be about tasks, so that no work starts by mistake.

"Is it still chugging along?" and "is it still used anywhere?" look alike. Starting the first as work costs money and
time, so the caller is asked, with "run it as work" among the choices. A request that begins with a work verb or
mentions code is still work.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from helmsman.router import vocabulary as v
from helmsman.router.words import ID, NUMBER, REFERENCES, SLUG, read

if TYPE_CHECKING:
    from helmsman.router.words import Words

_LONGEST: Final = 14
_NEAR: Final = 4
"""Words at the beginning of a request in which a task must be named to be its subject."""
_GAP: Final = 6
"""Maximum number of words in the gap of a form."""
_REST: Final = "…"
_ANY: Final = "·"

_ONE_BREATH: Final = 3
_SENTENCE: Final = 3
"""Maximum characters of a single word in Chinese, Japanese, Korean or Thai."""
_SHORTENED_ID: Final = re.compile(r"(?=[a-f]*\d)[0-9a-f]{7,}")
_ORDERS_IT: Final = v.APPROVE_VERBS | v.DENY_VERBS | v.CANCEL_ALONE
_ABOUT_ONE: Final = _ORDERS_IT | v.ANSWER_VERBS | v.word_set("apply switch tell what did follow")
"""First words that refer to a task, if an id or a list number follows."""
_OF_TASKS: Final = v.word_set("cancel abort")
"""Orders that are seldom about a program, even with a condition."""
_CONDITIONS: Final = v.word_set("from when if unless in while until should must")
"""Words that turn an order to stop "it" into one about a program: "stop it when it is idle"."""
_STILL: Final = v.word_set("still anything nothing something left back longer")
_JUDGED: Final = v.word_set("it that this them those these anything everything no")
_JUDGEMENTS: Final = v.word_set("approves approved denies denied")
_PREFIXES: Final = v.word_set("un dis de re pre auto non not")
_POINTERS: Final = v.PRONOUNS | v.word_set("the command question request again")
_PREPOSITIONS: Final = v.word_set("on for as in via with through from instead like")
_ANSWER: Final = 6
_OF_CODE: Final = "()_=/.{}$"
_ANSWERS: Final = (
    v.APPROVE_VERBS | v.DENY_VERBS | v.word_set("approved approval allowed denied granted permission decision")
)
_FORM_WORDS: Final = v.word_set(
    "yes no y n true false on off ok it this that all always once now none null answer action response reply kind type value"
)
_IT: Final = v.word_set("it that everything you codex things thing one ones")
_QUESTION_FORMS: Final = """
is/has/was/will it/that/everything …
is/are/has/have/did … done/finished/ready/complete/completed/finish/running/stuck/over/through/succeed/pass/going
is/are/has/have/did … fail/failed/crash/crashed/work/break
is/are/has somebody/anybody/someone/anyone/codex …
how is/are/was/were/did … go/going/doing/coming/looking/turn/turned/along/progressing
are/have/did you …
where is/are/did/do/have it/we/you/things …
what happened/became to/with/of …
whatever happened …
what's/whats the ·
any luck/news/word/progress/updates/update/sign …
status/progress/news/eta/word/results/result/outcome/output of/on/about/from …
update on/about …
still working/running/going/busy/at …
"""
_ORDER_FORMS: Final = """
stop/cancel/kill/abort/halt it/that/this/them/everything and/then …
make/get it/this/that stop
what/which files did/has/have it/you/codex …
pull the plug …
hang/hold … until/till …
"""
"""One form per line: words, alternatives between slashes, `·` for one word, `…` for a gap of a few words.

Unlike EVERYDAY, the gaps accept any word.
"""

_NOT_ABOUT: Final = v.word_set(
    """possible safe worth necessary better supposed expected thread-safe correct wrong true legal valid true used
    implemented configured called tested stored handled documented defined deprecated should must shouldn't
    mustn't why ui endpoint function class method file files module code api page button"""
)
"""Words that make a question one about code."""

_BEFORE: Final = v.word_set(
    "my the that this your our last latest current previous running other which any there cloud local codex first"
)
_AFTER: Final = v.STATES | v.word_set(
    """is was has had have did does seems seem looks looked appears isn't wasn't hasn't didn't doesn't from that
    which i we you still and or but not in on about for with been will would can could gets got since before
    earlier today yesterday this the ok okay please right going at now awaiting waiting"""
)
_WHICH: Final = v.LAST | v.word_set("current previous running failing failed that")
_TASKS: Final = frozenset(["task", "tasks", "job", "jobs"])


def _alternatives(line: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(part.split("/")) for part in line.split())


_QUESTIONS, _ORDERS = (
    tuple(_alternatives(line) for line in table.splitlines() if line) for table in (_QUESTION_FORMS, _ORDER_FORMS)
)


def may_be_about_tasks(words: Words) -> bool:
    """Return whether a request that is not a command may ask or order something about a task."""
    said = words.words
    if _names_one(said) or _is_a_mere_word(said) or _is_short_answer(words):
        return True
    if _is_answer_in_symbols(said) or _answers_for_another(said):
        return True
    if len(said) > _LONGEST:
        return False
    if _judges_one(said) or (words.unsure and said[0] in _ORDERS_IT and len(said) <= _ONE_BREATH):
        return True
    if any(_fits(said, form) for form in _ORDERS):
        return True
    if any(_is_code(word) for word in said):
        return False
    strange = _strange(said)
    if _has_work(words):
        return strange == 0 and _speaks_of_a_task(said)  # ambiguous, for example "retry the last task"
    if ID in said or _speaks_of_a_task(said) or any(_fits(said, form) for form in _QUESTIONS):
        return True
    if all(word in v.EVERYDAY or word in REFERENCES for word in said):
        return _of_nothing_else(words)
    begins_as_noun = said[0] in v.STATUS_NOUNS and said[1:2] and said[1] in v.EVERYDAY
    asks = _asks(words) and any(word in _IT or word in _STILL for word in said)
    return (strange <= 1 and (asks or begins_as_noun)) or (words.asks and len(said) <= _ONE_BREATH)


def _names_one(said: list[str]) -> bool:
    """Return whether an answer or order names a task or "it" at its beginning; later words then do not matter."""
    if said[0] not in _ABOUT_ONE or len(said) < 2 or any(_is_code(word) for word in said):
        return False
    if said[0] not in v.CANCEL_ALONE and (ID in said[:_NEAR] or NUMBER in said[1:_NEAR]):
        return True
    on_terms = any(word in _CONDITIONS for word in said)
    of_a_task = said[0] in v.JUDGING_VERBS or not on_terms or (said[0] in _OF_TASKS and _strange(said) <= 1)
    return said[0] in _ORDERS_IT and said[1] == "it" and of_a_task


def _is_a_mere_word(said: list[str]) -> bool:
    """Return whether this is one word that is not a work verb: "danke", "lol". In some scripts it may be a sentence."""
    word = said[0]
    if len(said) > 1 or word in v.WORK_VERBS or word in REFERENCES:
        return False
    letters = [char for char in word if char.isalnum()]
    if not any(map(str.isalpha, letters)):
        return True  # "+1"
    return word.isalpha() and (len(word) <= _SENTENCE or not any(map(_is_of_a_dense_script, word)))


def _is_of_a_dense_script(char: str) -> bool:
    """Return whether a character's script writes sentences in a few characters without spaces."""
    return unicodedata.name(char, "").startswith(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER"))


def _is_short_answer(words: Words) -> bool:
    """Return whether a few words begin with "approve" or "deny", or give an order with a shortened id."""
    said = words.words
    judges = {said[0], *(part for slug in words.slugs[:1] if said[0] == SLUG for part in slug.split("-"))}
    if len(said) <= _ONE_BREATH and not judges.isdisjoint(v.JUDGING_VERBS):
        return any(word in v.EVERYDAY or not (word.isascii() and word.isalpha()) for word in said[1:])
    return said[0] in _ABOUT_ONE and len(said) <= _NEAR and any(map(_SHORTENED_ID.fullmatch, said[1:]))


def turns_an_answer_round(words: Words) -> bool:
    """Return whether a request begins with a prefixed answer ("un-approve it"), which is not a task alias."""
    said = words.words
    if said[0] != SLUG or any(word not in _POINTERS for word in said[1:]):
        return False
    prefix, _, verb = words.slugs[0].rpartition("-")
    return prefix in _PREFIXES and verb in _ORDERS_IT


def _is_answer_in_symbols(said: list[str]) -> bool:
    """Return whether this is an answer written as code or as a form: "approve=yes", `{"decision": "approve"}`."""
    parts = re.findall(r"[^\W\d_]+", " ".join(said))
    return not _ANSWERS.isdisjoint(parts) and all(part in _ANSWERS or part in _FORM_WORDS for part in parts)


def _answers_for_another(said: list[str]) -> bool:
    """Return whether a short request answers on behalf of another person, or reports an answer."""
    if not 2 <= len(said) <= _ANSWER or any(map(_is_code, said)):
        return False
    if len(said) <= _ONE_BREATH and not _JUDGEMENTS.isdisjoint(said[1:]):
        return said[0] not in v.WORK_VERBS
    if said[0] in v.JUDGING_VERBS:
        return said[1] in _PREPOSITIONS
    return said[0] in _ORDERS_IT and said[1] == "on" and "behalf" in said


def _judges_one(said: list[str]) -> bool:
    """Return whether a sentence mentions approving or denying "it": "should I approve it?"."""
    if said[0] in v.WORK_VERBS or any(char in word for word in said for char in _OF_CODE):
        return False
    return any(word in v.JUDGING_VERBS and then in _JUDGED for word, then in pairwise(said))


def is_plain_question(words: Words) -> bool:
    """Return whether this asks in everyday words about the state of a task or of "it".

    Looking at a task is free, so no confirmation is needed. "How does it work?" may be about code.
    """
    said = words.words
    if _strange(said) or len(said) > _LONGEST or any(_is_code(word) or word in ("do", "does") for word in said[:2]):
        return False
    return _asks(words) and not _has_work(words) and (any(word in _IT for word in said) or _speaks_of_a_task(said))


def is_question(request: str) -> bool:
    """Return whether a request is a question."""
    words = read(request)
    return words is not None and bool(words.words) and _asks(words)


def _strange(said: list[str]) -> int:
    """Return the number of words that are neither everyday words nor references to tasks."""
    return sum(word not in v.EVERYDAY and word not in v.WORK_VERBS and word not in REFERENCES for word in said)


def _asks(words: Words) -> bool:
    return words.asks or words.words[0] in v.QUESTION_LEADS or words.words[0] in ("does", "do")


def _of_nothing_else(words: Words) -> bool:
    """Return whether a cancel verb is not itself the topic, as in "What does cancel do?"."""
    said = words.words
    return not _asks(words) or any(word in _IT for word in said) or not any(word in v.CANCEL_VERBS for word in said)


def _has_work(words: Words) -> bool:
    """Return whether a clause begins with a work verb, or something must be verified."""
    said = words.words
    if said[0] in v.CANCEL_ALONE:
        names_it = ID in said or (said[1:2] and said[1] in v.PRONOUNS and not any(word in _CONDITIONS for word in said))
        return not names_it or _strange(said) > 1
    if ID in said and said[0] in v.APPROVE_VERBS | v.DENY_VERBS | v.ANSWER_VERBS:
        return False
    if said[0] == "check" and said[1:2] and said[1] in ("that", "if", "whether"):
        return True
    return any(said[place] in v.WORK_VERBS for place in words.clauses if place < len(said))


def _is_code(word: str) -> bool:
    return word in _NOT_ABOUT or any(char in word for char in _OF_CODE)


def _speaks_of_a_task(said: list[str]) -> bool:
    """Match "my task seems frozen", but not "my task list is too long" or "show a toast when the task is done"."""
    if said[0] in v.ASKING_LEADS and said[1:2] != ["me"]:
        return False
    near = len(said) if said[0] in v.QUESTION_LEADS or _strange(said) <= 1 else _NEAR
    return any(
        (word in _TASKS or (word in ("run", "one") and said[place - 1] in _WHICH))
        and said[place - 1] in _BEFORE
        and (place + 1 == len(said) or said[place + 1] in _AFTER)
        for place, word in enumerate(said[:near])
        if place
    )


def _fits(said: list[str], form: tuple[frozenset[str], ...]) -> bool:
    if not form:
        return not said
    if _REST not in form[0]:
        return bool(said) and (said[0] in form[0] or _ANY in form[0]) and _fits(said[1:], form[1:])
    if len(form) == 1:
        return True
    return any(_fits(said[gap:], form[1:]) for gap in range(1, min(_GAP, len(said)) + 1))
