"""Select the task that an intent refers to and the place where work runs, as a pure function.

Without a name, a request refers to the only task of the last ten minutes, otherwise to the only running one. Otherwise
the caller is asked, with up to three choices, newest first. An automatic choice always lists its alternatives. An
answer goes to the only task with an open question; if there are several, the caller is asked.
"""

from __future__ import annotations

import hmac
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid, InvalidInput
from helmsman.model.questions import (
    APPROVE_ALWAYS,
    APPROVE_SESSION,
    NO_MEANS,
    YES_MEANS,
    read_answers,
)
from helmsman.router.intent import PlainAnswer, Reference
from helmsman.router.vocabulary import v
from helmsman.router.words import is_session_id, is_task_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.model.questions import Prompt, Question
    from helmsman.router.intent import Action, Intent, Mode
    from helmsman.tasks.model import Task

# --- Stateless tokens that confirm a plan -----------------------------------------------------------------------------

# With `require_confirmation`, a request returns its plan and a token; the same request with the token executes it.
# The token contains an expiry and a keyed digest of the whole plan, so it is valid only for that plan, that key and
# that time. It can be reused while valid, but work starts once, because the token is also its idempotency key.

LIFETIME: Final = timedelta(minutes=10)
_TOKEN: Final = re.compile(r"C-(?P<expiry>[0-9a-f]{8})(?P<digest>[0-9a-f]{64})")
"""Expiry in seconds since 1970, and the digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedPlan:
    """Everything that must not change between preview and execution."""

    action: str
    task_id: str | None = None
    instruction: str = ""
    mode: str | None = None
    directory: str | None = None
    max_cost_usd: float | None = None
    terms: tuple[tuple[str, str], ...] = ()
    """All other parameters, by name."""


def seal(plan: ConfirmedPlan, key: bytes, now: datetime) -> str:
    """Return a token for this plan, valid for `LIFETIME`."""
    expiry = f"{int((now + LIFETIME).timestamp()):08x}"
    return f"C-{expiry}{_digest(plan, key, expiry)}"


def check(token: str, plan: ConfirmedPlan, key: bytes, now: datetime) -> None:
    """Check that the token confirms this plan now.

    Raises:
        InvalidInput: The token is for another plan, has expired, or is malformed; the detail `reason` is `other_plan`,
            `expired` or `not_a_token`.
    """
    advice = "Send the request again without the token to see what would be done, and confirm that."
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise InvalidInput(f"This is not a confirmation token. {advice}", reason="not_a_token")
    # Before the expiry is read, which only then is known to be ours.
    if not hmac.compare_digest(found["digest"], _digest(plan, key, found["expiry"])):
        raise InvalidInput(f"This token does not confirm what the request would now do. {advice}", reason="other_plan")
    until = datetime.fromtimestamp(int(found["expiry"], 16), UTC)
    if now >= until:
        raise InvalidInput(
            f"This token was good until {until.isoformat(timespec='seconds')}. {advice}", reason="expired"
        )


def _digest(plan: ConfirmedPlan, key: bytes, expiry: str) -> str:
    # The expiry is part of it, so it cannot be changed. As JSON, no words can move from one part of the
    # plan to another.
    content = f"helmsman confirmation {expiry} {json.dumps(asdict(plan), sort_keys=True)}"
    return hmac.new(key, content.encode("ascii"), "sha256").hexdigest()


# --- Map plain-language answers to the options of a question, never to one that covers more than the question ---------

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


RECENT: Final = timedelta(minutes=10)
MOST_CHOICES: Final = 3
MOST_SHOWN: Final = 20
_NONE_YET: Final = "There is no {} yet. Say what is to be done to start one."
_ALIKE: Final = 0.75


def may_take_long(request: str) -> bool:
    """Return whether the work may take hours: a comprehensive task on something large."""
    words = {word.strip(".,:;!?\"'()") for word in request[:400].lower().split()}
    return bool(words & v.long or (words & v.all_of and words & v.much))


_FEW_WORDS: Final = 6
"""Maximum words of a request that names a missing task and is not treated as work."""


@dataclass(frozen=True, slots=True)
class Place:
    """Context of a request: whether there is a local repository, and the configured cloud environment."""

    repository: bool = True
    cloud_environment: str | None = None
    without_cloud: str | None = None
    """Name of the addressed agent, if it has no cloud."""
    long_work_in_cloud: bool = False
    """True if the user's settings send long work to the cloud."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Choices offered by the last answer, in order: task ids, then possibly `work` to run instead.

    `action` is the action requested then.
    """

    action: Action = "none"
    tasks: tuple[str, ...] = ()
    work: str = ""


NOTHING_OFFERED: Final = Offer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Decision on a request. With `choices`, an `error` or the action `choose`, nothing is done.

    An error names the missing task or the impossible request, and the next step. `choices` are numbered from 1, and
    the next request may use these numbers; for `choose`, the number after them runs `instruction` as work. `mode` is
    where work runs, or where the selected task runs. `alternatives` are the other tasks of an automatic choice; `all`
    lists all tasks on request. `may_take_long` marks work that may fit a cloud better.
    """

    action: Action
    task_id: str | None = None
    mode: Mode | None = None
    instruction: str = ""
    choices: tuple[Task, ...] = ()
    alternatives: tuple[Task, ...] = ()
    all: tuple[Task, ...] | None = None
    answer: PlainAnswer | None = None
    reason: str | None = None
    may_take_long: bool = False
    error: str | None = None
    error_code: str = "task_not_found"
    timeout_ms: int | None = None
    poll_frequency_ms: int | None = None
    trace: tuple[str, ...] = ()

    @property
    def means_none(self) -> bool:
        """Return whether no matching task was found."""
        return self.task_id is None and not self.choices and not self.all


