"""Tool of each agent in the toolset `router` (`codex`, `claude`, …): a request in plain words, and one output model.

`helmsman.router` parses the request. This module carries it out with the functions of the primitives, and reports the
action.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import refuse_outside
from helmsman.base.structs import replace
from helmsman.capabilities.shown_diffs import fits_in_an_answer
from helmsman.errors import CloudError, HelmsmanError, InvalidInput, SessionNotFound
from helmsman.git.command import repository_root
from helmsman.mcp.call import CallContext
from helmsman.mcp.primitives import primitives_of, setup_guide, wait_for_task
from helmsman.mcp.resources import session_of
from helmsman.mcp.router_words import (
    WHAT_TO_SAY,
    about,
    answer_in_words,
    choice,
    choose,
    confirm,
    failed,
    in_words,
    output,
    short,
    standing,
    terms,
    theirs,
    using,
)
from helmsman.mcp.toolset import Tool
from helmsman.model.events import CommandExecution
from helmsman.model.inputs import directory
from helmsman.model.nature import STARTS
from helmsman.model.question_text import part_texts
from helmsman.operations.table import Deferred, Operation, operation
from helmsman.operations.texts import CODEX, voice_of
from helmsman.router.intent import Hints, parse, says_it
from helmsman.router.route import (
    LIFETIME,
    MOST_CHOICES,
    NOTHING_OFFERED,
    ConfirmedPlan,
    Offer,
    Place,
    answers_to,
    ask_first,
    changes_unnamed,
    check,
    of_others,
    route,
    seal,
)
from helmsman.router.words import is_session_id
from helmsman.shapes import task_contract as contract
from helmsman.shapes.questions import pending_question
from helmsman.shapes.task_answers import about as duration
from helmsman.shapes.task_answers import result_summary, task_output
from helmsman.tasks.outcome import changed_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pydantic import BaseModel

    from helmsman.mcp.elicitation import Context
    from helmsman.mcp.toolset import ToolLike
    from helmsman.model.questions import Question
    from helmsman.router.intent import Intent
    from helmsman.router.route import Route
    from helmsman.sessions.session import Session
    from helmsman.shapes.contract import PendingQuestion
    from helmsman.tasks.model import Task

WAIT_SECONDS: Final = 25.0
_LONGEST_WAIT_SECONDS: Final = 3600.0
"""Largest value of the hint. Plain words may ask for more ("wait 500 hours")."""
_REMEMBERED: Final = 1000
_MOST_NAMES: Final = 20
"""Limit of names in a request that are looked up."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """Choices that a client was offered, and the arguments of its request other than the text."""

    offer: Offer
    terms: Mapping[str, BaseModel] = field(default_factory=dict[str, "BaseModel"])


_NO_OFFER: Final = _Offer(NOTHING_OFFERED)


class Router:
    """Tool of one agent (`call.agent`).

    Remembers what the next request may refer to: each client's last choices, the questions it was shown, and the key of
    confirmations.
    """

    def __init__(self) -> None:
        self._offered: dict[str, _Offer] = {}
        self._shown: dict[str, None] = {}
        """Questions by client and id, newest last. A client can answer in plain words only questions that it was shown."""
        self._told: dict[str, None] = {}
        """Tasks by client and id. "it" and "the last task" refer to tasks that the client has started or seen."""
        self._it: dict[str, str] = {}
        """Task that the last answer to a client was about, if it was one task."""
        # Per process: a token does not survive a restart, and the request can be made again.
        self._key = secrets.token_bytes(32)

    async def ask(self, call: CallContext, args: contract.CodexInput) -> contract.CodexOutput | Deferred:
        """Carry out a request in plain words."""
        hints = args.hints
        intent = parse(
            args.request,
            Hints(
                operation=hints.operation,
                mode=hints.mode,
                task_id=hints.task_id,
                timeout_ms=hints.timeout_ms,
                poll_frequency_ms=hints.poll_frequency_ms,
            ),
            () if call.agent == CODEX else (call.agent_title, call.agent),
        )
        client = remembered_as(call.context)
        offered = _NO_OFFER if client is None else self._offered.get(client, _NO_OFFER)
        # The text of the second request is only a number; the rest is as it was offered.
        if intent.picks:  # an offered choice runs with the arguments of the first request
            args = args.model_copy(
                update={name: value for name, value in offered.terms.items() if name not in args.model_fields_set}
            )
        place = _place(args.context)
        # Before routing, because which task is meant depends on what is there.
        tasks = await _candidates(call, intent)
        found = _known_place(call, place)
        # Stopping or changing a task that was not named is limited to tasks that this client has seen.
        own = [task for task in tasks if f"{client} {task.id}" in self._told] if changes_unnamed(intent) else tasks
        now = datetime.now(UTC)
        it = self._it.get(client) if client is not None and says_it(args.request) else None
        planned = route(intent, own or tasks, now, found, offered=offered.offer, it=it)
        # The only candidate may be another client's, so it is asked about first.
        if not own and planned.task_id is not None:
            planned = ask_first(planned, tasks)
        # Only if none of this agent's tasks is meant: another agent may have one by that name.
        if planned.means_none:
            others = of_others(intent, planned, await _candidates(call, intent, of_others=True), now, found)
            if others:
                planned = replace(planned, action=intent.action, error=theirs(call, others))
        done = await self._done(call, args, planned, place)
        if isinstance(done, contract.CodexOutput):
            self._remember(call, args, planned, done)
            if args.explain:
                done.decision_trace = list(planned.trace)
        return done

    def _remember(
        self, call: CallContext, args: contract.CodexInput, planned: Route, done: contract.CodexOutput
    ) -> None:
        """Store what the next request may refer to: the choices, or the alternatives of an automatic choice."""
        client = remembered_as(call.context)
        # An automatic choice names its alternatives, and a number then means one of them.
        offer: Offer | None = None
        if planned.alternatives and planned.task_id is not None:
            others = enumerate(planned.alternatives, 2)
            done.alternatives = [choice(number, one, planned.action) for number, one in others]
            if done.error is None:
                done.user_message = f"{using(planned, done.alternatives)}\n{done.user_message}"
            offer = Offer(planned.action, (planned.task_id, *(task.id for task in planned.alternatives)))
        elif planned.action == "choose" or planned.choices:
            work = planned.instruction if planned.action == "choose" else ""
            offer = Offer(planned.action, tuple(one.id for one in planned.choices), work)
        if offer is not None and client is not None:
            # Removed first, so that the newest is last and the oldest is dropped.
            self._offered.pop(client, None)
            self._offered[client] = _Offer(offer, {"context": args.context, "safety": args.safety})
            _forget_oldest(self._offered)
        if client is None:
            return
        self._it.pop(client, None)
        if done.task is not None and not done.choices:
            self._it[client] = done.task.id
            _forget_oldest(self._it)
        if done.pending_question is not None:
            _note(self._shown, client, done.pending_question.id)
        for task in (done.task, *(done.tasks or ()), *(done.choices or ()), *(done.alternatives or ())):
            if task is not None and task.id is not None:
                _note(self._told, client, task.id)

    async def _done(
        self, call: CallContext, args: contract.CodexInput, planned: Route, place: Path
    ) -> contract.CodexOutput | Deferred:
        if planned.error is not None:
            return failed(planned, planned.error_code, planned.error)
        if planned.choices or planned.action == "choose":
            return choose(planned)
        if planned.action == "none":
            return output(planned, WHAT_TO_SAY, acknowledged=False)
        # Only these touch the directory.
        if planned.action in ("setup", "apply") or (planned.action == "run" and planned.task_id is None):
            refuse_outside(place, call.helm.settings.allowed_roots, "context.working_dir")
        # Before the dry run, so that it refuses what the real run would refuse.
        _refuse_misplaced(call, args, planned)
        would_do = in_words(args, planned, place)
        if args.dry_run:
            return output(planned, f"Would {would_do}. Nothing was done.")
        if await _needs_confirmation(call, args, planned):
            question = await _confirmed_question(call, args, planned)
            plan = _plan(args, planned, place, None if question is None else question.id)
            now = datetime.now(UTC)
            # Without a token the plan is shown; with one it must be exactly that plan.
            if args.safety.confirmation_token is None:
                return confirm(planned, would_do, seal(plan, self._key, now), now + LIFETIME, question)
            check(args.safety.confirmation_token, plan, self._key, now)
        try:
            if planned.action == "respond":
                return await self._respond(call, args, planned)
            return await _do(call, args, planned, place)
        except HelmsmanError as error:
            return failed(planned, error.code, error.message, retry=error.retryable)

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _respond(self, call: CallContext, args: contract.CodexInput, planned: Route) -> contract.CodexOutput:
        """Answer the one question that a task asks, if the client has been shown that very question."""
        task = await call.helm.tasks.get(planned.task_id or "")
        session = call.helm.tasks.local.session_of(task)
        open_now = _open_questions(session, args)
        if session is None or not open_now:
            # The question may have been answered elsewhere since it was shown.
            return failed(
                planned, "question_not_open", f"{task.id} ({task.alias}) does not ask that, or nothing any more."
            )
        if len(open_now) > 1:
            ids = ", ".join(one.id for one in open_now)
            message = f"{task.id} asks {len(open_now)} things at once ({ids}). Say which with hints.questionId."
            return about(call, planned, task, message, acknowledged=False)
        question = open_now[0]
        client = remembered_as(call.context)
        by_id = args.hints.question_id == question.id  # only who was shown a question knows its id
        # A client without a session has to name the question, because nothing tells which it was shown.
        if not (by_id if client is None else f"{client} {question.id}" in self._shown):
            how = (
                ""
                if client is not None
                else f", with hints.questionId {question.id}: it is not known what you were shown"
            )
            message = (
                f"Nothing was answered: you had not been shown what {task.id} asks. Say it again to answer this{how}."
            )
            shown = pending_question(session, question)
            return about(call, planned, task, message, question=shown, acknowledged=False)
        answers = answers_to(question, planned.answer, args.hints.answers)
        await call.elicitor.respond(call.helm, call.context, session.id, question.id, answers)
        # The text that was answered goes into the reply, so that a wrong answer is noticed.
        told = "\n".join(part_texts(question))
        message = f"Answered {', '.join(answers)}, to this question alone:\n{told}"
        done = about(call, planned, await call.helm.tasks.get(task.id), message)
        done.answered = contract.AnsweredOutput(question_id=question.id, question=told, answers=list(answers))
        return done


def remembered_as(context: Context) -> str | None:
    """Return the key of the client whose last answer is remembered: its HTTP session, or "" for a pipe.

    Return None for a client without a session, because its requests cannot be matched.
    """
    return session_of(context) or ("" if context.request is None else None)


def _open_questions(session: Session | None, args: contract.CodexInput) -> list[Question]:
    wanted = args.hints.question_id
    return [] if session is None else [one for one in session.questions if wanted in (None, one.id)]


async def _confirmed_question(call: CallContext, args: contract.CodexInput, planned: Route) -> PendingQuestion | None:
    """Return the question that an answer is for, so that an approval cannot answer a later question."""
    if planned.action != "respond":
        return None
    session = call.helm.tasks.local.session_of(await call.helm.tasks.get(planned.task_id or ""))
    open_now = _open_questions(session, args)
    return pending_question(session, open_now[0]) if session is not None and len(open_now) == 1 else None


def _note(remembered: dict[str, None], client: str, what: str) -> None:
    remembered.pop(f"{client} {what}", None)
    remembered[f"{client} {what}"] = None
    _forget_oldest(remembered)


def _forget_oldest(remembered: dict[str, Any]) -> None:
    while len(remembered) > _REMEMBERED:
        remembered.pop(next(iter(remembered)))


# --- the request -----------------------------------------------------------------------------------------------------


def _place(context: contract.ContextInput) -> Path:
    if context.working_dir is None and context.repo_root is not None:
        return directory("context.repo_root", context.repo_root)
    return directory("context.working_dir", "." if context.working_dir is None else context.working_dir)


def _refuse_misplaced(call: CallContext, args: contract.CodexInput, planned: Route) -> None:
    """Refuse arguments that the planned action would silently ignore.

    Raises:
        InvalidInput: An argument does not apply to this kind of work.
    """
    if planned.action != "run":
        return
    cloud = planned.mode == "cloud"
    for name, value in terms(args).items():
        if value is None or (name == "context.model" and cloud):  # the cloud itself refuses a model
            continue
        if name.startswith("hints.") and not cloud:
            advice = (
                "Add hints.mode cloud, or leave it out" if call.agent == CODEX else "Only Codex has one: leave it out"
            )
            raise InvalidInput(f"{name} is for the cloud. {advice}.", parameter=name)
        if not name.startswith("hints.") and (cloud or planned.task_id is not None):
            whose = "The cloud has its own permissions" if cloud else "A session keeps the options it was begun with"
            raise InvalidInput(f"{name} is for new work here. {whose}; leave it out.", parameter=name)


async def _needs_confirmation(call: CallContext, args: contract.CodexInput, planned: Route) -> bool:
    """Return whether the caller asks for confirmation, or the user's settings require it for an irreversible action."""
    safety = args.safety
    if safety.require_confirmation or safety.confirmation_token is not None:
        return True
    if not call.helm.settings.require_confirmation:
        return False
    if planned.action == "apply":
        return safety.allow_dirty
    return planned.action == "cancel" and await _has_changed_files(call, planned.task_id or "")


