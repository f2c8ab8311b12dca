"""Parse a request by deterministic rules, in well under a millisecond.

Order of the rules:

1. hints
2. markers that announce work: "run: …" and "in the cloud: …"
3. orders with a text after a colon: "deny it: …", "continue with the last task: …"
4. commands of the table, each of which the whole request must match: set up, cancel, apply, answers, choices
5. looks: requests in everyday words alone, without an order, which ask for a wait, for results or for the state
6. requests that may be about tasks: the caller is asked
7. everything else is work

Mistakes differ in cost. Treating work as a check costs one more question. Treating work as a cancel destroys work, and
treating it as an approval allows an action without consent. So a cancel or an approval must match completely: an
imperative, its object, and no other word. A question about tasks never starts work.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, cast

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.router.vocabulary import ABROAD, COMMANDS, FORMS, HELP, PLACES, RouterVerb, is_only, v
from helmsman.router.words import (
    DURATION,
    ID,
    LONGEST_COMMAND,
    NUMBER,
    SESSION_ID_FORM,
    SLUG,
    is_session_id,
    is_task_id,
    own_words,
    read,
    split_at_colon,
    task_ids,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from helmsman.router.words import Words

Mode = Literal["local", "cloud"]
Action = Literal[RouterVerb, "choose", "none"]
"""`choose`: ambiguous between tasks and work, so the caller is asked."""
AnswerKind = Literal["approve", "deny", "text"]
ReferenceKind = Literal["id", "alias", "number", "last", "running", "several"]


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference to a task.

    `value` is the id, the alias, the number (1 is the first choice), or several ids separated by spaces; empty for
    `last` and `running`. If `sure` is False and no task matches, the request is work.
    """

    kind: ReferenceKind
    value: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """Answer to a question of a task. `wide` means that it was meant for more than one question, which is not
    supported.
    """

    kind: AnswerKind
    text: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Explicit parameters, which override the words. `mode` `auto` equals None."""

    operation: RouterVerb | None = None
    mode: Mode | Literal["auto"] | None = None
    task_id: str | None = None
    timeout_ms: int | None = None
    poll_frequency_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Parsed request. `instruction` is the work to do, without router markers ("in the cloud: …").

    `reference` is None if no task is named ("cancel it"); `mode` is None if no place is named. `again` selects another
    of the offered tasks ("switch to #2"); `picks` selects a choice and nothing else ("2"). `may_answer`: if a question
    is open, the request may be an imprecise answer to it. `mentions` are ids and aliases in a work request, which may
    refer to tasks.
    """

    action: Action
    reference: Reference | None = None
    answer: PlainAnswer | None = None
    reason: str | None = None
    again: bool = False
    picks: bool = False
    may_answer: bool = False
    mentions: tuple[str, ...] = ()
    instruction: str = ""
    mode: Mode | None = None
    timeout_ms: int | None = None
    poll_frequency_ms: int | None = None
    trace: tuple[str, ...] = ()


NO_HINTS: Final = Hints()


def parse(request: str, hints: Hints = NO_HINTS, called: Sequence[str] = ()) -> Intent:
    """Parse a request. `called` lists names of the addressed agent, if it is not Codex.

    Raises:
        InvalidInput: The task hint is empty.
    """
    if hints.task_id is not None and not hints.task_id.strip():
        raise InvalidInput("hints.taskId is empty. Give the id of a task, or leave it out.")
    found = _read_words(request, called)
    trace = found.trace
    if (action := hints.operation) is not None:
        trace = (f"The hint asks for {action}.",)
        if action == "run" and found.action != "run":
            found = Intent(action="run", mode=where_to_run(request))
        elif action != "run":
            # The hint says what to do. The words may still say for which task.
            answer = (found.answer or PlainAnswer("text", request.strip())) if action == "respond" else None
            reference = found.reference or _reference_of_ids(task_ids(request))
            found = replace(found, action=action, reference=reference, answer=answer)
    if hints.task_id is not None:
        if found.action == "choose":  # with a named task, it is a question or the next message
            words = read(request)
            is_question = words is not None and bool(words.words) and _asks(words)
            found = replace(found, action="check" if is_question else "run", mode=None)
        found, trace = _with_task_hint(found, hints.task_id.strip(), hints.operation, trace)
    if found.action == "run" and (not request or request.isspace()):
        found = replace(found, action="none", reference=None)
        trace = (*trace, "There is no work in the request.")
    mode = found.mode
    if hints.mode is not None and hints.mode != "auto":
        mode = hints.mode
        trace = (*trace, f"The hint asks for {mode}.")
    # Without a matching task, a request with a doubtful reference is work, so its text is kept.
    may_be_work = found.reference is not None and not found.reference.sure
    return replace(
        found,
        mode=mode,
        instruction=(found.instruction or request) if found.action in ("run", "choose") or may_be_work else "",
        timeout_ms=hints.timeout_ms or found.timeout_ms,
        poll_frequency_ms=hints.poll_frequency_ms,
        trace=trace,
    )


