"""The primitives of the router, one tool each: run, follow, stop and read local tasks and those in the cloud.

They are listed to clients only with `--expose-primitives`; the tool `codex` does the same things from plain words.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.concurrency import background_tasks
from helmsman.base.files import refuse_outside
from helmsman.base.patches import diff_digest
from helmsman.capabilities.github_guide import github_guide
from helmsman.errors import InvalidInput
from helmsman.mcp.resources import client_of
from helmsman.mcp.task_answers import answer, results_answer
from helmsman.mcp.toolset import ACTS, CODEX, READS, STOPS, CallContext, Instead, tool, tools_in
from helmsman.mcp.waiting import HEARTBEAT_SECONDS, report_progress, wait_for_session
from helmsman.model.inputs import directory
from helmsman.shapes import task_contract as contract
from helmsman.shapes.contract import NothingInput
from helmsman.shapes.session_status import question_in_words
from helmsman.shapes.task_contract import CancelAnswer, ResultsAnswer, TaskAnswer, WaitAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.tasks.model import Task, TaskOrigin


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


# --- local -----------------------------------------------------------------------------------------------------------


@tool("Run a task on this machine", ACTS, _in_words)
async def _codex_local_run(call: CallContext, args: contract.LocalRunInput) -> TaskAnswer:
    """Start Codex on a task here, like pressing run on a script: it returns a task_id at once and works on in the
    background. For work that stands alone (run tests, explain code, fix a bug). Read-only unless mode says more.
    When you will want to talk further with the same thread, use _codex_local_exec; for hours of work that should
    survive this machine, _codex_cloud_submit. Follow it with _codex_local_wait."""
    return await _now(call, await _run(call, args))


@tool("Run a task in a thread", ACTS, _in_words)
async def _codex_local_exec(call: CallContext, args: contract.LocalExecInput) -> TaskAnswer:
    """Like _codex_local_run, but it returns once the thread exists, with its thread_id, so that you can follow up in
    the same conversation: give thread_id here again, or use _codex_local_resume. Use _codex_local_run when you
    only want the task_id as fast as possible."""
    if args.thread_id is None:
        task_id = await _run(call, args)
    elif ignored := sorted(args.model_fields_set - {"task", "thread_id", "max_cost_usd"}):
        raise InvalidInput(
            f"{ignored[0]} is for a new thread, and a thread keeps its own options. Leave one of them out.",
            parameter=ignored[0],
        )
    else:
        task_id = await _follow_up(call, args.thread_id, args)
    await call.helm.tasks.local.follow(await call.helm.tasks.find(task_id))  # until there is a thread to follow up on
    return await _now(call, task_id)


@tool("Follow up in a thread", ACTS, _in_words)
async def _codex_local_resume(call: CallContext, args: contract.LocalResumeInput) -> TaskAnswer:
    """Send the next message to an existing thread, like answering in a chat: Codex remembers what was done. Works
    for threads of earlier runs and of people too. Returns a new task_id at once. While a turn is running in the
    thread it is an error: wait for that one first."""
    return await _now(call, await _follow_up(call, args.thread_id, args))


async def _run(call: CallContext, args: contract.LocalRunInput) -> str:
    return await call.helm.tasks.local.run(
        args.task,
        agent=CODEX,
        cwd=args.working_dir,
        on_question=call.on_question,
        max_cost_usd=args.max_cost_usd,
        idempotency_key=args.idempotency_key,
        model=args.model,
        sandbox=args.mode,
        approval_policy=args.approval_policy,
    )


async def _follow_up(
    call: CallContext, thread_id: str, args: contract.LocalResumeInput | contract.LocalExecInput
) -> str:
    return await call.helm.tasks.local.follow_up(
        thread_id, args.task, on_question=call.on_question, max_cost_usd=args.max_cost_usd
    )


@tool("Look at a local task", READS, _in_words)
async def _codex_local_status(call: CallContext, args: contract.LocalTaskInput) -> TaskAnswer:
    """How a local task stands right now, like a glance at a timer: status, progress, what it asks. Does not wait and
    does not bring the output. To be told when it ends use _codex_local_wait; for the output _codex_local_results."""
    return await _now(call, (await _found(call, args.task_id, "local")).id)


@tool("Wait for a local task", READS, _in_words)
async def _codex_local_wait(call: CallContext, args: contract.LocalWaitInput) -> WaitAnswer | Instead:
    """Wait until a local task has ended or asks something, and return then, at once; or when timeout_sec is up, with
    timed_out true: then call it again. One wait instead of many looks. Sends progress meanwhile."""
    task = await _found(call, args.task_id, "local")
    return await wait_for_task(call, task, seconds=args.timeout_sec, every=args.poll_interval_sec)


@tool("Stop a local task", STOPS, _in_words)
async def _codex_local_cancel(call: CallContext, args: contract.LocalCancelInput) -> CancelAnswer:
    """Stop a local task, like Ctrl-C: Codex's turn and the commands it is running. Returns when they have really
    stopped, and says what was stopped. What was changed until then stays changed. A task that has ended is left
    as it is."""
    task, message = await call.helm.tasks.cancel(await _found(call, args.task_id, "local"), reason=args.reason)
    return answer(CancelAnswer, call.helm, task, message=message)


@tool("Read what a local task gave", READS, _in_words)
async def _codex_local_results(call: CallContext, args: contract.LocalTaskInput) -> ResultsAnswer:
    """Everything a local task gave: the final message, the diff where it is still known, tokens and cost. For a task
    that is still running you get what there is; use _codex_local_wait first."""
    results = await call.helm.tasks.results(await _found(call, args.task_id, "local"))
    return results_answer(call.helm, results)


# --- cloud -----------------------------------------------------------------------------------------------------------


@tool("Hand a task to the Codex cloud", ACTS, _in_words)
async def _codex_cloud_submit(call: CallContext, args: contract.CloudSubmitInput) -> TaskAnswer:
    """Hand a task to the Codex cloud, like posting a parcel: it runs there in an environment of your account, for
    hours if need be, and survives this machine. Returns a task_id at once. Needs a ChatGPT login of Codex and an
    environment (_codex_cloud_list_environments). Say in the task which branch and tests you want. For quick work
    on the files here use _codex_local_run."""
    task_id = await call.helm.tasks.cloud.submit(
        args.task,
        environment=args.env_id,
        directory=_directory(call, "working_dir", args.working_dir),
        **args.model_dump(include={"attempts", "branch", "model", "idempotency_key"}),
    )
    return answer(TaskAnswer, call.helm, await call.helm.tasks.find(task_id))


@tool("Look at a cloud task", READS, _in_words)
async def _codex_cloud_status(call: CallContext, args: contract.CloudTaskInput) -> TaskAnswer:
    """How a cloud task stands, as the cloud tells it now, like a tracking number. The cloud says pending, ready or
    error, and no percentage. For the change itself use _codex_cloud_results."""
    return await _now(call, (await _found(call, args.task_id, "cloud")).id)


@tool("Wait for a cloud task", READS, _in_words)
async def _codex_cloud_wait(call: CallContext, args: contract.CloudWaitInput) -> WaitAnswer | Instead:
    """Look at a cloud task again and again (after 2, 5, 10, then every 15 seconds) until it has ended or timeout_sec
    is up; timed_out then says to call again. Use it instead of many looks."""
    return await wait_for_task(call, await _found(call, args.task_id, "cloud"), seconds=args.timeout_sec)


@tool("How to stop a cloud task", READS, _in_words)
async def _codex_cloud_cancel(call: CallContext, args: contract.CloudTaskInput) -> CancelAnswer:
    """The Codex cloud cannot be told to cancel from here. This tool says so and gives the task's web address, where
    a person can. Nothing is stopped by calling it."""
    task, message = await call.helm.tasks.cancel(await _found(call, args.task_id, "cloud"))
    return answer(CancelAnswer, call.helm, task, message=message)


@tool("Read or apply what a cloud task gave", ACTS, _in_words)
async def _codex_cloud_results(call: CallContext, args: contract.CloudResultsInput) -> ResultsAnswer:
    """The diff of a finished cloud task, for one of its attempts. With apply_to, the diff is also brought into that
    repository: all of it or nothing, refused when there are uncommitted changes unless allow_dirty. The agent's
    message is only on the task's web page."""
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