async def _has_changed_files(call: CallContext, task_id: str) -> bool:
    """Return whether a running task has changed files, or may have: by a command, or if that is unknown here."""
    task = await call.helm.tasks.find(task_id)
    if task.origin == "cloud" or not task.is_running or task.session_id is None:
        return False
    session = call.helm.tasks.local.session_of(task)
    # No session here: what it changed is unknown, so it counts as changed.
    if session is None or changed_files(session.items, session.state.diff):
        return True
    return session.state.sandbox != "read-only" and any(isinstance(item, CommandExecution) for item in session.items)


def _plan(args: contract.CodexInput, planned: Route, place: Path, question_id: str | None) -> ConfirmedPlan:
    # All that the confirmation showed, so that a second request cannot differ in any of it.
    asked = {name: str(value) for name, value in terms(args).items() if value is not None}
    if planned.action == "apply":
        asked |= {"attempt": str(args.hints.attempt), "allow_dirty": str(args.safety.allow_dirty)}
    if planned.answer is not None:
        asked |= {"answer": f"{planned.answer.kind}: {planned.answer.text}", "answers": str(args.hints.answers)}
        asked["question"] = question_id or "none"
    return ConfirmedPlan(
        action=planned.action,
        task_id=planned.task_id,
        instruction=planned.instruction,
        mode=planned.mode,
        directory=str(place),
        max_cost_usd=args.safety.max_cost_usd,
        terms=tuple(sorted(asked.items())),
    )


