"""Parse a request by deterministic rules, in well under a millisecond.

Order of the rules:

1. hints
2. markers that announce work: "run: …" and "in the cloud: …"
3. orders with a text after a colon: "deny it: …", "continue with the last task: …"
4. commands, each a form that the whole request must match: set up, cancel, wait, results, check, answers, lists
5. looser rules for a request with a task id
6. requests that may be about tasks: the caller is asked
7. everything else is work

Mistakes differ in cost. Treating work as a check costs one more question. Treating work as a cancel destroys work, and
treating it as an approval allows an action without consent. So a cancel or an approval must match completely: an
imperative, its object, for a cancel at most a common reason, and no other word. A question about tasks never starts
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.router import forms
from helmsman.router import vocabulary as v
from helmsman.router.about_tasks import is_plain_question, is_question, may_be_about_tasks, turns_an_answer_round
from helmsman.router.markers import Mode, read_marker, where_to_run
from helmsman.router.talk import (
    TALK_VERBS,
    command_abroad,
    is_exact_approval,
    is_odd,
    is_talk,
    is_yes_or_no,
    reason_of_refusal,
)
from helmsman.router.verbs import RouterVerb
from helmsman.router.words import (
    ID,
    LONGEST_COMMAND,
    REFERENCES,
    is_session_id,
    is_task_id,
    own_words,
    read,
    split_at_colon,
    task_ids,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.router.words import Words

Action = Literal[RouterVerb, "choose", "none"]
"""`choose`: ambiguous between tasks and work, so the caller is asked."""
AnswerKind = Literal["approve", "deny", "text"]
ReferenceKind = Literal["id", "alias", "number", "last", "running", "description", "several"]


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference to a task.

    `value` is the id, the alias, the number (1 is the first choice), the describing words, or several ids separated by
    spaces; empty for `last` and `running`. If `sure` is False and no task matches, the request is work.
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
    if hints.operation is not None:
        action = hints.operation
        trace = (f"The hint asks for {action}.",)
        if action == "run" and found.action != "run":
            found = Intent(action="run", mode=where_to_run(request))
        elif action != "run":
            answer = (found.answer or PlainAnswer("text", request.strip())) if action == "respond" else None
            reference = found.reference or _reference_of_ids(task_ids(request))
            found = replace(found, action=action, reference=reference, answer=answer)
    if hints.task_id is not None:
        if found.action == "choose":  # with a named task, it is a question or the next message
            found = replace(found, action="check" if is_question(request) else "run", mode=None)
        found, trace = _with_task_hint(found, hints.task_id, asked=hints.operation is not None, trace=trace)
    if found.action == "run" and (not request or request.isspace()):
        found = replace(found, action="none", reference=None)
        trace = (*trace, "There is no work in the request.")
    mode = found.mode
    if hints.mode is not None and hints.mode != "auto":
        mode = hints.mode
        trace = (*trace, f"The hint asks for {mode}.")
    return replace(
        found,
        mode=mode,
        instruction=(found.instruction or request) if found.action in ("run", "choose") or _may_be_work(found) else "",
        timeout_ms=hints.timeout_ms or found.timeout_ms,
        poll_frequency_ms=hints.poll_frequency_ms,
        trace=trace,
    )


def _may_be_work(found: Intent) -> bool:
    return found.reference is not None and not found.reference.sure


def _with_task_hint(
    found: Intent, task_id: str, *, asked: bool, trace: tuple[str, ...]
) -> tuple[Intent, tuple[str, ...]]:
    task_id = task_id.strip()
    named = Reference("id" if is_task_id(task_id) else "alias", task_id)
    trace = (*trace, f"The hint names the task {named.value}.")
    said = found.reference
    if (
        said is not None
        and said.value
        and said.kind in ("id", "alias", "several")
        and task_id not in said.value.split()
    ):
        named = Reference("several", f"{said.value} {task_id}", sure=said.sure)  # these may be names of one task
    if found.action == "none" and not asked:
        return replace(found, action="check", reference=named), (*trace, "Without words, that asks how it is.")
    return replace(found, reference=named), trace


def _reference_of_ids(ids: tuple[str, ...]) -> Reference | None:
    if not ids:
        return None
    if len(ids) > 1:
        return Reference("several", " ".join(ids))
    return Reference("id", ids[0], sure=not is_session_id(ids[0]))


# --- commands --------------------------------------------------------------------------------------------------------


def _read_words(request: str, called: Sequence[str]) -> Intent:
    if marked := read_marker(request):
        said = "The request says that work follows." if marked.mode is None else f"The request asks for {marked.mode}."
        return Intent(action="run", mode=marked.mode, instruction=marked.instruction, trace=(said,))
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
    if words.mind:
        words.words[0] = v.GERUNDS.get(words.words[0], words.words[0])
    if words.slugs and (is_talk(request) or turns_an_answer_round(words)):  # "applique-le" looks like an alias
        return _talk(words, request)
    command = _command(words, request, called) or (_about_an_id(words) if words.ids else None)
    if command is not None:
        return command
    if (reason := reason_of_refusal(request)) is not None:
        return _answer(words, PlainAnswer("deny", reason), "The request says no, and why.")
    if tuple(words.words) in v.GO_AHEAD:
        ahead = _of_task("choose", words, "The request says to go ahead, not with what.")
        return replace(ahead, instruction=request, may_answer=True)
    if is_plain_question(words):
        return _of_task("check", words, "The request asks how something is, and speaks of nothing but tasks.")
    if is_yes_or_no(request):
        return Intent(action="none", may_answer=True, trace=("The request is a mere yes or no.",))
    if not words.ids and (is_talk(request) or is_talk(" ".join(words.words))):
        return _talk(words, request)
    if may_be_about_tasks(words):
        why = "The request may be about tasks and is no plain command."
        return replace(_of_task("choose", words, why), instruction=request)
    work = _work(request, "The request is no command from beginning to end, so it is work.")
    aliases = words.slugs if len(words.words) <= _SHORT else ()
    return replace(work, may_answer=_may_answer(words.words), mentions=(*words.ids, *aliases))


def _with_material(words: Words, request: str, called: Sequence[str]) -> Intent:
    """Classify a request with pasted text.

    Text to work on is work: it is the object of "fix this". For an order or answer with such text, the caller is asked,
    because the text may contradict it.
    """
    said = _read_words(own_words(request), called)
    begin = words.words[:2]
    is_work = bool(begin) and begin[0] in v.WORK_VERBS and not (begin[0] in TALK_VERBS and begin[1:] == ["it"])
    if said.action in ("respond", "apply", "cancel") or (
        not is_work and said.action != "run" and (said.may_answer or (begin and said.action == "choose"))
    ):
        why = "The request is about a task, and brings text that may say something else."
        return Intent(action="choose", reference=said.reference, instruction=request, may_answer=True, trace=(why,))
    if words.ids and said.action != "run":
        return said
    return _work(request, "The request brings text to work on, so it is work.")


def _talk(words: Words, request: str) -> Intent:
    talk = _of_task("choose", words, "The request has no object of its own, so it speaks of running work.")
    return replace(talk, instruction=request, may_answer=True)


def _may_answer(said: list[str]) -> bool:
    if said[0] in v.MAY_BEGIN_ANSWER:
        return len(said) <= _SHORT
    if said[0] in v.WORK_VERBS:
        return False
    return len(said) <= _FEW or (len(said) <= _MEDIUM and any(word in v.MAY_ANSWER for word in said))


def _with_text(request: str, called: Sequence[str]) -> Intent | None:
    """Parse an order with a text after a colon: "deny it: touches production", "continue with the last task: …"."""
    parts = split_at_colon(request) or _split_at_because(request)
    words = None if parts is None else read(parts[0], called)
    if parts is None or words is None or not words.words or words.said_no or words.material:
        return None
    text, said = parts[1], words.words
    if forms.is_denial(_of_me(said)) and not words.unsure:
        return _answer(words, PlainAnswer("deny", text), "The request denies what a task asks, with a reason.")
    if said[-1] == "reason" and words.ids:
        said.pop()
        if said and forms.is_cancel(words) and not words.unsure:
            found = _of_task("cancel", words, "The request is an order to cancel, and says why.")
            return replace(found, reason=text)
    if forms.ANSWER.fits(said):
        return _answer(words, PlainAnswer("text", text), "The request answers what a task asks.")
    if forms.FOLLOW_UP.fits(said) or (said == [ID] and _begins_work(text)):
        reference = _reference(words) or Reference("last")
        return Intent(action="run", reference=reference, instruction=text, trace=("The request goes on with a task.",))
    return None


def _split_at_because(request: str) -> tuple[str, str] | None:
    head, because, text = request[:LONGEST_COMMAND].partition(" because ")
    words = read(head) if because and text.strip() else None
    denies = words is not None and words.words and words.words[0] in v.DENY_VERBS
    return (head, text.strip()) if denies else None


def _of_me(said: list[str]) -> list[str]:
    """Reduce "I approve it" to "approve it"."""
    return said[1:] if said[0] == "i" and len(said) > 1 else said


def _begins_work(text: str) -> bool:
    words = read(text[:LONGEST_COMMAND])
    return words is not None and bool(words.words) and words.words[0] in v.WORK_VERBS


def _answer(words: Words, answer: PlainAnswer, why: str) -> Intent:
    return replace(_of_task("respond", words, why), answer=answer)


def _work(request: str, why: str) -> Intent:
    mode = where_to_run(request)
    trace = (why,) if mode is None else (why, f"It plainly asks for {mode}.")
    return Intent(action="run", mode=mode, mentions=task_ids(request), trace=trace)


def _command(words: Words, request: str, called: Sequence[str]) -> Intent | None:
    found = _order(words)
    if found is None:
        return None
    if found.action == "none":
        return replace(found, may_answer=is_yes_or_no(request))
    if found.answer is not None and found.answer.kind == "approve":
        is_doubtful = not (found.answer.wide or is_exact_approval(request, called))
    elif found.answer is not None:
        is_doubtful = words.unsure
    else:
        is_doubtful = words.unsure or is_odd(request)
    if is_doubtful and found.action in ("respond", "apply", "cancel"):
        look = _of_task("check", words, f"The request wonders about {found.action}, so nothing is done but a look.")
        return replace(look, may_answer=found.action == "respond")
    return found


def _order(words: Words) -> Intent | None:
    said = words.words
    if forms.is_pleasant(words):
        return Intent(action="none", trace=("The request is courtesy alone.",))
    if said in forms.HELP:
        return Intent(action="none", trace=("The request asks what one can say.",))
    if (answer := _answers(words)) is not None:
        return answer
    if forms.APPLY.fits(said):
        return _of_task("apply", words, "The whole request asks to apply what a task has changed.")
    if forms.CHOICE.fits(said):
        return replace(_of_task("check", words, "The request asks for another of the tasks."), again=True, picks=True)
    if forms.NUMBER_ALONE.fits(said):
        picks = not words.asks  # "2?" asks for the state of that task
        return replace(_of_task("check", words, "The request is a number of the choices."), picks=picks)
    if forms.ENVIRONMENTS.fits(said):
        return Intent(action="environments", trace=("The whole request asks which cloud environments there are.",))
    if forms.is_setup(said):
        return Intent(action="setup", trace=("The whole request is about setting up GitHub or the cloud.",))
    if forms.is_cancel(words):
        return _of_task("cancel", words, "The whole request is an order to cancel.")
    if forms.is_refused_cancel(said):
        return _of_task("check", words, "The request says not to cancel, so nothing is done but a look.")
    if forms.is_wait(said):
        intent = _of_task("wait", words, "The whole request is about waiting.")
        return replace(intent, timeout_ms=words.duration_ms)
    if forms.is_results(said):
        return _of_task("results", words, "The whole request asks for results.")
    if forms.is_check(said):
        return _of_task("check", words, "The whole request asks how a task is.")
    return _described(words)


def _answers(words: Words) -> Intent | None:
    if words.material:
        return None
    said = _of_me(words.words)
    if forms.WIDE_APPROVAL.fits(said):
        return _answer(words, PlainAnswer("approve", wide=True), "The request approves for more than one question.")
    if forms.is_approval(said):
        if words.said_no:
            look = _of_task("check", words, "The request begins with a no, so nothing is approved but shown.")
            return replace(look, may_answer=True)
        return _answer(words, PlainAnswer("approve"), "The whole request approves what a task asks.")
    if forms.is_denial(said):
        return _answer(words, PlainAnswer("deny"), "The whole request denies what a task asks.")
    if forms.REFUSED_APPROVAL.fits(said):
        if "approve" in said:  # may mean "not yet"
            look = _of_task("check", words, "The request says not to approve, so nothing is done but a look.")
            return replace(look, may_answer=True)
        return _answer(words, PlainAnswer("deny"), "The whole request denies what a task asks.")
    return None


def _of_task(action: Action, words: Words, why: str) -> Intent:
    reference = _reference(words)
    place = next((v.PLACES[word] for word in words.words if word in v.PLACES), None)
    trace = (
        (why,) if reference is None else (why, f"It names a task: {reference.kind} {reference.value}".rstrip() + ".")
    )
    return Intent(action=action, reference=reference, mode=cast("Mode | None", place), trace=trace)


def _reference(words: Words) -> Reference | None:
    if words.ids:
        return _reference_of_ids(tuple(dict.fromkeys(words.ids)))
    if words.slugs:
        slug = words.slugs[0]
        like_an_id = slug.startswith("t-") and any(char.isdigit() for char in slug)
        return Reference("id", slug) if like_an_id else Reference("alias", slug, sure=False)
    if words.numbers:
        return Reference("number", words.numbers[0])
    said = set(words.words)
    if said & v.SEVERAL:
        return Reference("several")
    if said & v.LAST:
        return Reference("last")
    return Reference("running") if said & {"current", "ongoing", "active"} else None


_GOING: Final = frozenset(["going", "doing", "along", "progressing"])
_DONE: Final = frozenset(["done", "finished", "ready", "complete", "completed", "finish"])
_LONGEST_DESCRIPTION: Final = 6


def _described(words: Words) -> Intent | None:
    """Parse a question about a task that is described by its work: "how is the login fix going?"."""
    said = words.words
    sure = False
    if said[0] in ("how", "how's") and said[-1] in _GOING:
        begin = 1 if said[0] == "how's" else 2
        end = len(said) - (2 if said[-2:] == ["coming", "along"] else 1)
        sure = True
    elif said[0] in ("is", "are", "has", "did") and said[-1] in _DONE:
        begin, end = 1, len(said) - 1
    elif said[0] in ("status", "progress") and said[1:2] in (["of"], ["on"], ["for"]):
        begin, end = 2, len(said)
    else:
        return None
    description = [word for word in said[begin:end] if word not in ("the", "my", "a", "our")]
    if not 1 <= len(description) <= _LONGEST_DESCRIPTION or any(word in REFERENCES for word in description):
        return None
    reference = Reference("description", " ".join(description), sure=sure)
    return Intent(
        action="check", reference=reference, trace=(f"The request asks how something is: {reference.value}.",)
    )


# --- requests with a task id -----------------------------------------------------------------------------------------

_FEW: Final = 3
"""While a question is open, a request of up to this many words may answer it in any language."""
_SHORT: Final = 6
_MEDIUM: Final = 14


def _about_an_id(words: Words) -> Intent | None:
    """Classify a request that is no complete command but names a task: a question, or work that mentions it."""
    said = words.words
    if any(said[place] in v.WORK_VERBS for place in words.clauses if place < len(said)) or len(said) > _MEDIUM:
        return None
    if any(said[place] in ("and", "then", "to") and said[place + 1] in v.WORK_VERBS for place in range(len(said) - 1)):
        return None
    first = said[0]
    if "what" in said and said[-1] in v.DEEDS - {"say"}:
        return _of_task("results", words, "The request asks what the task it names has done.")
    if first in v.NEGATIONS:
        return _of_task("check", words, "The request says not to, so nothing is done but a look.")
    if first in v.CANCEL_VERBS:
        return None
    if first in v.QUESTION_LEADS:
        if first in ("what", "what's") and any(word in v.DEEDS or word in v.RESULT_NOUNS for word in said):
            return _of_task("results", words, "The request asks what the task it names has done.")
        return _of_task("check", words, "The request is a question about the task it names.")
    if first in v.WAIT_LEADS or (first in v.TELL_LEADS and any(word in v.WHENS for word in said)):
        return replace(
            _of_task("wait", words, "The request asks to wait for the task it names."), timeout_ms=words.duration_ms
        )
    if len(said) > _SHORT or any(word in v.WORK_VERBS for word in said):
        return None
    if any(word in v.RESULT_NOUNS for word in said) or first == "show":
        return _of_task("results", words, "The request names a task and asks for its results.")
    return _of_task("check", words, "The request names a task and orders nothing else.")