def _environments_in_words(output: contract.EnvironmentsAnswer) -> str:
    rows = [f"{one.name}  {one.reference}{'  (default)' if one.is_default else ''}" for one in output.environments]
    return "\n".join([*rows, output.note])


@tool("Which cloud environments there are", READS, _environments_in_words)
async def _codex_cloud_list_environments(call: CallContext, _args: NothingInput) -> contract.EnvironmentsAnswer:
    """The cloud environments known here: those in the user's helmsman.toml and those that recent tasks ran in. The
    cloud itself has no list to ask for. Use one as env_id in _codex_cloud_submit."""
    found = await call.helm.tasks.cloud.environments()
    return contract.EnvironmentsAnswer.model_validate(found, from_attributes=True)


@tool("How to set up GitHub for the cloud", READS, lambda output: output.guide)
async def _codex_cloud_github_setup(call: CallContext, args: contract.GitHubSetupInput) -> contract.GuideAnswer:
    """A guide, made for the repository at working_dir, to make it usable in the Codex cloud: its remote, its default
    branch, its checks, what is missing. Reads the repository and changes nothing."""
    return await setup_guide(call, _directory(call, "working_dir", args.working_dir))


PRIMITIVES: Final = tools_in(globals())


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
                    background.start_soon(report_progress, call, partial(_standing, task), anyio.sleep_forever, every)
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


async def setup_guide(call: CallContext, place: Path) -> contract.GuideAnswer:
    """How to make the repository there ready for the cloud."""
    configured = call.helm.tasks.cloud.settings.environments
    look = partial(github_guide, place, environments=tuple(configured), state_dir=call.helm.settings.state_dir)
    guide = await anyio.to_thread.run_sync(look)
    return contract.GuideAnswer(guide=guide.text, steps=[step.title for step in guide.steps])


async def _found(call: CallContext, reference: str, origin: TaskOrigin) -> Task:
    task = await call.helm.tasks.find(reference)
    if task.origin != origin:
        raise InvalidInput(
            f"Task {task.id} is a {task.origin} task. Use the tools named _codex_{task.origin}_… for it.",
            parameter="task_id",
        )
    return task


async def _now(call: CallContext, task_id: str) -> TaskAnswer:
    return answer(TaskAnswer, call.helm, await call.helm.tasks.get(task_id))


def _directory(call: CallContext, parameter: str, given: str | None) -> Path:
    place = directory(parameter, given if given is not None else ".")
    refuse_outside(place, call.helm.settings.allowed_roots, parameter)
    return place