def _known_place(call: CallContext, place: Path) -> Place:
    in_repository = repository_root(place) is not None
    if call.agent != CODEX:
        return Place(repository=in_repository, without_cloud=call.agent_title)
    cloud = call.helm.tasks.cloud.settings
    environment, long_work = cloud.reference(), cloud.takes_long_work
    return Place(repository=in_repository, cloud_environment=environment, long_work_in_cloud=long_work)


async def _candidates(call: CallContext, intent: Intent, *, of_others: bool = False) -> Sequence[Task]:
    """Return the tasks that the request may refer to: those of the tool's agent, or those of all other agents."""
    if intent.action in ("setup", "environments"):
        return ()
    names = intent.mentions[:_MOST_NAMES]
    # No look at the tasks for plain work: it is the common case, and has to be quick.
    if intent.action in ("run", "none") and intent.reference is None and not (intent.may_answer or names):
        return ()
    tasks, _ = await call.helm.tasks.list(agent=None if of_others else call.agent)
    if intent.reference is not None and intent.reference.kind in ("id", "alias"):
        names = (*names, intent.reference.value)
    for name in names:  # perhaps so old that it is not listed
        with suppress(HelmsmanError):
            named = await call.helm.tasks.find(name)
            tasks += [] if any(task.id == named.id for task in tasks) else [named]
    # People also name the session.
    if sessions := [name for name in names if is_session_id(name)]:
        of_sessions = await call.helm.tasks.of_sessions(sessions)
        tasks += [task for found in of_sessions.values() for task in found if all(task.id != one.id for one in tasks)]
    return [task for task in tasks if (task.agent != call.agent) is of_others]


