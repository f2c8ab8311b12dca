"""Texts of an agent's tool: task status, choices, planned actions and next steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.base.sanitize import one_line
from helmsman.base.structs import replace
from helmsman.model.questions import ACCEPT, APPROVE
from helmsman.router.route import MOST_CHOICES
from helmsman.shapes import task_contract as contract
from helmsman.shapes.questions import question_in_words
from helmsman.shapes.session_status import progress_line
from helmsman.shapes.task_answers import how_to_answer, question_of, task_age, task_output, task_progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from helmsman.mcp.call import CallContext
    from helmsman.router.intent import Action
    from helmsman.router.route import Route
    from helmsman.shapes.contract import PendingQuestion
    from helmsman.tasks.model import Task

_RETRY_MS: Final = 5000
_OF_ALL_WORK: Final = {"require_confirmation", "confirmation_token", "allow_dirty", "max_cost_usd"}
_WHICH: Final = "Which task do you mean?"
WHAT_TO_SAY: Final = (
    'Say what you want done ("fix the failing login test"), or ask about a task ("check my task", "list my tasks", "wait '
    'for it", "show the results", "approve it", "cancel it"). Nothing was started.'
)
_VERBS: Final = {"check": "look at", "wait": "wait for", "cancel": "cancel", "results": "show the results of"}


def about(
    call: CallContext,
    planned: Route,
    task: Task,
    message: str | None = None,
    *,
    question: PendingQuestion | None = None,
    **more: Any,
) -> contract.CodexOutput:
    """Describe a task. The text includes its question, for clients that show nothing else."""
    question = question or question_of(call.helm, task)
    if message is not None and question is not None:
        message = "\n".join([message, f"{task.id} asks:", *question_in_words(question)])
    # For clients that cannot wait: when to ask again, and with which words.
    poll = contract.PollOutput(request=f"check {task.id}", after_ms=task.poll_ms) if task.is_running else None
    fields = {
        "task": task_output(call.helm, task),
        "pending_question": question,
        # A question comes before all else, because the task does not go on without an answer.
        "next_action": "answer" if task.input_required else "await" if task.is_running else "none",
        "poll": poll,
        "next_actions": _next_actions(call, task, question),
        **more,
    }
    return output(planned, message or standing(task, question), **fields)


def standing(task: Task, question: PendingQuestion | None) -> str:
    name = f"{task.id} ({task.alias})"
    if task.input_required:
        asked = question_in_words(question) if question is not None else []
        return "\n".join([f"{name} waits for an answer", *asked])
    why = task.note if task.error is None else str(task.error.get("message"))
    told = f" {one_line(why)}" if why else ""  # of others, who must not add lines to a list
    return f"{name} is {task.status}{_how_far(task)}.{told}"


def _how_far(task: Task) -> str:
    progress = task_progress(task) if task.is_running else None
    return "" if progress is None else f": {progress_line(progress)}"


def _next_actions(call: CallContext, task: Task, question: PendingQuestion | None) -> list[str]:
    if task.input_required:
        answers = _ways_to_answer(task, question) if question is not None else [how_to_answer(call.helm, task)]
        return [*answers, f"wait for {task.id}", f"cancel {task.id}"]
    if task.is_running:
        cancel = [] if task.origin == "cloud" else [f"cancel {task.id}"]  # `codex cloud` cannot cancel anything
        return [f"wait for {task.id}", f"check {task.id}", *cancel]
    more = [f"continue with {task.id}: …"] if task.session_id is not None else []
    return [f"show the results of {task.id}", *more]


def _ways_to_answer(task: Task, question: PendingQuestion) -> list[str]:
    options = question.questions[0].options if question.questions else []
    # Only a single question with a yes can be answered by a plain word.
    if len(question.questions) == 1 and {APPROVE, ACCEPT}.intersection(options):
        return [f"approve {task.id}", f"deny {task.id}: …"]
    return [f"answer {task.id}: …"]


def choose(planned: Route) -> contract.CodexOutput:
    may_be_work = planned.action == "choose"
    # Words that may be about a task or be work themselves: a choice then only looks.
    asked_for: Action = "check" if may_be_work else planned.action
    choices = [choice(number, one, asked_for) for number, one in enumerate(planned.choices, 1)]
    asking = {one.id for one in planned.choices if one.input_required}
    lines = [
        f"{one.number}) {one.alias} ({'waits for an answer' if one.id in asking else one.status}, {one.age}): "
        f"{one.instruction}"
        for one in choices
    ]
    next_actions = [one.request for one in choices]
    if may_be_work:
        number = len(choices) + 1
        work = contract.ChoiceOutput(
            number=number, request=f"run: {planned.instruction}", instruction=short(planned.instruction, 80)
        )
        choices.append(work)
        lines.append(f"{number}) run it as work: {work.instruction}")
        next_actions.append(work.request)
    if may_be_work and len(planned.choices) == 1 and planned.choices[0].session_id is not None:
        next_actions.insert(1, f"continue with {planned.choices[0].id}: …")
    if asked_for == "check":
        next_actions.append("check all")
    question = "Do you ask about a task, or is it work to do? Nothing was started." if may_be_work else _WHICH
    return output(
        replace(planned, action="none") if may_be_work else planned,
        "\n".join([question, *lines]),
        acknowledged=False,
        choices=choices,
        next_action="choose",
        next_actions=next_actions,
    )


def using(planned: Route, others: Sequence[contract.ChoiceOutput]) -> str:
    """Say which task was chosen, and how to choose another one."""
    named = " or ".join(f"{one.number} ({one.alias}, {one.status}, {one.age})" for one in others)
    return f"Using {planned.task_id}. If you meant another, say {named}."


def choice(number: int, task: Task, action: Action) -> contract.ChoiceOutput:
    """Return a task as a numbered choice for the next request."""
    # A choice alone must not answer or start anything.
    verb = {"results": "show the results of", "respond": "check", "none": "check", "run": "continue with"}.get(
        action, action
    )
    request = f"{verb} {task.id}" + (": …" if action == "run" else "")
    return contract.ChoiceOutput(
        number=number,
        request=request,
        id=task.id,
        alias=task.alias,
        status=task.status,
        age=task_age(task),
        instruction=short(task.instruction, 80),
    )


def confirm(
    planned: Route, would_do: str, token: str, expires_at: datetime, question: PendingQuestion | None
) -> contract.CodexOutput:
    asked = [] if question is None else ["It asks:", *question_in_words(question)]
    return output(
        planned,
        "\n".join([f"This would {would_do}. Send the same request with the token to do it.", *asked]),
        pending_question=question,
        confirmation=contract.ConfirmationOutput(token=token, would_do=would_do, expires_at=expires_at.isoformat()),
        next_action="confirm",
        next_actions=["The same request again, with safety.confirmation_token"],
    )


def failed(planned: Route, code: str, message: str, *, retry: bool = False) -> contract.CodexOutput:
    error = contract.RouterError(code=code, message=message, retry_after_ms=_RETRY_MS if retry else None)
    return output(planned, message, acknowledged=False, error=error)


def output(planned: Route, message: str, **more: Any) -> contract.CodexOutput:
    fields = {"acknowledged": True, "next_action": "none", "next_actions": [], **more}
    return contract.CodexOutput(action=planned.action, user_message=message, **fields)


def answer_in_words(answer: contract.CodexOutput) -> str:
    """Return the text of an answer. An error begins with its code, as the errors of all tools do."""
    return answer.user_message if answer.error is None else f"{answer.error.code}: {answer.user_message}"


def theirs(call: CallContext, tasks: Sequence[Task]) -> str:
    """Say that a request means tasks of other agents, and which tools to use."""
    agents = call.helm.agents
    told = [
        f"{task.id} ({task.alias}) is a task of {agents.title(task.agent)}"
        + (f": ask the tool {task.agent}." if agents.get(task.agent) else ", which is not configured here.")
        for task in tasks[:MOST_CHOICES]
    ]
    return "\n".join([f"No task of {call.agent_title} is meant by that.", *told])


def in_words(args: contract.CodexInput, planned: Route, place: Path) -> str:
    """Describe a route, to follow "would"."""
    if planned.action == "setup":
        return f"make a GitHub guide for {place}"
    if planned.action == "environments":
        return "list the cloud environments"
    if planned.all is not None:
        return "look at all tasks"
    if planned.action == "respond":
        answer = args.hints.answers or [
            f"{planned.answer.kind} {planned.answer.text}".strip() if planned.answer else ""
        ]
        return f"answer what {planned.task_id} asks: {short(', '.join(answer))}"
    if planned.action == "apply":
        over = ", over uncommitted changes" if args.safety.allow_dirty else ""
        return f"apply what {planned.task_id} has changed to {place}{over}"
    if planned.action != "run":
        return f"{_VERBS[planned.action]} {planned.task_id}"
    if planned.mode == "cloud":
        how = "hand this to the Codex cloud"
    elif planned.task_id is not None:
        how = f"send this to the session of {planned.task_id}"
    else:
        how = f"run this in {place}"
    limits = [f"{name.partition('.')[2]} {value}" for name, value in terms(args).items() if value is not None]
    limits += [] if args.safety.max_cost_usd is None else [f"for at most ${args.safety.max_cost_usd:g}"]
    return f"{how}: {short(planned.instruction)}" + (f" ({', '.join(limits)})" if limits else "")


def short(text: str, width: int = 200) -> str:
    # Cut first: cleaning a text of megabytes takes long.
    line = one_line(text[: 5 * width]).strip()
    return line if len(line) <= width else line[: width - 1] + "…"


def terms(args: contract.CodexInput) -> dict[str, Any]:
    """Return the arguments that apply only to new work or to the cloud, by their public names."""
    hints, safety = args.hints, args.safety
    return {
        "context.model": args.context.model,
        **{f"safety.{name}": value or None for name, value in safety.model_dump(exclude=_OF_ALL_WORK).items()},
        "hints.environment": hints.environment,
        "hints.attempts": hints.attempts,
        "hints.branch": hints.branch,
    }