def route(
    intent: Intent,
    candidates: Sequence[Task],
    now: datetime,
    place: Place,
    *,
    offered: Offer = NOTHING_OFFERED,
    it: str | None = None,
) -> Route:
    """Select the task and the place.

    Args:
        it: The id of the task that "it" refers to: the one that the last answer was about.
        offered: The choices of the last answer, for a request with a number. Without them, a number refers to the order
            in which choices would be offered now.
    """
    planned = Route(
        action=_action(intent, offered),
        answer=intent.answer,
        reason=intent.reason,
        instruction=intent.instruction,
        timeout_ms=intent.timeout_ms,
        poll_frequency_ms=intent.poll_frequency_ms,
        trace=intent.trace,
    )
    if place.without_cloud is not None and (intent.mode == "cloud" or intent.action in ("setup", "environments")):
        message = f"The cloud is Codex's: {place.without_cloud} works here. Ask the tool codex, or leave the cloud out."
        action: Action = "none" if planned.action == "choose" else planned.action
        return replace(_refused(planned, message), action=action, error_code="unsupported")
    tasks = sorted(candidates, key=lambda task: (task.created_at, task.id), reverse=True)
    match intent.action:
        case "none" if intent.may_answer and (asking := _asking(tasks)):
            why = "It asks something, and the request may be an answer."
            shown = replace(planned, action="check")
            return _chosen(shown, asking[0], why) if len(asking) == 1 else _ask(shown, asking, why)
        case "none" | "setup" | "environments":
            return planned
        case "run":
            if intent.may_answer and (asking := _asking(tasks)):
                why = "A question is open, and the request may be an answer to it."
                return _ask(replace(planned, action="choose"), asking, why)
            # Work that names a task may be meant for it.
            if intent.reference is None and (named := _mentioned(intent, tasks)):
                return _ask(replace(planned, action="choose"), named, "The request names a task.")
            if intent.mentions and is_task_id(intent.mentions[0]) and len(planned.instruction.split()) <= _FEW_WORDS:
                return _not_found(planned, Reference("id", intent.mentions[0]), tasks)
            work = _with_named_task(planned, intent, tasks)
            return work if work.choices else _place_work(work, intent, place)
        case "choose":
            asking = _asking(tasks) if intent.may_answer else []
            return _ask(planned, asking or _meant(intent, tasks, now), "It may be work as well.")
        case "apply" if intent.reference is None and tasks:
            return _ask(planned, _meant(intent, tasks, now), "What is applied has to be named.")
        case "respond":
            return _answered(planned, intent, tasks, place, offered)
        case _:
            return _choose(planned, intent, tasks, now, place, offered, it)


def changes_unnamed(intent: Intent) -> bool:
    """Return whether this stops a task, or gives it more work, without naming it: "cancel it"."""
    reference = intent.reference
    if reference is not None and (reference.value or reference.kind == "number"):
        return False
    return intent.action == "cancel" or (intent.action == "run" and reference is not None)


def ask_first(planned: Route, tasks: Sequence[Task]) -> Route:
    """Offer the selected task as a choice, because the caller does not know it yet."""
    chosen = [task for task in tasks if task.id == planned.task_id]
    return _ask(replace(planned, task_id=None, alternatives=()), chosen, "The caller has not heard of that task.")