# --- doing it --------------------------------------------------------------------------------------------------------


async def _do(
    call: CallContext, args: contract.CodexInput, planned: Route, place: Path
) -> contract.CodexOutput | Deferred:
    tasks = call.helm.tasks
    match planned.action:
        case "run":
            return await _run(call, args, planned, place)
        case "setup":
            guide = await setup_guide(call, place)
            return output(planned, guide.guide)
        case "environments":
            return await _environments(call, planned)
    if planned.all is not None:
        return await _all(call, planned, planned.all)
    task = await tasks.find(planned.task_id or "")
    match planned.action:
        case "check":
            return about(call, planned, await tasks.get(task.id))
        case "wait":
            return await _wait(call, planned, task)
        case "apply":
            return await _apply(call, args, planned, task, place)
        case "cancel":
            task, message = await tasks.cancel(task, reason=planned.reason)
            return about(call, planned, task, message)
        case _:
            return await _with_results(call, planned, task, attempt=args.hints.attempt)


async def _wait(call: CallContext, planned: Route, task: Task) -> contract.CodexOutput | Deferred:
    asked = WAIT_SECONDS if planned.timeout_ms is None else planned.timeout_ms / 1000
    # Plain words have no limit, but a client would give up long before.
    seconds = min(asked, _LONGEST_WAIT_SECONDS)
    every = {} if planned.poll_frequency_ms is None else {"every": planned.poll_frequency_ms / 1000}
    waited = await wait_for_task(call, task, seconds=seconds, **every)
    if not isinstance(waited, contract.WaitAnswer):
        return waited
    task = await call.helm.tasks.find(task.id)
    return about(call, planned, task) if task.is_running else await _with_results(call, planned, task)


