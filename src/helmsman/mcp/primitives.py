"""The primitives of the router, one tool each: run, follow, stop and read local tasks and those in the cloud.

They are listed to clients only with `--expose-primitives`; the tool `codex` does the same things from plain words.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import mcp_types as types

from helmsman.base.allowed_roots import refuse_outside
from helmsman.base.concurrency import background_tasks
from helmsman.base.patches import diff_digest
from helmsman.capabilities.github_guide import github_guide
from helmsman.errors import InvalidInput
from helmsman.mcp.resources import client_of
from helmsman.mcp.task_answers import answer, results_answer
from helmsman.mcp.toolset import ACTS, READS, STOPS, Tool
from helmsman.mcp.waiting import HEARTBEAT_SECONDS, tell_progress, wait_for_session
from helmsman.model.inputs import directory
from helmsman.shapes.session_status import question_in_words
from helmsman.shapes.task_contract import (
    CancelAnswer,
    CloudResultsInput,
    CloudSubmitInput,
    CloudTaskInput,
    CloudWaitInput,
    EnvironmentOutput,
    EnvironmentsAnswer,
    GitHubSetupInput,
    GuideAnswer,
    LocalCancelInput,
    LocalExecInput,
    LocalResumeInput,
    LocalRunInput,
    LocalTaskInput,
    LocalWaitInput,
    NoInput,
    ResultsAnswer,
    TaskAnswer,
    WaitAnswer,
)

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.capabilities.cloud_tasks import CloudEnvironments
    from helmsman.mcp.toolset import CallContext
    from helmsman.tasks.model import Task, TaskOrigin

Instead = types.InputRequiredResult | dict[str, Any]
"""What a client may be told instead of an answer: that input is required, or a task of the protocol."""


# --- local -----------------------------------------------------------------------------------------------------------


async def _local_run(call: CallContext, args: LocalRunInput) -> TaskAnswer:
    return await _told(call, await _run(call, args))


async def _local_exec(call: CallContext, args: LocalExecInput) -> TaskAnswer:
    if args.thread_id is not None:
        if ignored := sorted(args.model_fields_set - {"task", "thread_id", "max_cost_usd"}):
            raise InvalidInput(
                f"{ignored[0]} is for a new thread, and a thread keeps its own options. Leave one of them out.",
                parameter=ignored[0],
            )
        task_id = await call.helm.tasks.local.follow_up(
            args.thread_id, args.task, on_question=call.doors.handler(call.context), max_cost_usd=args.max_cost_usd
        )
    else:
        task_id = await _run(call, args)
    task = await call.helm.tasks.find(task_id)
    await call.helm.tasks.local.follow(task)  # until there is a thread to follow up on
    return await _told(call, task_id)


async def _run(call: CallContext, args: LocalRunInput) -> str:
    return await call.helm.tasks.local.run(
        args.task,
        cwd=args.working_dir,
        on_question=call.doors.handler(call.context),
        max_cost_usd=args.max_cost_usd,
        idempotency_key=args.idempotency_key,
        model=args.model,
        sandbox=args.mode,
        approval_policy=args.approval_policy,
    )


async def _local_resume(call: CallContext, args: LocalResumeInput) -> TaskAnswer:
    task_id = await call.helm.tasks.local.follow_up(
        args.thread_id, args.task, on_question=call.doors.handler(call.context), max_cost_usd=args.max_cost_usd
    )
    return await _told(call, task_id)


async def _local_status(call: CallContext, args: LocalTaskInput) -> TaskAnswer:
    return await _told(call, (await _found(call, args.task_id, "local")).id)


async def _local_wait(call: CallContext, args: LocalWaitInput) -> WaitAnswer | Instead:
    task = await _found(call, args.task_id, "local")
    return await wait_for_task(call, task, seconds=args.timeout_sec, every=args.poll_interval_sec)


async def _local_cancel(call: CallContext, args: LocalCancelInput) -> CancelAnswer:
    task, message = await call.helm.tasks.cancel(await _found(call, args.task_id, "local"), reason=args.reason)
    return answer(CancelAnswer, call.helm, task, message=message)


async def _local_results(call: CallContext, args: LocalTaskInput) -> ResultsAnswer:
    results = await call.helm.tasks.results(await _found(call, args.task_id, "local"))
    return results_answer(call.helm, results)


# --- cloud -----------------------------------------------------------------------------------------------------------


async def _cloud_submit(call: CallContext, args: CloudSubmitInput) -> TaskAnswer:
    task_id = await call.helm.tasks.cloud.submit(
        args.task,
        environment=args.env_id,
        attempts=args.attempts,
        branch=args.branch,
        model=args.model,
        directory=_directory(call, "working_dir", args.working_dir),
        idempotency_key=args.idempotency_key,
    )
    return answer(TaskAnswer, call.helm, await call.helm.tasks.find(task_id))


async def _cloud_status(call: CallContext, args: CloudTaskInput) -> TaskAnswer:
    return await _told(call, (await _found(call, args.task_id, "cloud")).id)


async def _cloud_wait(call: CallContext, args: CloudWaitInput) -> WaitAnswer | Instead:
    return await wait_for_task(call, await _found(call, args.task_id, "cloud"), seconds=args.timeout_sec)


async def _cloud_cancel(call: CallContext, args: CloudTaskInput) -> CancelAnswer:
    task, message = await call.helm.tasks.cancel(await _found(call, args.task_id, "cloud"))
    return answer(CancelAnswer, call.helm, task, message=message)


async def _cloud_results(call: CallContext, args: CloudResultsInput) -> ResultsAnswer:
    task = await _found(call, args.task_id, "cloud")
    results = await call.helm.tasks.results(task, attempt=args.attempt)
    patch = (results.diff or "").encode("utf-8", "surrogateescape")
    shown, viewer, what = call.helm.extras.changes.shown, client_of(call.context), f"{task.id}/{args.attempt}"
    applied: list[str] | None = None
    if args.apply_to is not None:
        # What is told below is what is applied, whatever the cloud says a moment later.
        expected = args.digest or shown.last(viewer, what) or (diff_digest(patch) if patch else None)
        done = await call.helm.tasks.cloud.apply(
            task,
            _directory(call, "apply_to", args.apply_to),
            attempt=args.attempt,
            allow_dirty=args.allow_dirty,
            digest=expected,
        )
        applied = list(done.files)
    if patch:
        shown.show(viewer, what, patch)
    digest = diff_digest(patch) if patch else None
    return results_answer(call.helm, results, digest=digest, applied_files=applied)


async def _cloud_list_environments(call: CallContext, _args: NoInput) -> EnvironmentsAnswer:
    return environments_answer(await call.helm.tasks.cloud.environments())


async def _cloud_github_setup(call: CallContext, args: GitHubSetupInput) -> GuideAnswer:
    return await setup_guide(call, _directory(call, "working_dir", args.working_dir))


# --- shared with the tool `codex` ------------------------------------------------------------------------------------


async def wait_for_task(
    call: CallContext, task: Task, *, seconds: float, every: float = HEARTBEAT_SECONDS
) -> WaitAnswer | Instead:
    """Wait for a task on behalf of a client, which meanwhile hears how far it has come."""
    tasks = call.helm.tasks
    with anyio.move_on_after(seconds) as limit:
        while True:
            session = await tasks.local.follow(task) if task.origin == "local" else None
            if session is not None:
                instead = await wait_for_session(call, session, seconds=seconds, every=every)
                if instead is not None:
                    return instead
            else:
                async with background_tasks() as background:
                    background.start_soon(tell_progress, call, partial(_standing, task), anyio.sleep_forever, every)
                    await tasks.wait(task)
            task = await tasks.find(task.id)
            if not _goes_on(task):  # else a question has been answered already, and it does
                break
    if limit.cancelled_caught:
        task = await tasks.find(task.id)
    return answer(WaitAnswer, call.helm, task, timed_out=_goes_on(task), result=task.result)


def _goes_on(task: Task) -> bool:
    return task.is_running and not task.input_required


def _standing(task: Task) -> str:
    return f"{task.alias}: {task.status}"


def environments_answer(found: CloudEnvironments) -> EnvironmentsAnswer:
    return EnvironmentsAnswer(
        environments=[
            EnvironmentOutput(
                name=environment.name,
                reference=environment.reference,
                source=environment.source,
                is_default=environment.is_default,
            )
            for environment in found.environments
        ],
        note=found.note,
    )


async def setup_guide(call: CallContext, place: Path) -> GuideAnswer:
    """How to make the repository there ready for the cloud."""
    configured = call.helm.tasks.cloud.settings.environments
    look = partial(github_guide, place, environments=tuple(configured), state_dir=call.helm.settings.state_dir)
    guide = await anyio.to_thread.run_sync(look)
    return GuideAnswer(guide=guide.text, steps=[step.title for step in guide.steps])


async def _found(call: CallContext, reference: str, origin: TaskOrigin) -> Task:
    task = await call.helm.tasks.find(reference)
    if task.origin != origin:
        raise InvalidInput(
            f"Task {task.id} is a {task.origin} task. Use the tools named _codex_{task.origin}_… for it.",
            parameter="task_id",
        )
    return task


async def _told(call: CallContext, task_id: str) -> TaskAnswer:
    return answer(TaskAnswer, call.helm, await call.helm.tasks.get(task_id))


def _directory(call: CallContext, parameter: str, given: str | None) -> Path:
    place = directory(parameter, given if given is not None else ".")
    refuse_outside(place, call.helm.settings.allowed_roots, parameter)
    return place


def _in_words(output: TaskAnswer) -> str:
    lines = [f"{output.task_id} ({output.alias}): {output.status}"]
    if output.progress is not None:
        lines.append(output.progress.text)
    if isinstance(output, CancelAnswer):
        lines.append(output.message)
    if output.note:
        lines.append(output.note)
    if output.pending_question is not None:
        lines += question_in_words(output.pending_question)
    if output.error is not None:
        lines.append(f"{output.error.code}: {output.error.message}")
    if isinstance(output, WaitAnswer | ResultsAnswer) and output.result:
        lines.append(output.result)
    if isinstance(output, ResultsAnswer) and output.diff:
        lines.append(output.diff)
    return "\n".join([*lines, *output.next_actions])


def _environments_in_words(output: EnvironmentsAnswer) -> str:
    rows = [f"{one.name}  {one.reference}{'  (default)' if one.is_default else ''}" for one in output.environments]
    return "\n".join([*rows, output.note])


_LOCAL_TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="_codex_local_run",
        title="Run a task on this machine",
        description=(
            "Start Codex on a task here, like pressing run on a script: it returns a task_id at once and works on in the "
            "background. For work that stands alone (run tests, explain code, fix a bug). Read-only unless mode says more. "
            "When you will want to talk further with the same thread, use _codex_local_exec; for hours of work that should "
            "survive this machine, _codex_cloud_submit. Follow it with _codex_local_wait."
        ),
        takes=LocalRunInput,
        gives=TaskAnswer,
        annotations=ACTS,
        run=_local_run,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_local_exec",
        title="Run a task in a thread",
        description=(
            "Like _codex_local_run, but it returns once the thread exists, with its thread_id, so that you can follow up in "
            "the same conversation: give thread_id here again, or use _codex_local_resume. Use _codex_local_run when you "
            "only want the task_id as fast as possible."
        ),
        takes=LocalExecInput,
        gives=TaskAnswer,
        annotations=ACTS,
        run=_local_exec,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_local_resume",
        title="Follow up in a thread",
        description=(
            "Send the next message to an existing thread, like answering in a chat: Codex remembers what was done. Works "
            "for threads of earlier runs and of people too. Returns a new task_id at once. While a turn is running in the "
            "thread it is an error: wait for that one first."
        ),
        takes=LocalResumeInput,
        gives=TaskAnswer,
        annotations=ACTS,
        run=_local_resume,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_local_status",
        title="Look at a local task",
        description=(
            "How a local task stands right now, like a glance at a timer: status, progress, what it asks. Does not wait and "
            "does not bring the output. To be told when it ends use _codex_local_wait; for the output _codex_local_results."
        ),
        takes=LocalTaskInput,
        gives=TaskAnswer,
        annotations=READS,
        run=_local_status,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_local_wait",
        title="Wait for a local task",
        description=(
            "Wait until a local task has ended or asks something, and return then, at once; or when timeout_sec is up, with "
            "timed_out true: then call it again. One wait instead of many looks. Sends progress meanwhile."
        ),
        takes=LocalWaitInput,
        gives=WaitAnswer,
        annotations=READS,
        run=_local_wait,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_local_cancel",
        title="Stop a local task",
        description=(
            "Stop a local task, like Ctrl-C: Codex's turn and the commands it is running. Returns when they have really "
            "stopped, and says what was stopped. What was changed until then stays changed. A task that has ended is left "
            "as it is."
        ),
        takes=LocalCancelInput,
        gives=CancelAnswer,
        annotations=STOPS,
        run=_local_cancel,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_local_results",
        title="Read what a local task gave",
        description=(
            "Everything a local task gave: the final message, the diff where it is still known, tokens and cost. For a task "
            "that is still running you get what there is; use _codex_local_wait first."
        ),
        takes=LocalTaskInput,
        gives=ResultsAnswer,
        annotations=READS,
        run=_local_results,
        in_words=_in_words,
    ),
)

_CLOUD_TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="_codex_cloud_submit",
        title="Hand a task to the Codex cloud",
        description=(
            "Hand a task to the Codex cloud, like posting a parcel: it runs there in an environment of your account, for "
            "hours if need be, and survives this machine. Returns a task_id at once. Needs a ChatGPT login of Codex and an "
            "environment (_codex_cloud_list_environments). Say in the task which branch and tests you want. For quick work "
            "on the files here use _codex_local_run."
        ),
        takes=CloudSubmitInput,
        gives=TaskAnswer,
        annotations=ACTS,
        run=_cloud_submit,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_cloud_status",
        title="Look at a cloud task",
        description=(
            "How a cloud task stands, as the cloud tells it now, like a tracking number. The cloud says pending, ready or "
            "error, and no percentage. For the change itself use _codex_cloud_results."
        ),
        takes=CloudTaskInput,
        gives=TaskAnswer,
        annotations=READS,
        run=_cloud_status,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_cloud_wait",
        title="Wait for a cloud task",
        description=(
            "Look at a cloud task again and again (after 2, 5, 10, then every 15 seconds) until it has ended or timeout_sec "
            "is up; timed_out then says to call again. Use it instead of many looks."
        ),
        takes=CloudWaitInput,
        gives=WaitAnswer,
        annotations=READS,
        run=_cloud_wait,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_cloud_cancel",
        title="How to stop a cloud task",
        description=(
            "The Codex cloud cannot be told to cancel from here. This tool says so and gives the task's web address, where "
            "a person can. Nothing is stopped by calling it."
        ),
        takes=CloudTaskInput,
        gives=CancelAnswer,
        annotations=READS,
        run=_cloud_cancel,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_cloud_results",
        title="Read or apply what a cloud task gave",
        description=(
            "The diff of a finished cloud task, for one of its attempts. With apply_to, the diff is also brought into that "
            "repository: all of it or nothing, refused when there are uncommitted changes unless allow_dirty. The agent's "
            "message is only on the task's web page."
        ),
        takes=CloudResultsInput,
        gives=ResultsAnswer,
        annotations=ACTS,
        run=_cloud_results,
        in_words=_in_words,
    ),
    Tool(
        name="_codex_cloud_list_environments",
        title="Which cloud environments there are",
        description=(
            "The cloud environments known here: those in the user's helmsman.toml and those that recent tasks ran in. The "
            "cloud itself has no list to ask for. Use one as env_id in _codex_cloud_submit."
        ),
        takes=NoInput,
        gives=EnvironmentsAnswer,
        annotations=READS,
        run=_cloud_list_environments,
        in_words=_environments_in_words,
    ),
    Tool(
        name="_codex_cloud_github_setup",
        title="How to set up GitHub for the cloud",
        description=(
            "A guide, made for the repository at working_dir, to make it usable in the Codex cloud: its remote, its default "
            "branch, its checks, what is missing. Reads the repository and changes nothing."
        ),
        takes=GitHubSetupInput,
        gives=GuideAnswer,
        annotations=READS,
        run=_cloud_github_setup,
        in_words=lambda output: output.guide,
    ),
)

PRIMITIVES: Final = (*_LOCAL_TOOLS, *_CLOUD_TOOLS)