def of_others(intent: Intent, planned: Route, others: Sequence[Task], now: datetime, place: Place) -> Sequence[Task]:
    """Return the tasks of other agents that a request refers to, if the addressed agent has none (`planned`).

    They are only reported.
    """
    if intent.action == "choose":
        return ()
    if intent.action == "run" and intent.reference is None:
        return _mentioned(intent, others)
    found = route(intent, others, now, place)
    if found.task_id is not None:
        return [task for task in others if task.id == found.task_id]
    return (found.choices or found.all or ()) if planned.error is not None else ()


def _mentioned(intent: Intent, tasks: Sequence[Task]) -> list[Task]:
    names = {name.lower() for name in intent.mentions}
    found = [task for task in tasks if task.id.lower() in names or task.alias in names] if names else []
    return found or [task for name in names for task in _of_session(name, tasks)[:1]]


_LOOKS: Final = frozenset(["check", "wait", "results"])


def _action(intent: Intent, offered: Offer) -> Action:
    """Return the action; "switch to #2" repeats the previous one, if that was read-only."""
    return offered.action if intent.again and offered.action in _LOOKS else intent.action


def _meant(intent: Intent, tasks: Sequence[Task], now: datetime) -> Sequence[Task]:
    """Return tasks that an ambiguous request may refer to."""
    reference = intent.reference
    if reference is not None and reference.value:
        names = reference.value.split()
        if found := [task for task in tasks if task.id in names or task.alias in names]:
            return found
    recent = [task for task in tasks if now - task.updated_at <= RECENT or task.is_running]
    return recent or tasks


def _by_name(planned: Route, intent: Intent, reference: Reference, tasks: Sequence[Task], place: Place) -> Route:
    """Select a task by id or alias; a value that only looks like one makes the request work."""
    if named := _named(reference.value, tasks, planned.action):
        return _chosen(planned, named, f"{reference.value} is that task.")
    # In a longer request, a UUID may well be part of the work.
    if is_session_id(reference.value) and (
        planned.action in ("respond", "apply", "cancel") or len(planned.instruction.split()) <= _FEW_WORDS
    ):
        return _not_found(planned, reference, tasks)
    if planned.action == "respond" and not reference.sure:
        return _ask(replace(planned, action="choose"), _asking(tasks), f"No task is called {reference.value}.")
    # A near miss is probably a typo. Asking costs less than work that was not meant.
    if not reference.sure and not _near(reference, tasks):
        return _work_after_all(planned, intent, place, f"No task is called {reference.value}")
    return _unknown(planned, reference, tasks)


def _answered(planned: Route, intent: Intent, tasks: Sequence[Task], place: Place, offered: Offer) -> Route:
    """Route an answer to the named task, or to the only task with an open question."""
    reference = intent.reference
    asking = [task for task in _asking(tasks) if intent.mode in (None, task.origin)]
    if reference is not None and reference.kind in ("id", "alias"):
        return _by_name(planned, intent, reference, tasks, place)
    if reference is not None and reference.kind == "several" and reference.value:
        return _among(planned, reference, tasks)
    if reference is not None and reference.kind == "number" and asking:
        return _numbered(planned, reference, asking, tasks, offered)
    if reference is not None and reference.kind == "last" and tasks:
        return _chosen(planned, tasks[0], "It is the newest task.")
    if len(asking) == 1 and (reference is None or reference.kind in ("several", "running")):
        return _chosen(planned, asking[0], "It is the only task that asks something.")
    if asking:
        return _ask(planned, asking, "Several tasks ask something, and one is answered at a time.")
    if intent.answer is not None and intent.answer.text:
        return _ask(replace(planned, action="choose"), (), "No task asks anything, so it may be work.")
    return _refused(planned, "No task asks anything at the moment. Check a task to see how it stands.")


# --- where work runs -------------------------------------------------------------------------------------------------


def _place_work(planned: Route, intent: Intent, place: Place) -> Route:
    if planned.error is not None:
        return planned
    if intent.mode is not None:
        where = "in the cloud" if intent.mode == "cloud" else "locally"
        return replace(planned, mode=intent.mode, trace=(*planned.trace, f"It runs {where}, as asked."))
    if planned.task_id is not None:
        return replace(planned, mode="local", trace=(*planned.trace, f"It goes on with {planned.task_id}."))
    if not place.repository and place.cloud_environment is not None:
        why = f"There is no local repository and {place.cloud_environment} is configured, so it runs in the cloud."
        return replace(planned, mode="cloud", trace=(*planned.trace, why))
    takes_long = place.cloud_environment is not None and may_take_long(planned.instruction)
    if takes_long and place.long_work_in_cloud:
        why = "It may take long, and your settings send such work to the cloud."
        return replace(planned, mode="cloud", trace=(*planned.trace, why))
    return replace(
        planned,
        mode="local",
        may_take_long=takes_long,
        trace=(*planned.trace, "It runs locally, as nothing says otherwise."),
    )