async def _all(call: CallContext, planned: Route, tasks: Sequence[Task]) -> contract.CodexOutput:
    """List all tasks, one line each, including cloud tasks submitted elsewhere."""
    # Cloud tasks are as last seen: asking for each would take seconds.
    shown = [await call.helm.tasks.get(task.id) if task.origin == "local" else task for task in tasks]
    lines = [standing(task, None) for task in shown]
    if planned.mode == "cloud":
        try:
            listed, _ = await call.helm.tasks.in_cloud()
        except CloudError as error:
            # The local tasks are known in any case.
            lines.append(f"What else is in the cloud is not known: {error.message}")
        else:
            lines += [f"{short(one.title)} is {one.said}: {one.url}" for one, ours in listed if ours is None]
    asking = [task for task in shown if task.input_required]
    done = output(
        planned,
        "\n".join(lines) or "There are no tasks in the cloud.",
        tasks=[task_output(call.helm, t) for t in shown],
    )
    # First those that wait for the user.
    done.next_actions = [f"check {task.id}" for task in (asking or shown)[:MOST_CHOICES]]
    return done


async def _environments(call: CallContext, planned: Route) -> contract.CodexOutput:
    found = await call.helm.tasks.cloud.environments()
    shown = [contract.EnvironmentOutput.model_validate(one, from_attributes=True) for one in found.environments]
    lines = [f"{one.name}  {one.reference}{'  (default)' if one.is_default else ''}" for one in shown]
    return output(planned, "\n".join([*lines, found.note]), environments=shown)


