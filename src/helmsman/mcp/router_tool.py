"""The tool `codex` of the toolset `router`: one request in plain words, one answer of one shape.

`helmsman.router` decides what is meant; this does it, through the same functions as the primitives, and says what it did.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from mcp.server.session import ServerSession

from helmsman.base.files import refuse_outside
from helmsman.base.git_view import repository_root
from helmsman.errors import HelmsmanError, InvalidInput, SessionNotFound
from helmsman.mcp.primitives import PRIMITIVES, setup_guide, wait_for_task
from helmsman.mcp.task_answers import how_to_answer, question_of, result_summary, task_output
from helmsman.mcp.toolset import ACTS, CODEX, CallContext, Instead, Tool
from helmsman.model.inputs import directory
from helmsman.router.confirmation import LIFETIME, ConfirmedPlan, check, seal
from helmsman.router.intent import Hints, parse
from helmsman.router.route import Place, route
from helmsman.shapes import task_contract as contract
from helmsman.shapes.session_status import question_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.mcp.toolset import Offered
    from helmsman.router.intent import Intent
    from helmsman.router.route import Route
    from helmsman.shapes.contract import PendingQuestion
    from helmsman.tasks.model import Task

WAIT_SECONDS: Final = 25.0
_LONGEST_WAIT_SECONDS: Final = 3600.0
"""As long as a hint may say; plain words may say anything ("wait 500 hours")."""
_CANDIDATES: Final = 50
_RETRY_MS: Final = 5000
_VERBS: Final = {"check": "look at", "wait": "wait for", "cancel": "cancel", "results": "show the results of"}


class Router:
    """Keeps what the next request may refer to: the choices each client was offered last, and the key of confirmations."""

    def __init__(self) -> None:
        self._offered = WeakKeyDictionary[ServerSession, tuple[str, ...]]()
        self._key = secrets.token_bytes(32)

    async def codex(self, call: CallContext, args: contract.CodexInput) -> contract.CodexOutput | Instead:
        """Codex, OpenAI's coding agent, by one tool: say in plain words what you want. Work ("fix the failing test in
        tests/test_parser.py", "explain how login works") starts a task and returns its id at once; the task works on in the
        background. Then ask about it: "check my task", "wait for it", "show the results", "cancel it"; name it by id or
        alias when there are several. "Set up GitHub for this repository" makes a guide for the Codex cloud. Use hints when
        you know exactly what you want, dryRun to see what would be done, explain to see why."""
        place = _place(args.context)
        intent = parse(args.request, Hints(**args.hints.model_dump()))
        tasks = await _candidates(call, intent)
        found = Place(
            repository=repository_root(place) is not None,
            cloud_environment=call.helm.tasks.cloud.settings.reference(),
        )
        planned = route(intent, tasks, datetime.now(UTC), found, offered=self._offered.get(call.context.session, ()))
        done = await self._done(call, args, planned, place)
        if isinstance(done, contract.CodexOutput):
            if args.explain:
                done.decision_trace = list(planned.trace)
            done.alternatives = _choices(planned.alternatives)
        return done

    async def _done(
        self, call: CallContext, args: contract.CodexInput, planned: Route, place: Path
    ) -> contract.CodexOutput | Instead:
        if planned.error is not None:
            return _failed(planned, "task_not_found", planned.error)
        if planned.choices:
            self._offered[call.context.session] = tuple(choice.id for choice in planned.choices)
            return _choose(planned)
        if planned.action == "none":
            return _output(planned, "Say what you want done, or ask about a task.", acknowledged=False)
        if planned.action == "setup" or (planned.action == "run" and planned.task_id is None):
            refuse_outside(place, call.helm.settings.allowed_roots, "context.working_dir")
        would_do = _in_words(planned, place, args.safety.max_cost_usd)
        if args.dry_run:
            return _output(planned, f"Would {would_do}. Nothing was done.")
        if args.safety.require_confirmation or args.safety.confirmation_token is not None:
            plan = ConfirmedPlan(
                action=planned.action,
                task_id=planned.task_id,
                instruction=planned.instruction,
                mode=planned.mode,
                directory=str(place),
                max_cost_usd=args.safety.max_cost_usd,
            )
            now = datetime.now(UTC)
            if args.safety.confirmation_token is None:
                return _confirm(planned, would_do, seal(plan, self._key, now), now + LIFETIME)
            check(args.safety.confirmation_token, plan, self._key, now)
        try:
            return await _do(call, args, planned, place)
        except HelmsmanError as error:
            return _failed(planned, error.code, error.message, retry=error.retryable)


def _place(context: contract.ContextInput) -> Path:
    if context.working_dir is None and context.repo_root is not None:
        return directory("context.repo_root", context.repo_root)
    return directory("context.working_dir", "." if context.working_dir is None else context.working_dir)


async def _candidates(call: CallContext, intent: Intent) -> Sequence[Task]:
    if intent.action in ("none", "setup") or (intent.action == "run" and intent.reference is None):
        return ()
    tasks, _ = await call.helm.tasks.list(limit=_CANDIDATES)
    if intent.reference is not None and intent.reference.kind in ("id", "alias"):
        try:
            named = await call.helm.tasks.find(intent.reference.value)
        except HelmsmanError:
            return tasks
        return tasks if any(task.id == named.id for task in tasks) else [*tasks, named]
    return tasks


# --- doing it --------------------------------------------------------------------------------------------------------


async def _do(
    call: CallContext, args: contract.CodexInput, planned: Route, place: Path
) -> contract.CodexOutput | Instead:
    tasks = call.helm.tasks
    match planned.action:
        case "run":
            return await _run(call, args, planned, place)
        case "setup":
            guide = await setup_guide(call, place)
            return _output(planned, guide.guide)
    task = await tasks.find(planned.task_id or "")
    match planned.action:
        case "check":
            return _about(call, planned, await tasks.get(task.id))
        case "wait":
            asked = WAIT_SECONDS if planned.timeout_ms is None else planned.timeout_ms / 1000
            seconds = min(asked, _LONGEST_WAIT_SECONDS)
            every = {} if planned.poll_frequency_ms is None else {"every": planned.poll_frequency_ms / 1000}
            waited = await wait_for_task(call, task, seconds=seconds, **every)
            if not isinstance(waited, contract.WaitAnswer):
                return waited
            task = await tasks.find(task.id)
            return _about(call, planned, task) if task.is_running else await _with_results(call, planned, task)
        case "cancel":
            task, message = await tasks.cancel(task)
            return _about(call, planned, task, message)
        case _:
            return await _with_results(call, planned, task)


async def _run(call: CallContext, args: contract.CodexInput, planned: Route, place: Path) -> contract.CodexOutput:
    tasks = call.helm.tasks
    limit = args.safety.max_cost_usd
    if planned.mode == "cloud":
        if planned.task_id is not None:
            raise InvalidInput(
                "The cloud takes new work only, not more of another task's. Leave out hints.taskId, or the cloud."
            )
        if limit is not None:
            raise InvalidInput(
                "The cloud does not tell what a task costs, so max_cost_usd cannot be kept there. Leave it out."
            )
        task_id = await tasks.cloud.submit(planned.instruction, directory=place)
    elif planned.task_id is not None:
        named = await tasks.find(planned.task_id)
        if named.session_id is None:
            raise SessionNotFound(f"Task {named.id} has no session to go on with. Start anew.")
        task_id = await tasks.local.follow_up(
            named.session_id, planned.instruction, on_question=call.on_question, max_cost_usd=limit
        )
    else:
        task_id = await tasks.local.run(
            planned.instruction, agent=CODEX, cwd=place, on_question=call.on_question, max_cost_usd=limit
        )
    task = await tasks.find(task_id)
    where = "in the cloud" if task.origin == "cloud" else f"in {task.directory or place}"
    return _about(call, planned, task, f"Started {task.id} ({task.alias}) {where}. It works on in the background.")


async def _with_results(call: CallContext, planned: Route, task: Task) -> contract.CodexOutput:
    if task.is_running:
        task = await call.helm.tasks.get(task.id)
    if task.is_running:
        return _about(call, planned, task)
    results = await call.helm.tasks.results(task)
    told = _about(call, planned, results.task)
    told.result_summary = result_summary(results)
    if results.task.result:
        told.user_message += f"\n{results.task.result}"
    if results.cloud is not None and results.cloud.note:
        told.user_message += f"\n{results.cloud.note}"
    return told


# --- saying it -------------------------------------------------------------------------------------------------------


def _about(call: CallContext, planned: Route, task: Task, message: str | None = None) -> contract.CodexOutput:
    question = question_of(call.helm, task)
    return _output(
        planned,
        message or _standing(task, question),
        task=task_output(task),
        pending_question=question,
        next_action="answer" if task.input_required else "await" if task.is_running else "none",
        next_actions=_next_actions(call, task),
    )


def _standing(task: Task, question: PendingQuestion | None) -> str:
    name = f"{task.id} ({task.alias})"
    if task.input_required:
        asked = question_in_words(question) if question is not None else []
        return "\n".join([f"{name} waits for an answer", *asked])
    progress = f": {task.progress['text']}" if task.is_running and task.progress and "text" in task.progress else ""
    why = f" {task.error.get('message')}" if task.error is not None else f" {task.note}" if task.note else ""
    return f"{name} is {task.status}{progress}.{why}"


def _next_actions(call: CallContext, task: Task) -> list[str]:
    if task.input_required:
        return [how_to_answer(call.helm, task), f"wait for {task.id}", f"cancel {task.id}"]
    if task.is_running:
        return [f"wait for {task.id}", f"check {task.id}", f"cancel {task.id}"]
    return [f"show the results of {task.id}"]


def _choose(planned: Route) -> contract.CodexOutput:
    choices = _choices(planned.choices) or []
    lines = [f"{one.number}) {one.alias} ({one.status}): {one.instruction}" for one in choices]
    verb = {"results": "show the results of"}.get(planned.action, planned.action)
    return _output(
        planned,
        "\n".join(["Which task do you mean?", *lines]),
        acknowledged=False,
        choices=choices,
        next_action="choose",
        next_actions=[f"{verb} {one.id}" for one in choices],
    )


def _confirm(planned: Route, would_do: str, token: str, expires_at: datetime) -> contract.CodexOutput:
    return _output(
        planned,
        f"This would {would_do}. Send the same request with the token to do it.",
        confirmation=contract.ConfirmationOutput(token=token, would_do=would_do, expires_at=expires_at.isoformat()),
        next_action="confirm",
        next_actions=["The same request again, with safety.confirmation_token"],
    )


def _failed(planned: Route, code: str, message: str, *, retry: bool = False) -> contract.CodexOutput:
    error = contract.RouterError(code=code, message=message, retry_after_ms=_RETRY_MS if retry else None)
    return _output(planned, message, acknowledged=False, error=error)


def _output(planned: Route, message: str, **more: Any) -> contract.CodexOutput:
    fields = {"acknowledged": True, "next_action": "none", "next_actions": [], **more}
    return contract.CodexOutput(action=planned.action, user_message=message, **fields)


def _choices(tasks: Sequence[Task]) -> list[contract.ChoiceOutput] | None:
    """Tasks as choices, each with the number by which the next request may name it."""
    shown = [
        contract.ChoiceOutput(
            number=number, id=one.id, alias=one.alias, status=one.status, instruction=_short(one.instruction, 80)
        )
        for number, one in enumerate(tasks, 1)
    ]
    return shown or None


def _in_words(planned: Route, place: Path, max_cost_usd: float | None) -> str:
    """What a route means, after "would"."""
    if planned.action == "setup":
        return f"make a GitHub guide for {place}"
    if planned.action != "run":
        return f"{_VERBS[planned.action]} {planned.task_id}"
    if planned.mode == "cloud":
        how = "hand this to the Codex cloud"
    elif planned.task_id is not None:
        how = f"send this to the session of {planned.task_id}"
    else:
        how = f"run this in {place}"
    limit = "" if max_cost_usd is None else f" (for at most ${max_cost_usd:g})"
    return f"{how}: {_short(planned.instruction)}{limit}"


def _short(text: str, width: int = 200) -> str:
    line = " ".join(text[: 5 * width].split())
    return line if len(line) <= width else line[: width - 1] + "…"


def router_tools(*, expose_primitives: bool) -> list[Offered]:
    """The tool `codex`, and its primitives where they are to be seen."""
    codex = Tool(Router().codex, "Codex, in plain words", ACTS, lambda output: output.user_message)
    return [codex, *PRIMITIVES] if expose_primitives else [codex]