def _with_named_task(planned: Route, intent: Intent, tasks: Sequence[Task]) -> Route:
    """Add the task that work continues, from a hint or a reference."""
    if intent.reference is None:
        return planned
    if intent.reference.kind == "last":
        local = [task for task in tasks if task.origin == "local"]
        return (
            replace(planned, task_id=local[0].id)
            if local
            else _refused(planned, _NONE_YET.format("task to go on with"))
        )
    if intent.reference.kind == "several":
        return _among(planned, intent.reference, tasks)
    named = _named(intent.reference.value, tasks)
    return replace(planned, task_id=named.id) if named else _unknown(planned, intent.reference, tasks)


# --- task selection --------------------------------------------------------------------------------------------------


def _choose(
    planned: Route,
    intent: Intent,
    tasks: Sequence[Task],
    now: datetime,
    place: Place,
    offered: Offer,
    it: str | None,
) -> Route:
    reference = intent.reference
    kind = None if reference is None else reference.kind
    if reference is not None and kind == "number" and _is_the_work(intent, offered):
        chosen = replace(
            planned, action="run", instruction=offered.work, trace=(*planned.trace, "It is to run as work.")
        )
        return _place_work(chosen, replace(intent, mode=None), place)
    if reference is not None and reference.kind in ("id", "alias"):
        return _by_name(planned, intent, reference, tasks, place)
    if reference is not None and reference.kind == "several" and reference.value:
        return _among(planned, reference, tasks)
    if intent.mode is not None:
        tasks = [task for task in tasks if task.origin == intent.mode]
    if not tasks and intent.mode == "cloud" and planned.action == "check" and kind == "several":
        return replace(planned, mode="cloud", all=(), trace=(*planned.trace, "It asks for all of them."))
    if not tasks:
        missing = "task" if intent.mode is None else f"{intent.mode} task"
        return _refused(planned, _NONE_YET.format(missing))
    # A vague request that may be an answer is about the task that waits for one.
    if reference is None and intent.may_answer and len(asking := _asking(tasks)) == 1:
        return _chosen(planned, asking[0], "It is the only task that asks something.", tasks)
    eligible = _eligible(intent.action, tasks)
    working = [task for task in eligible if task.is_running]
    recent = [task for task in eligible if now - task.updated_at <= RECENT]
    if reference is not None and kind == "number":
        return _numbered(planned, reference, recent or working or eligible, tasks, offered)
    if kind == "last":
        return _chosen(planned, tasks[0], "It is the newest task.", tasks)
    if planned.action == "check" and kind == "several":
        shown = recent if len(recent) > 1 else eligible
        trace = (*planned.trace, "It asks for all of them.")
        return replace(planned, mode=intent.mode, all=tuple(shown[:MOST_SHOWN]), trace=trace)
    # An order for all of them never selects a single one silently.
    if kind == "several" and len(eligible) > 1:
        return _ask(planned, eligible, "It speaks of several tasks, and one is done at a time.")
    if kind == "running" and len(working) == 1:
        return _chosen(planned, working[0], "It is the only task at work.", eligible)
    if kind == "running" and working:
        return _ask(planned, working, "Several tasks are at work.")
    if reference is None and (told := [task for task in eligible if task.id == it]):
        return _chosen(planned, told[0], "The last answer was about it.", eligible)
    if len(recent) == 1:
        return _chosen(planned, recent[0], "It is the only task of the last ten minutes.", eligible)
    if len(working) == 1:
        return _chosen(planned, working[0], "It is the only task at work.", eligible)
    if len(eligible) == 1:
        return _chosen(planned, eligible[0], "It is the only task there is.", eligible)
    # A cancel of the wrong task would destroy its work, so none of several is guessed.
    return _ask(planned, recent or working or eligible, "More than one task may be meant.")


def _is_the_work(intent: Intent, offered: Offer) -> bool:
    """Return whether a number selects the choice after all tasks: run the request as work."""
    number = intent.reference.value if intent.reference is not None else ""
    return bool(offered.work) and intent.picks and number == str(len(offered.tasks) + 1)


def _eligible(action: Action, tasks: Sequence[Task]) -> Sequence[Task]:
    """Limit cancel and wait to running tasks, if there are any."""
    if action in ("cancel", "wait") and (at_work := [task for task in tasks if task.is_running]):
        return at_work
    return tasks


def _asking(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.input_required]