_TOO_LONG: Final = (
    "Nothing was applied: the diff has {} characters, more than can be shown here. A person can look at it and apply it: "
    "helmsman apply {}"
)


async def _apply(
    call: CallContext, args: contract.CodexInput, planned: Route, task: Task, place: Path
) -> contract.CodexOutput:
    """Apply a task's changes to a working tree. Apply only the diff that this client was shown, completely or not at all."""
    viewer, allow_dirty = call.viewer, args.safety.allow_dirty
    if task.origin == "cloud":
        # The digest of what this client saw last: nothing else is applied.
        digest = call.helm.tasks.shown.last(viewer, f"{task.id}/{args.hints.attempt}")
        if digest is None:
            return await _shown_first(call, args, planned, task)
        attempt = args.hints.attempt
        applied = await call.helm.tasks.cloud.apply(
            task, place, attempt=attempt, allow_dirty=allow_dirty, digest=digest
        )
        files, where = list(applied.files), place
    elif task.session_id is None:
        raise SessionNotFound(f"Task {task.id} has no session, so it has changed nothing.")
    else:
        changes = call.helm.extras.changes
        # Shown first, applied by the second request.
        if changes.shown.last(viewer, task.session_id) is None:
            diff = (await changes.diff(task.session_id)).diff
            if not fits_in_an_answer(diff.text):
                return about(call, planned, task, _TOO_LONG.format(len(diff.text), task.session_id))
            changes.shown.show(viewer, task.session_id, diff.patch)
            told = f"Nothing was applied. This is what would be:\n{diff.text}"
            return about(call, planned, task, told, next_actions=[f"apply {task.id}"])
        done = await changes.apply(task.session_id, allow_dirty=allow_dirty, viewer=viewer)
        files, where = [file.path for file in done.files], done.repository
    told = f"Applied what {task.id} changed to {where}: {', '.join(files)}."
    return about(call, planned, task, told, applied_files=files)


async def _shown_first(
    call: CallContext, args: contract.CodexInput, planned: Route, task: Task
) -> contract.CodexOutput:
    shown = await _with_results(call, planned, task, attempt=args.hints.attempt)
    if shown.result_summary is not None and not fits_in_an_answer(shown.result_summary.diff or ""):
        shown.user_message = _TOO_LONG.format(len(shown.result_summary.diff or ""), task.id)
    elif shown.result_summary is not None and shown.result_summary.diff:
        shown.user_message = f"Nothing was applied. This is what would be:\n{shown.result_summary.diff}"
        shown.next_actions = [f"apply {task.id}"]
    return shown