def _with_task_hint(
    found: Intent, task_id: str, operation: RouterVerb | None, trace: tuple[str, ...]
) -> tuple[Intent, tuple[str, ...]]:
    named = Reference("id" if is_task_id(task_id) else "alias", task_id)
    trace = (*trace, f"The hint names the task {task_id}.")
    said = found.reference
    if said is not None and said.kind in ("id", "alias", "several") and task_id not in (names := said.value.split()):
        named = Reference("several", " ".join([*names, task_id]), sure=said.sure) if names else named
    if found.action == "none" and operation is None:
        return replace(found, action="check", reference=named), (*trace, "Without words, that asks how it is.")
    return replace(found, reference=named), trace


def _reference_of_ids(ids: Sequence[str]) -> Reference | None:
    if not ids:
        return None
    if len(ids) > 1:
        return Reference("several", " ".join(ids))
    return Reference("id", ids[0], sure=not is_session_id(ids[0]))


# --- markers: "in the cloud: …", "new task: …", "… in the cloud" ------------------------------------------------------

# At the beginning, with its colon, a marker is removed. At the end of a sentence, "in the cloud" may belong to the work, so
# it counts only after verbs that exclude that meaning, and is not removed.

_HEAD: Final = 400
"""Characters searched for markers at the beginning and the end of a request."""
_PRONOUN: Final = frozenset({"it", "its"})
_PLACE_MARKER: Final = re.compile(
    r"""\s*(?:please\s+)?
    (?:(?:run|do|start|execute|submit|send|use|handle|launch)\s+(?:(?:this|it|the\s+following)\s+)?)?
    (?:(?:in|on|to|with|via|using|as)\s+)?(?:the\s+|a\s+|my\s+)?
    (?:(?P<cloud>(?:codex\s+)?cloud)|(?P<local>locally|local|machine))(?:\s+task)?(?:\s+please)?\s*[:：]\s*(?=\S)""",
    re.IGNORECASE | re.VERBOSE,
)
# “task: T-local-…” names a task; it does not announce work.
_WORK_MARKER: Final = re.compile(
    r"\s*(?:please\s+)?(?:run|do|task|new\s+task|job|new\s+job)\s*[:：]\s*(?=\S)(?!T-(?:local|cloud)-)", re.IGNORECASE
)
_CLOUD_FIRST: Final = re.compile(
    r"\s*(?:please\s+)?(?:use|with|using|via)\s+(?:the\s+)?(?:codex\s+)?cloud\s+(?:to|and)\s", re.IGNORECASE
)
_CLOUD_LAST: Final = re.compile(
    r"\s(?:in|on|using|with|via)\s+(?:the\s+)?(?P<codex>codex\s+)?cloud(?:[\s,]+please)?[\s.!]*\Z", re.IGNORECASE
)
_LOCAL_LAST: Final = re.compile(
    r"\s(?:locally|on\s+(?:my|this)\s+(?:machine|computer|laptop))(?:[\s,]+please)?[\s.!]*\Z", re.IGNORECASE
)
_ABOUT_THE_CLOUD: Final = re.compile(r"\b(?:that|which|where|who|about|when|how|why|if|whose)\b", re.IGNORECASE)
_RUNS_THERE: Final = re.compile(
    r"""\s*(?:please\s+)?(?:run|execute|start|do|fix|refactor|implement|test|review|investigate|debug|port|upgrade|solve|handle
    |work|try|lint|rerun|retry|analyse|analyze)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Verbs after which "… in the cloud" names the place of the work. Deploying or storing in a cloud does not."""


def _marked(request: str) -> Intent | None:
    """Parse work after "in the cloud: " or "run: "; None without such a marker."""
    # Only the beginning: a request may be megabytes long.
    head = request[:_HEAD]
    if place := _PLACE_MARKER.match(head):
        mode: Mode = "cloud" if place["cloud"] else "local"
        return Intent(
            action="run", mode=mode, instruction=request[place.end() :], trace=(f"The request asks for {mode}.",)
        )
    if marker := _WORK_MARKER.match(head):
        trace = ("The request says that work follows.",)
        return Intent(action="run", mode=where_to_run(request), instruction=request[marker.end() :], trace=trace)
    return None


def says_it(request: str) -> bool:
    """Return whether a request speaks of a task as "it": the one that the last answer was about."""
    return not _PRONOUN.isdisjoint(re.findall(r"[a-z]+", request.lower()))


def where_to_run(request: str) -> Mode | None:
    """Return the place of the work, if it is stated without a marker."""
    head, end = request[:_HEAD], request[-_HEAD:]
    if _CLOUD_FIRST.match(head):
        return "cloud"
    if not _RUNS_THERE.match(head):
        return None
    if _LOCAL_LAST.search(end):
        return "local"
    cloud = _CLOUD_LAST.search(end) if len(request) <= _HEAD else None
    return "cloud" if cloud and (cloud["codex"] is not None or not _ABOUT_THE_CLOUD.search(request)) else None


# --- the table of commands -------------------------------------------------------------------------------------------


def _read_words(request: str, called: Sequence[str]) -> Intent:
    if (marked := _marked(request)) is not None:
        return marked
    if (with_text := _with_text(request, called)) is not None:
        return with_text
    if (operation := command_abroad(request)) is not None:
        answer = PlainAnswer("deny") if operation == "respond" else None
        return Intent(action=operation, answer=answer, trace=(f"The whole request says {operation}, in other words.",))
    words = read(request, called)
    if words is None:
        return _work(request, "The request is too long to be a command, so it is work.")
    if words.material:
        return _with_material(words, request, called)
    if not words.words:
        return Intent(action="none", may_answer=is_yes_or_no(request), trace=("The request asks for nothing.",))
    if words.slugs and (is_talk(request) or _turns_an_answer_round(words)):  # "applique-le" looks like an alias
        return _talk(words, request)
    if (found := _command(words, request, called)) is not None:
        return found
    if (reason := reason_of_refusal(request)) is not None:
        return _answer(words, PlainAnswer("deny", reason), "The request says no, and why.")
    if is_yes_or_no(request):
        return Intent(action="none", may_answer=True, trace=("The request is a mere yes or no.",))
    if (look := _look(words)) is not None:
        return look
    if not words.ids and (is_talk(request) or is_talk(" ".join(words.words))):
        return _talk(words, request)
    if _may_be_about_tasks(words):
        found = _of_task("choose", words, "The request may be about tasks and is no plain command.")
        return replace(found, instruction=request, may_answer=len(words.words) > 1 and not _asks(words))
    work = _work(request, "The request is no command from beginning to end, so it is work.")
    aliases = words.slugs if len(words.words) <= _SHORT else ()
    return replace(work, may_answer=_may_answer(words.words), mentions=(*words.ids, *aliases))


def _command(words: Words, request: str, called: Sequence[str]) -> Intent | None:
    """Return the command of the table that a request is. An order about which there is a doubt becomes a look."""
    said = words.words
    if v.pleasantries.issuperset(said) and (words.pleasant or not v.closers.isdisjoint(said)):
        return Intent(action="none", may_answer=is_yes_or_no(request), trace=("The request is courtesy alone.",))
    if " ".join(said) in HELP:
        return Intent(action="none", trace=("The request asks what one can say.",))
    if (answer := _plain_answer(said)) is not None:
        found = _answer(words, answer, f"The whole request is to {answer.kind} what a task asks.")
        # The strictest test is for an approval: a misread one would allow an action.
        is_approval = answer.kind == "approve" and not answer.wide
        is_doubtful = words.unsure if not is_approval else words.said_no or not is_exact_approval(request, called)
    else:
        action, why = next(((action, why) for action, form, why in COMMANDS if form.fits(said)), (None, ""))
        if action is None or (action == "cancel" and said[1:2] and said[1] in v.aims):
            return None
        picks = action == "check" and not (words.asks and said[0] not in v.choose_verbs)  # "2?" asks for its state
        found = replace(_of_task(action, words, why), picks=picks, again=picks and said[0] in v.choose_verbs)
        is_doubtful = words.unsure or is_odd(request)
    if is_doubtful and found.action in ("respond", "apply", "cancel"):
        look = _of_task("check", words, f"The request wonders about {found.action}, so nothing is done but a look.")
        return replace(look, may_answer=found.action == "respond")
    return found


def _plain_answer(said: list[str]) -> PlainAnswer | None:
    said = _of_me(said)
    if FORMS["wide_approval"].fits(said):
        return PlainAnswer("approve", wide=True)
    rest = said[1:]
    # "Allow it", but not "allow edits" or "allow only one run", which describe a program.
    of_a_question = (
        said[0] in v.judging_verbs
        or any(word in v.definite or word in v.references for word in rest)
        or v.pronouns.issuperset(rest)
    )
    if of_a_question and FORMS["approval"].fits(said):
        return PlainAnswer("approve")
    return PlainAnswer("deny") if of_a_question and FORMS["denial"].fits(said) else None


def _with_material(words: Words, request: str, called: Sequence[str]) -> Intent:
    """Classify a request with pasted text.

    Text to work on is work: it is the object of "fix this". For an order or answer with such text, the caller is asked,
    because the text may contradict it.
    """
    said = _read_words(own_words(request), called)
    begin = words.words[:2]
    is_work = bool(begin) and begin[0] in v.work_verbs and not (begin[0] in v.talk_verbs and begin[1:] == ["it"])
    if said.action in ("respond", "apply", "cancel") or (
        not is_work and said.action != "run" and (said.may_answer or (begin and said.action == "choose"))
    ):
        why = "The request is about a task, and brings text that may say something else."
        return Intent(action="choose", reference=said.reference, instruction=request, may_answer=True, trace=(why,))
    if words.ids and said.action != "run":
        return said
    return _work(request, "The request brings text to work on, so it is work.")


def _with_text(request: str, called: Sequence[str]) -> Intent | None:
    """Parse an order with a text after a colon: "deny it: touches production", "continue with the last task: …"."""
    parts = split_at_colon(request)
    if parts is None and (head := request[:LONGEST_COMMAND].partition(" because "))[2].strip():
        parts = (head[0], head[2].strip())
        if not v.deny_verbs.intersection(head[0].lower().split()[:1]):
            return None
    words = None if parts is None else read(parts[0], called)
    if parts is None or words is None or not words.words or words.said_no or words.material:
        return None
    text, said = parts[1], words.words
    answer = _plain_answer(said)
    if answer is not None and answer.kind == "deny" and not words.unsure:
        return _answer(words, PlainAnswer("deny", text), "The request denies what a task asks, with a reason.")
    if (
        said[-1] == "reason"
        and words.ids
        and said[0] in v.cancel_verbs
        and not words.unsure
        and is_only(said[1:-1], v.naming)
    ):
        return replace(_of_task("cancel", words, "The request is an order to cancel, and says why."), reason=text)
    if FORMS["answer"].fits(said):
        return _answer(words, PlainAnswer("text", text), "The request answers what a task asks.")
    if FORMS["follow_up"].fits(said) or (said == [ID] and _begins_work(text)):
        reference = _reference(words) or Reference("last")
        return Intent(action="run", reference=reference, instruction=text, trace=("The request goes on with a task.",))
    return None


def _of_me(said: list[str]) -> list[str]:
    """Reduce "I approve it" to "approve it"."""
    return said[1:] if said[0] == "i" and len(said) > 1 else said


def _begins_work(text: str) -> bool:
    words = read(text[:LONGEST_COMMAND])
    return words is not None and bool(words.words) and words.words[0] in v.work_verbs


def _answer(words: Words, answer: PlainAnswer, why: str) -> Intent:
    return replace(_of_task("respond", words, why), answer=answer)


def _work(request: str, why: str) -> Intent:
    mode = where_to_run(request)
    trace = (why,) if mode is None else (why, f"It plainly asks for {mode}.")
    return Intent(action="run", mode=mode, mentions=task_ids(request), trace=trace)


def _talk(words: Words, request: str) -> Intent:
    talk = _of_task("choose", words, "The request has no object of its own, so it speaks of running work.")
    return replace(talk, instruction=request, may_answer=True)


def _of_task(action: Action, words: Words, why: str) -> Intent:
    reference = _reference(words)
    place = next((PLACES[word] for word in words.words if word in PLACES), None)
    trace = (
        (why,) if reference is None else (why, f"It names a task: {reference.kind} {reference.value}".rstrip() + ".")
    )
    return Intent(action=action, reference=reference, mode=cast("Mode | None", place), trace=trace)


def _reference(words: Words) -> Reference | None:
    if words.ids:
        return _reference_of_ids(list(dict.fromkeys(words.ids)))
    if words.slugs:
        slug = words.slugs[0]
        # A misspelt id is still meant as an id, not as a name.
        like_an_id = slug.startswith("t-") and any(char.isdigit() for char in slug)
        return Reference("id", slug) if like_an_id else Reference("alias", slug, sure=False)
    if words.numbers:
        return Reference("number", words.numbers[0])
    said = set(words.words)
    kinds: tuple[tuple[AbstractSet[str], ReferenceKind], ...] = (
        (v.several, "several"),
        (v.last, "last"),
        (v.running - {"running"}, "running"),
    )
    return next((Reference(kind) for names, kind in kinds if said & names), None)


# --- looks, and requests that may be about tasks ---------------------------------------------------------------------

_FEW: Final = 3
"""While a question is open, a request of up to this many words may answer it in any language."""
_SHORT: Final = 6
_MEDIUM: Final = 14


def _asks(words: Words) -> bool:
    return words.asks or words.words[0] in v.question_leads


def _strange(said: list[str]) -> int:
    """Return the number of words that are neither everyday words nor references to tasks."""
    known = said[0] in v.asking_leads
    return sum(word not in v.everyday and word not in v.references and word != DURATION for word in said[known:])


def _has_work(words: Words) -> bool:
    """Return whether a clause begins with a work verb, or something must be verified."""
    said = words.words
    if said[0] == "check" and said[1:2] and said[1] in ("that", "if", "whether"):
        return _strange(said) > 0 or not v.cancel_verbs.isdisjoint(said)
    if said[0] in v.asking_leads and not (
        said[0] == "update" and said[1:2] and said[1] not in ("me", "on", "about", "for")
    ):
        return False
    return any(said[place] in v.work_verbs for place in words.clauses if place < len(said))


def _look(words: Words) -> Intent | None:
    """Return which look a request in everyday words asks for: a wait, results, or the state. Looks are free."""
    said, first = words.words, words.words[0]
    if _strange(said) or len(said) > _MEDIUM or said.count(SLUG) > 1:
        return None
    waits = first in v.wait_leads or said[-1] in v.wait_leads or not v.whens.isdisjoint(said[1:4])
    if waits and (first in v.wait_leads | v.hold_leads | v.references or (first in v.tell_leads and "me" in said)):
        waiting = _of_task("wait", words, "The whole request is about waiting.")
        return replace(waiting, timeout_ms=words.duration_ms)
    if first in v.negations or said[:2] == ["do", "not"]:
        look = _of_task("check", words, "The request says not to, so nothing is done but a look.")
        return replace(look, may_answer=True)
    if first in v.orders or _has_work(words):
        return None
    names = any(word in v.references or word in v.task_nouns or word in v.it for word in said)
    asks_state = not v.states.isdisjoint(said)
    of_deeds = (
        "what" in said
        and (names or len(said) == 2)
        and not v.deeds.isdisjoint(said[1:])
        and v.cancel_verbs.isdisjoint(said)
    )
    if (not v.result_nouns.isdisjoint(said) or of_deeds) and not (asks_state and first in v.asking_leads):
        return _of_task("results", words, "The whole request asks for results.")
    if first == "show" and names and not asks_state and v.several.isdisjoint(said):
        return _of_task("results", words, "The whole request asks for what a task has done.")
    is_state = asks_state or first == "check" or not {"task", "tasks", "jobs"}.isdisjoint(said)
    asks = (
        _asks(words)
        and (len(said) > 1 or said == ["how"])
        and (not v.it.isdisjoint(said) or v.cancel_verbs.isdisjoint(said))
    )
    if is_state or asks or not v.references.isdisjoint(said):
        return _of_task("check", words, "The whole request asks how a task is.")
    return None


def _may_answer(said: list[str]) -> bool:
    """Return whether work may be meant as an answer, while a question is open."""
    if said[0] in v.may_begin_answer:
        return len(said) <= _SHORT
    if said[0] in v.work_verbs:
        return False
    return len(said) <= _FEW or (len(said) <= _MEDIUM and any(word in v.may_answer for word in said))


_SHORTENED_ID: Final = re.compile(r"(?=[a-f]*\d)[0-9a-f]{7,}")


def _is_code(word: str) -> bool:
    return any(char in word for char in "()_=/.{}$")


def _may_be_about_tasks(words: Words) -> bool:
    """Return whether a request that is not a command may ask or order something about a task."""
    said, first = words.words, words.words[0]
    strange, orders = _strange(said), v.approve_verbs | v.deny_verbs | v.cancel_alone
    parts = re.findall(r"[^\W\d_]+", " ".join(said))
    if not v.judgements.isdisjoint(parts) and set(parts) <= v.judgements | v.form_words:
        return True  # an answer as code or as a form: "approve=yes", `{"decision": "approve"}`
    if len(said) == 1:
        return first not in v.work_verbs and is_mere_word(first)
    if any(map(_is_code, said)) or len(said) > _MEDIUM:
        return False
    shortened = any(map(_SHORTENED_ID.fullmatch, said[1:]))
    if shortened and len(said) <= _FEW + 1 and first in orders | v.answer_verbs | v.talk_verbs:
        return True
    if _has_work(words) and first not in orders:
        return first != "check" and _strange(said[1:]) == 0 and (said[1] in v.pronouns or _speaks_of_a_task(said))
    if (said[-1] in v.endings and first in v.question_leads) or (first in v.states and said[1] in ("of", "on", "for")):
        return len(said) <= _SHORT + 2  # "how is the login fix going?"
    if first in v.cancel_alone:
        also = "and" in said and (said[1] in v.pronouns or _speaks_of_a_task(said))  # "cancel it and fix the tests"
        alone = strange <= (said[1] == "it") and v.conditions.isdisjoint(said) and not _has_work(words)
        return also or alone
    if first in v.judging_verbs and len(said) <= _SHORT and said[1] in v.prepositions:
        return True
    if first in v.judging_verbs and len(said) <= _FEW:
        return any(word in v.everyday or not (word.isascii() and word.isalpha()) for word in said[1:])
    if first in orders | v.answer_verbs and first not in v.judging_verbs:
        return (
            NUMBER in said[1:_FEW] or (said[1] == "it" and strange <= 1) or (len(said) <= _SHORT and "behalf" in said)
        )
    if first in v.judging_verbs and (NUMBER in said[1:_FEW] or said[1] == "it"):
        return True
    judged = any(a in v.judging_verbs and b in v.judged for a, b in pairwise(said))  # "should I approve it?"
    if judged or (len(said) <= _FEW and not {"approves", "approved", "denies", "denied"}.isdisjoint(said[1:])):
        return True
    asks = _asks(words) and not v.it.isdisjoint(said)
    speaks = asks or _speaks_of_a_task(said)
    if _asks(words) and not speaks and not v.cancel_alone.isdisjoint(said):
        return False  # "what does cancel do?"
    return strange == 0 or (strange == 1 and v.of_code.isdisjoint(said) and speaks)


def _speaks_of_a_task(said: list[str]) -> bool:
    """Match "my task seems frozen", but not "my task list is too long" or "show a toast when the task is done"."""
    if said[0] in v.asking_leads and said[1:2] != ["me"]:
        return False
    named = {"task", "tasks", "job", "jobs"}
    return any(
        a in v.my and b in named and c in v.everyday | {""}
        for a, b, c in zip(said, said[1:], [*said[2:], ""], strict=False)
    )


def _turns_an_answer_round(words: Words) -> bool:
    """Return whether a request begins with a prefixed answer ("un-approve it"), which is not a task alias."""
    said, (prefix, _, verb) = words.words, words.slugs[0].rpartition("-")
    is_one = prefix in {"un", "dis", "de", "re", "pre", "auto", "non", "not"} and verb in v.judgements | v.cancel_alone
    return is_one and said[0] == SLUG and all(word in v.answer_rest for word in said[1:])


# --- short requests about running work, in five languages -------------------------------------------------------------

# A new session has no context for "it". So a short request without an object ("undo it", "retry", "mach weiter") is never
# new work: it is a command, or the caller is asked. Any word that is not in the tables is an object, which makes the
# request work.

_LONGEST_TALK: Final = 120
_MOST_TALK: Final = 8

# --- approvals -------------------------------------------------------------------------------------------------------

_NAMED: Final = (
    r"(?:(?:(?:the )?(?:task|session)|number|option) )?"
    rf"(?:T-(?:local|cloud)-[a-z0-9_-]+|#?[1-9]\d?|{SESSION_ID_FORM}|[a-z0-9]+(?:-[a-z0-9]+)+)"
)
_WHICH: Final = (
    r"(?:(?:the|that|this|its|my|pending|proposed|open|last|latest|newest|current|running|local|cloud|first"
    r"|second|third) )+"
)
_ASKED_FOR: Final = r"(?:command|question|approval|patch|changes?|edits?|(?:permission )?request|permission)"
_ONE: Final = rf"(?:it|this|that|them|these|those|all|both|{_NAMED}|{_WHICH}(?:task|one|job))"
_EXACT_APPROVAL: Final = re.compile(
    rf"""(?:(?:yes|yeah|yep|ok|okay|fine|sure|please|pls|hey|hi|codex)[ ]?,?[ ])*(?:I[ ]|(?:go[ ]ahead[ ]and|to)[ ])?
    (?:approve|aprove|allow|accept|permit|authori[sz]e)
    (?:[ ](?:(?:{_ONE}|{_WHICH}{_ASKED_FOR}(?:[ ](?:of|for)[ ]{_ONE})?)(?:[ ]and[ ]{_NAMED})*))?
    (?:[ ]and[ ](?:continue|proceed|go[ ]ahead|carry[ ]on))?(?:[ ](?:now|once|this[ ]time))?
    (?:,?[ ](?:please|pls|thanks|thank[ ]you))*[.!]*""".replace("\n    ", ""),
    re.IGNORECASE | re.ASCII,
)
# ASCII only: `strip()` alone would also remove other spaces of Unicode, which an exact approval must not have.
_SPACE: Final = " \t\r\n"


def is_exact_approval(request: str, called: Sequence[str] = ()) -> bool:
    """Return whether a request is exactly an approval, with nothing around it.

    The original text is matched, so that no emoji, markup, invisible character or letter of another script can hide in
    it. `called` lists the names of the agent.
    """
    if len(request) > _LONGEST_TALK:
        return False
    said = request.strip(_SPACE)
    for name in called:
        if said.lower().startswith((f"{name.lower()},", f"{name.lower()}:")):
            said = said[len(name) + 1 :].strip(_SPACE)
    return _EXACT_APPROVAL.fullmatch(said) is not None


# Symbols, marks, and characters that are invisible, private, unassigned or half of a pair.
_ODD: Final = frozenset(["So", "Sk", "Mn", "Me", "Cf", "Co", "Cn", "Cs"])


def is_odd(request: str) -> bool:
    """Return whether a request contains markup, symbols or invisible characters."""
    text = unicodedata.normalize("NFKC", request[: 10 * _LONGEST_TALK])
    return "<" in text or any(unicodedata.category(char) in _ODD for char in text if not char.isascii())


# --- refusals --------------------------------------------------------------------------------------------------------

_NO: Final = re.compile(
    r"\s*(?:no|nope|nah|nein|nee|non|不行|不要|不可以|不可|不)"
    r"(?:\s*[,:;，：；—–.!。！-]\s*|\s+(?=(?:because|since|weil|denn|da|parce|car|puisque|porque|ya que)\b)|(?=因为))(\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_BECAUSE: Final = re.compile(r"(?:because|weil|denn|parce que|parce qu'|porque|因为)\s*", re.IGNORECASE)


def reason_of_refusal(request: str) -> str | None:
    """Return the reason after a no: "no because it touches production", "nein, weil …"; None without one."""
    found = _NO.match(request) if len(request) <= 4 * _LONGEST_TALK else None
    return None if found is None else _BECAUSE.sub("", found[1].strip(), count=1)


def is_yes_or_no(request: str) -> bool:
    """Return whether a request is only a yes or no. It approves nothing, but may be meant for a question."""
    said = _plain_words(request[:_LONGEST_TALK])
    return (
        bool(said) and v.yes_or_no.issuperset(said) and said[0] not in ("please", "thanks", "danke", "merci", "gracias")
    )


# --- commands in other languages -------------------------------------------------------------------------------------


_COURTESIES: Final = re.compile(r"\b(?:por favor|s il (?:te|vous) plait)\b|^请|谢谢$")


def command_abroad(request: str) -> RouterVerb | None:
    """Return the command that a request in German, French, Spanish or Chinese consists of, if any."""
    if len(request) > _LONGEST_TALK:
        return None
    said = " ".join(
        word for word in _COURTESIES.sub(" ", " ".join(_plain_words(request))).split() if word not in v.courtesy
    )
    operation = ABROAD.get(said)
    # An order in doubt is only a look, as in English.
    if operation in ("cancel", "respond") and ("?" in request or "？" in request or is_odd(request)):
        return "check"
    return operation


# --- requests that are no commands ------------------------------------------------------------------------------------


_CHINESE: Final = re.compile(
    rf"(?>{'|'.join(sorted(v.chinese_words, key=len, reverse=True))}|[\s,.!?:;。、…~]|it|them)+"
)
"""Longest match first, with an atomic group: backtracking takes exponential time on some texts."""


_IS_CODE: Final = re.compile(r"\w[(=/{\[]|\w_\w|\w\.\w")


def is_talk(request: str) -> bool:
    """Return whether a request is short and has no object, so that it must be about running work."""
    if len(request) > _LONGEST_TALK:
        return False
    # Chinese is written without spaces, so it cannot be split into words first.
    if any("\u4e00" <= char <= "\u9fff" for char in request):
        return _CHINESE.fullmatch(unicodedata.normalize("NFKC", request).casefold()) is not None
    said = [word for word in _plain_words(request) if word not in v.courtesy]
    if not said or len(said) > _MOST_TALK or _IS_CODE.search(request):
        return False
    if said[0] in v.talk_verbs and all(word in v.talk for word in said):
        return len(said) > 1 or said[0] not in v.alone
    if said[0] in v.talk_verbs and said[1:2] and said[1] in v.talk_pronouns and said[1] not in v.articles:
        return True
    if said[0] in v.work_verbs or all(word in v.points for word in said[1:]):
        return len(said) > 1 and all(word in v.refers for word in said[1:]) and not v.points.isdisjoint(said[1:])
    return len(said) > 1 and all(word in v.talk for word in said) and not v.plain.issuperset(said)


def _plain_words(request: str) -> list[str]:
    """Return the words in lower case and without accents; Chinese is one word."""
    folded = unicodedata.normalize("NFKD", request.casefold().replace("ß", "ss"))
    plain = "".join(char for char in folded if not unicodedata.combining(char))
    return re.findall(r"[^\W\d_]+|\d+", plain)


def is_mere_word(word: str) -> bool:
    """Return whether a word alone says nothing: "danke", "+1". In some scripts it may be a sentence."""
    letters = [char for char in word if char.isalpha()]
    if not letters:
        return any(map(str.isalnum, word))
    dense = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER")  # scripts that write without spaces
    return word.isalpha() and (len(word) <= 3 or not any(unicodedata.name(one, "").startswith(dense) for one in word))