def _named(name: str, tasks: Sequence[Task], action: Action = "check") -> Task | None:
    """Find a task by id (exact) or alias (case-insensitive; the newest one).

    A session id refers to its newest task: for an answer, the newest with an open question; for a cancel, a running
    one.
    """
    by_id = next((task for task in tasks if task.id == name), None)
    if named := by_id or next((task for task in tasks if task.alias == name.lower()), None):
        return named
    found = _of_session(name, tasks)
    fitting = _asking(found) if action == "respond" else _eligible(action, found)
    return next(iter(fitting or found), None)


def _of_session(name: str, tasks: Sequence[Task]) -> list[Task]:
    wanted = name.lower()
    return [task for task in tasks if (task.session_id or "").lower() == wanted] if is_session_id(name) else []


def _among(planned: Route, reference: Reference, tasks: Sequence[Task]) -> Route:
    """Resolve several names, which may refer to one task: the words contain its id, a hint its alias."""
    found = {name: _named(name, tasks) for name in reference.value.split()}
    if missing := [name for name, task in found.items() if task is None]:
        return _unknown(planned, replace(reference, kind="id", value=missing[0]), tasks)
    known = list({task.id: task for task in found.values() if task is not None}.values())
    if len(known) == 1:
        return _chosen(planned, known[0], "All names are of that task.")
    return _ask(planned, known, "It names several tasks, and one is done at a time.")


def _numbered(
    planned: Route, reference: Reference, now_offered: Sequence[Task], tasks: Sequence[Task], offered: Offer
) -> Route:
    number = int(reference.value)
    # The caller may have another list in mind, so only a look may guess what the number means.
    if not offered.tasks and planned.action not in _LOOKS:
        return _ask(planned, now_offered, "Nothing was offered that the number could be of.")
    names = list(offered.tasks) or [task.id for task in now_offered[:MOST_CHOICES]]
    if number > len(names):
        message = f"There is no choice {number}. Use a number up to {len(names)}, or name the task by its id or alias."
        return _refused(planned, message)
    task = next((task for task in tasks if task.id == names[number - 1]), None)
    # The number must not mean another task that has taken the place since.
    if task is None:
        return _refused(planned, f"Choice {number} is no longer there. List the tasks to see what is.")
    others = [other for other in tasks if other.id in names]
    return _chosen(planned, task, f"It is number {number} of the choices.", others)


# --- results ---------------------------------------------------------------------------------------------------------


def _chosen(planned: Route, task: Task, why: str, among: Sequence[Task] = ()) -> Route:
    others = [other for other in among if other.id != task.id]
    return replace(
        planned,
        task_id=task.id,
        mode="cloud" if task.origin == "cloud" else "local",
        alternatives=tuple(others[:MOST_CHOICES]),
        trace=(*planned.trace, f"{why} ({task.id}, {task.alias})"),
    )


def _ask(planned: Route, tasks: Sequence[Task], why: str) -> Route:
    return replace(
        planned, choices=tuple(tasks[:MOST_CHOICES]), trace=(*planned.trace, f"{why} The caller has to choose.")
    )


def _work_after_all(planned: Route, intent: Intent, place: Place, why: str) -> Route:
    work = replace(planned, action="run", trace=(*planned.trace, f"{why}, so it is work."))
    return _place_work(work, intent, place)


def _near(reference: Reference, tasks: Sequence[Task]) -> list[str]:
    """Return the names of tasks that are nearly this one: a typo, a shortened name, or another case."""
    names = {
        name.lower(): name
        for task in tasks
        for name in ((task.id,) if reference.kind == "id" else (task.alias, task.id))
    }
    close = get_close_matches(reference.value.lower(), names, n=MOST_CHOICES, cutoff=_ALIKE)
    return [names[name] for name in close]


def _not_found(planned: Route, reference: Reference, tasks: Sequence[Task]) -> Route:
    """Report a missing task. If the name may be a session id, the request may be work."""
    if is_session_id(reference.value) and planned.action not in ("respond", "apply", "cancel"):
        return _ask(replace(planned, action="choose"), (), f"No task is of a session {reference.value}.")
    return _unknown(planned, reference, tasks)


def _unknown(planned: Route, reference: Reference, tasks: Sequence[Task]) -> Route:
    near = _near(reference, tasks)
    advice = f"Did you mean {' or '.join(near)}?" if near else "List the tasks to see their ids and aliases."
    what = "task of a session" if is_session_id(reference.value) else "task"
    return _refused(planned, f"There is no {what} {reference.value}. {advice}")


def _refused(planned: Route, message: str) -> Route:
    return replace(planned, error=message, trace=(*planned.trace, message))