async def _run(
    call: CallContext, args: contract.CodexInput, planned: Route, place: Path
) -> contract.CodexOutput | Deferred:
    tasks = call.helm.tasks
    limit = args.safety.max_cost_usd
    # The confirmation token is the idempotency key, so repeated calls start the work once.
    key = args.idempotency_key or args.safety.confirmation_token
    asked_at = datetime.now(UTC)
    if planned.mode == "cloud":
        if planned.task_id is not None:
            raise InvalidInput(
                "The cloud takes new work only, not more of another task's. Leave out hints.taskId, or the cloud."
            )
        # Refused rather than not enforced.
        if limit is not None:
            raise InvalidInput("The cloud does not report costs, so max_cost_usd does not work there. Leave it out.")
        task_id = await tasks.cloud.submit(
            planned.instruction,
            environment=args.hints.environment,
            attempts=args.hints.attempts or 1,
            branch=args.hints.branch,
            model=args.context.model,
            directory=place,
            idempotency_key=key,
        )
    elif planned.task_id is not None:
        named = await tasks.find(planned.task_id)
        if named.session_id is None:
            raise SessionNotFound(f"Task {named.id} has no session to continue. Start a new one.")
        task_id = await tasks.local.follow_up(
            named.session_id,
            planned.instruction,
            on_question=call.on_question,
            max_cost_usd=limit,
            idempotency_key=key,
        )
    else:
        task_id = await tasks.local.run(
            planned.instruction,
            agent=call.agent,
            cwd=place,
            on_question=call.on_question,
            idempotency_key=key,
            model=args.context.model,
            **args.safety.model_dump(exclude={"require_confirmation", "confirmation_token", "allow_dirty"}),
        )
    task = await tasks.find(task_id)
    if args.hints.sync == "sync":
        return await _wait(call, planned, task)
    # An older task has this key: the same work is not begun twice.
    if key is not None and task.created_at < asked_at:
        told = f"{task.id} ({task.alias}) has this key already: {short(task.instruction)}. Nothing new was started."
        return about(call, planned, task, f"{told}\n{standing(task, None)}")
    where = "in the cloud" if task.origin == "cloud" else f"in {task.directory or place}"
    begun = about(call, planned, task, f"Started {task.id} ({task.alias}) {where}. It works on in the background.")
    if task.origin == "cloud" and (usual := await tasks.cloud.usual_seconds()) is not None:
        begun.user_message += f" Earlier tasks there took about {duration(usual)}."
    if planned.may_take_long:
        begun.user_message += " This may take long: the cloud can do such work, too (cancel it here first)."
        begun.next_actions.append(f"in the cloud: {planned.instruction}")
    return begun


async def _with_results(call: CallContext, planned: Route, task: Task, *, attempt: int = 1) -> contract.CodexOutput:
    # The stored state may be old.
    if task.is_running:
        task = await call.helm.tasks.get(task.id)
    if task.is_running:
        return about(call, planned, task)
    results = await call.helm.tasks.results(task, attempt=attempt)
    told = about(call, planned, results.task)
    # A cloud diff that was shown whole may be applied.
    if results.task.origin == "cloud" and results.diff and fits_in_an_answer(results.diff):
        patch = results.diff.encode("utf-8", "surrogateescape")
        call.helm.tasks.shown.show(call.viewer, f"{task.id}/{attempt}", patch)
    told.result_summary = result_summary(results)
    if results.task.result:
        told.user_message += f"\n{results.task.result}"
    if results.cloud is not None and results.cloud.note:
        told.user_message += f"\n{results.cloud.note}"
    return told


def _declared(router: Router) -> Operation[contract.CodexInput]:
    """Declare the operation of one agent's router."""

    # One router for each agent: what a client was offered by one is not a choice of another.
    @operation("{tool}", "{agent}, in plain words", STARTS, answer_in_words)
    async def codex(call: CallContext, args: contract.CodexInput) -> contract.CodexOutput | Deferred:
        """{agent}[[, OpenAI's coding agent]], by one tool: say in plain words what you want. Work ("fix the failing test in
        tests/test_parser.py", "explain how login works") starts a task and returns its id at once; the task works on in the
        background. Then ask about it: "check my task", "check all", "wait for it", "show the results", "cancel it"; name it
        by id or alias when there are several. When it asks something: "approve it", "deny it: reason", "answer: text".
        "Continue with the last task: …" goes on in its session. An approval is exactly that, in English;
        other short commands are also understood in German, French, Spanish and Chinese, and work in any language. A short
        request without an object of its own ("undo it") is asked back. [["List cloud environments" and "set up
        GitHub for this repository" are for the Codex cloud. ]]Use hints when you know exactly what you want, dryRun to see
        what would be done, explain to see why."""
        return await router.ask(call, args)

    return codex


def router_tools(agents: Mapping[str, str], *, expose_primitives: bool) -> list[ToolLike]:
    """Return the tools of these agents by name, with titles, and their primitives if these are exposed."""
    tools: list[ToolLike] = []
    for name, title in agents.items():
        tools.append(Tool(_declared(Router()), voice_of(name, title), agent=name, agent_title=title))
        tools += primitives_of(name, title) if expose_primitives else ()
    return tools
