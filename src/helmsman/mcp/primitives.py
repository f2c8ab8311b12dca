"""Tools of the router with one purpose each: run, follow, stop and read local tasks and cloud tasks.

They are listed only with `--expose-primitives`; the tool `codex` does the same from plain words. Every agent has the
ones for local tasks under its own name (`call.agent`).
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.concurrency import background_tasks
from helmsman.base.files import refuse_outside
from helmsman.base.sanitize import one_line
from helmsman.capabilities.cloud_tasks import FIRST_LOOK, NEXT_LOOK, CloudListed
from helmsman.capabilities.github_guide import github_guide
from helmsman.capabilities.shown_diffs import fits_in_an_answer
from helmsman.errors import ConfirmationNeeded, InvalidInput
from helmsman.git.patches import diff_digest
from helmsman.mcp.call import CallContext
from helmsman.mcp.toolset import Tool
from helmsman.mcp.waiting import HEARTBEAT_SECONDS, report_progress, wait_for_session
from helmsman.model.inputs import directory
from helmsman.model.nature import ACTS, ANSWERS, ARRANGES, READS, STARTS, STOPS
from helmsman.operations.table import Deferred, Operation, operation
from helmsman.operations.texts import CODEX, voice_of
from helmsman.shapes import task_contract as contract
from helmsman.shapes.contract import NothingInput
from helmsman.shapes.questions import question_in_words
from helmsman.shapes.session_status import progress_line
from helmsman.shapes.task_answers import answer, results_answer
from helmsman.shapes.task_contract import CancelAnswer, ResultsAnswer, TaskAnswer, WaitAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.tasks.model import Task, TaskOrigin


def _in_words(output: TaskAnswer) -> str:
    lines = [f"{output.task_id} ({output.alias}): {output.status}"]
    if output.progress is not None:
        lines.append(progress_line(output.progress))
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


@operation("_{tool}_local_run", "Run a task on this machine", STARTS, _in_words)
async def local_run(call: CallContext, args: contract.LocalRunInput) -> TaskAnswer:
    """Start {agent} on a task here, like pressing run on a script. Returns a task_id at once and works on in the background;
    follow it with _{tool}_local_wait. For work that stands alone (run tests, explain code, fix a bug); read-only unless
    mode says more. Not for a conversation (_{tool}_local_exec). [[Hours of work that should survive this machine are
    for the cloud (_{tool}_cloud_submit).]]"""
    return await _now(call, await _run(call, args))


@operation("_{tool}_local_exec", "Run a task in a thread", STARTS, _in_words)
async def local_exec(call: CallContext, args: contract.LocalExecInput) -> TaskAnswer:
    """Run a task in a thread that you will keep talking to, like opening a chat. Returns once the thread exists, with its
    thread_id: give it here again, or use _{tool}_local_resume. Not for work that stands alone: _{tool}_local_run
    returns faster."""
    if args.thread_id is None:
        task_id = await _run(call, args)
    elif ignored := sorted(args.model_fields_set - {"task", "thread_id", "max_cost_usd"}):
        # A thread keeps its options. Ignoring others would do something else than the caller asked for.
        raise InvalidInput(
            f"{ignored[0]} is for a new thread, and a thread keeps its own options. Leave one of them out.",
            parameter=ignored[0],
        )
    else:
        task_id = await _follow_up(call, args.thread_id, args)
    await call.helm.tasks.local.follow(await call.helm.tasks.find(task_id))  # until there is a thread to follow up on
    return await _now(call, task_id)


@operation("_{tool}_local_resume", "Follow up in a thread", STARTS, _in_words)
async def local_resume(call: CallContext, args: contract.LocalResumeInput) -> TaskAnswer:
    """Send the next message to a thread, like answering in a chat: {agent} remembers what was done, also in threads of
    earlier runs and of people. Returns a new task_id at once. Not while a turn is running in it: wait for that first."""
    return await _now(call, await _follow_up(call, args.thread_id, args))


async def _run(call: CallContext, args: contract.LocalRunInput) -> str:
    return await call.helm.tasks.local.run(
        args.task,
        agent=call.agent,
        cwd=args.working_dir,
        on_question=call.on_question,
        sandbox=args.mode,
        **args.model_dump(exclude={"task", "mode", "working_dir", "thread_id"}),
    )


async def _follow_up(
    call: CallContext, thread_id: str, args: contract.LocalResumeInput | contract.LocalExecInput
) -> str:
    # Opened first: the thread may be of another agent, which has its own tools.
    session = await call.helm.session(thread_id)
    if session.options.agent != call.agent:
        raise _others(call, f"Thread {thread_id}", session.options.agent, "thread_id")
    return await call.helm.tasks.local.follow_up(
        thread_id, args.task, on_question=call.on_question, max_cost_usd=args.max_cost_usd
    )


@operation("_{tool}_local_status", "Look at a local task", READS, _in_words)
async def local_status(call: CallContext, args: contract.LocalTaskInput) -> TaskAnswer:
    """How a local task stands right now, like a glance at a timer: for "is it done yet?". Returns status, progress, what
    it asks and how often to look. Not for the output (_{tool}_local_results), nor to be told of the end
    (_{tool}_local_wait)."""
    return await _now(call, (await _found(call, args.task_id, "local")).id)


@operation("_{tool}_local_wait", "Wait for a local task", READS, _in_words)
async def local_wait(call: CallContext, args: contract.LocalWaitInput) -> WaitAnswer | Deferred:
    """Wait for a local task, like watching a progress bar: one call instead of many looks. Returns as soon as it has ended
    or asks something, with its result; or after timeout_sec with timed_out true: then call it again. Sends progress
    meanwhile. Not for hours: look later with _{tool}_local_status."""
    task = await _found(call, args.task_id, "local")
    first, every = args.initial_delay_sec, args.poll_interval_sec
    return await wait_for_task(call, task, seconds=args.timeout_sec, first=first, every=every)


@operation("_{tool}_local_cancel", "Stop a local task", STOPS, _in_words)
async def local_cancel(call: CallContext, args: contract.LocalCancelInput) -> CancelAnswer:
    """Stop a local task that is stuck or no longer needed, like Ctrl-C: {agent}'s turn and the commands it is running.
    Returns when they have really stopped, with what was stopped. Not an undo: what was changed stays changed. A task that
    has
    ended is left as it is."""
    task, message = await call.helm.tasks.cancel(await _found(call, args.task_id, "local"), reason=args.reason)
    return answer(CancelAnswer, call.helm, task, message=message)


@operation("_{tool}_local_results", "Read what a local task gave", READS, _in_words)
async def local_results(call: CallContext, args: contract.LocalTaskInput) -> ResultsAnswer:
    """Everything a local task gave, like opening the parcel: for when it has ended. Returns its messages, the diff, files
    changed, tests passed and failed, tokens and cost, as far as they are known. Not for "is it done yet?":
    _{tool}_local_status is lighter."""
    results = await call.helm.tasks.results(await _found(call, args.task_id, "local"))
    return results_answer(call.helm, results)


# --- cloud -----------------------------------------------------------------------------------------------------------


@operation("_{tool}_cloud_submit", "Hand a task to the {agent} cloud", ACTS, _in_words)
async def cloud_submit(call: CallContext, args: contract.CloudSubmitInput) -> TaskAnswer:
    """Hand a task to the {agent} cloud, like posting a parcel: it runs there in an environment of your account, for hours if
    need be, and survives this machine. Returns a task_id at once; follow it with _{tool}_cloud_wait. Say in the task
    which branch and tests you want. Needs a ChatGPT login of {agent} and an environment
    (_{tool}_cloud_list_environments). Not for quick work on the files here: _{tool}_local_run."""
    task_id = await call.helm.tasks.cloud.submit(
        args.task,
        environment=args.env_id,
        directory=_directory(call, "working_dir", args.working_dir),
        **args.model_dump(include={"attempts", "branch", "model", "idempotency_key"}),
    )
    return answer(TaskAnswer, call.helm, await call.helm.tasks.find(task_id))


@operation("_{tool}_cloud_status", "Look at a cloud task", READS, _in_words)
async def cloud_status(call: CallContext, args: contract.CloudTaskInput) -> TaskAnswer:
    """How a cloud task stands, like a tracking number: for "is it done yet?". Returns what the cloud says now (pending,
    ready or error, no percentage) and the web address. Not for the change itself (_{tool}_cloud_results), nor to be
    told of the end (_{tool}_cloud_wait)."""
    return await _now(call, (await _found(call, args.task_id, "cloud")).id)


@operation("_{tool}_cloud_wait", "Wait for a cloud task", READS, _in_words)
async def cloud_wait(call: CallContext, args: contract.CloudWaitInput) -> WaitAnswer | Deferred:
    """Wait for a cloud task, like leaving the tracking page open: one call instead of many looks. Returns when it has ended,
    or after timeout_sec with timed_out true: then call it again. Not for hours: look later with
    _{tool}_cloud_status."""
    task = await _found(call, args.task_id, "cloud")
    first, then = args.initial_delay_sec, args.poll_interval_sec
    return await wait_for_task(call, task, seconds=args.timeout_sec, first_look=first, next_look=then)


@operation("_{tool}_cloud_cancel", "How to stop a cloud task", ARRANGES, _in_words)
async def cloud_cancel(call: CallContext, args: contract.CloudCancelInput) -> CancelAnswer:
    """Where to stop a cloud task, like being told which counter to go to: the {agent} cloud cannot be told to cancel from
    here, so nothing is stopped. Returns the task's web address, where a person can. Not for local tasks:
    _{tool}_local_cancel."""
    task, message = await call.helm.tasks.cancel(await _found(call, args.task_id, "cloud"), reason=args.reason)
    return answer(CancelAnswer, call.helm, task, message=message)


@operation("_{tool}_cloud_results", "Read or apply what a cloud task gave", ANSWERS, _in_words)
async def cloud_results(call: CallContext, args: contract.CloudResultsInput) -> ResultsAnswer:
    """What a finished cloud task gave, like opening the parcel. Returns the diff of one of its attempts; called again with
    apply_to, a diff that was shown is also brought into that repository: all of it or nothing, refused when there are
    uncommitted changes unless allow_dirty. Not for the agent's message, which is only on the task's web page."""
    task = await _found(call, args.task_id, "cloud")
    results = await call.helm.tasks.results(task, attempt=args.attempt)
    # A diff may contain bytes that are not UTF-8, and its digest is of the bytes.
    patch = (results.diff or "").encode("utf-8", "surrogateescape")
    shown, viewer, what = call.helm.extras.changes.shown, call.viewer, f"{task.id}/{args.attempt}"
    applied: list[str] | None = None
    if args.apply_to is not None:
        # Nothing is applied that the client could not see whole.
        if not fits_in_an_answer(results.diff or ""):
            raise ConfirmationNeeded(
                f"Nothing was applied: the diff has {len(results.diff or '')} characters, more than can be shown here. A "
                f"person can look at it and apply it: helmsman apply {task.id}"
            )
        place = _directory(call, "apply_to", args.apply_to)
        # An empty diff has no digest; `apply` then says that there is nothing.
        expected = shown.expected(viewer, what, args.digest) if patch else None
        done = await call.helm.tasks.cloud.apply(
            task, place, attempt=args.attempt, allow_dirty=args.allow_dirty, digest=expected
        )
        applied = list(done.files)
    is_whole = bool(patch) and fits_in_an_answer(results.diff or "")
    if is_whole:
        # Shown from now on, so that the next call may apply it.
        shown.show(viewer, what, patch)
    digest = diff_digest(patch) if is_whole else None
    return results_answer(call.helm, results, digest=digest, applied_files=applied)


def _listed_in_words(output: contract.CloudTasksAnswer) -> str:
    rows = (f"{one.task_id or one.external_id}  {one.status}  {one_line(one.title)}" for one in output.tasks)
    return "\n".join(rows) or "None."


@operation("_{tool}_cloud_list_tasks", "Which tasks are in the cloud", READS, _listed_in_words)
async def cloud_list_tasks(call: CallContext, args: contract.CloudListInput) -> contract.CloudTasksAnswer:
    """The tasks of your account in the {agent} cloud, like the list of your parcels, whoever submitted them: for finding
    one. Returns the newest 20, with titles, states, web addresses, and a task_id where it was submitted here. Not for
    following one: _{tool}_cloud_status."""
    found, cursor = await call.helm.tasks.in_cloud(environment=args.env_id, cursor=args.cursor)
    return contract.CloudTasksAnswer(tasks=[_listed_task(*each) for each in found], next_cursor=cursor)


def _listed_task(listed: CloudListed, task: Task | None) -> contract.CloudListedTask:
    stat = listed.diff_stat
    return contract.CloudListedTask(
        external_id=listed.external_id,
        task_id=None if task is None else task.id,
        title=listed.title,
        status=listed.status,
        environment=listed.environment,
        updated_at=None if listed.updated_at is None else listed.updated_at.isoformat(),
        url=listed.url,
        files=None if stat is None else stat.files,
        added=None if stat is None else stat.added,
        removed=None if stat is None else stat.removed,
    )


def _environments_in_words(output: contract.EnvironmentsAnswer) -> str:
    rows = [f"{one.name}  {one.reference}{'  (default)' if one.is_default else ''}" for one in output.environments]
    return "\n".join([*rows, output.note])


@operation("_{tool}_cloud_list_environments", "Which cloud environments there are", READS, _environments_in_words)
async def cloud_list_environments(call: CallContext, _args: NothingInput) -> contract.EnvironmentsAnswer:
    """Where cloud tasks can run, like the addresses a parcel can go to: one of them is env_id of _{tool}_cloud_submit.
    Returns those in the user's helmsman.toml and those that recent tasks ran in. Not all there are: the cloud has no
    list to ask for."""
    found = await call.helm.tasks.cloud.environments()
    return contract.EnvironmentsAnswer.model_validate(found, from_attributes=True)


@operation("_{tool}_cloud_github_setup", "How to set up GitHub for the cloud", READS, lambda output: output.guide)
async def cloud_github_setup(call: CallContext, args: contract.GitHubSetupInput) -> contract.GuideAnswer:
    """How to make the repository at working_dir usable in the {agent} cloud, like a checklist made for it: before its first
    cloud task. Returns a guide: its remote, its default branch, its checks, what is missing. Not a setup by itself: it
    reads the repository and changes nothing."""
    return await setup_guide(call, _directory(call, "working_dir", args.working_dir))


PRIMITIVES: Final = tuple(Tool(one, agent=CODEX) for one in globals().values() if isinstance(one, Operation))


@cache
def primitives_of(agent: str, title: str) -> tuple[Tool, ...]:
    """Return the primitives of one agent. Only Codex has a cloud. Made once in a process, as all tools are."""
    voice = voice_of(agent, title)
    return tuple(
        Tool(one.operation, voice, agent=agent, agent_title=title)
        for one in PRIMITIVES
        if agent == CODEX or "_cloud_" not in one.name
    )


# --- shared with the tool `codex` ------------------------------------------------------------------------------------


async def wait_for_task(
    call: CallContext,
    task: Task,
    *,
    seconds: float,
    first: float = 0.0,
    every: float = HEARTBEAT_SECONDS,
    first_look: float = FIRST_LOOK,
    next_look: float = NEXT_LOOK,
) -> WaitAnswer | Deferred:
    """Wait for a task on behalf of a client, and report progress to it.

    Args:
        call: The client's call.
        task: The task.
        seconds: How long at most.
        first: When to tell of progress first.
        every: How often, then.
        first_look: When to look at the cloud again.
        next_look: How long after that, and ever longer then.
    """
    tasks = call.helm.tasks
    with anyio.move_on_after(seconds) as limit:
        while True:
            # A local task with a session here is followed by events; others are looked at.
            session = await tasks.local.follow(task) if task.origin == "local" else None
            if session is not None:
                instead = await wait_for_session(call, session, seconds=seconds, every=every, first=first)
                if instead is not None:
                    return Deferred(instead)
            else:
                async with background_tasks() as background:
                    # A task without a session has no feed, so progress is only sent now and then.
                    now = partial(_standing, task)
                    background.start_soon(report_progress, call, now, anyio.sleep_forever, every, first)
                    await (
                        tasks.wait(task) if task.origin == "local" else tasks.cloud.wait(task, first_look, next_look)
                    )
            task = await tasks.find(task.id)
            if not _goes_on(task):  # else a question has been answered already, and it does
                break
    # The time is up, and the last look may be old.
    if limit.cancelled_caught:
        task = await tasks.find(task.id)
    return answer(WaitAnswer, call.helm, task, timed_out=_goes_on(task), result=task.result)


def _goes_on(task: Task) -> bool:
    return task.is_running and not task.input_required


def _standing(task: Task) -> str:
    return f"{task.alias}: {task.status}"


async def setup_guide(call: CallContext, place: Path) -> contract.GuideAnswer:
    """Return a guide for making the repository ready for the cloud."""
    configured = call.helm.tasks.cloud.settings.environments
    look = partial(github_guide, place, environments=tuple(configured), state_dir=call.helm.settings.state_dir)
    # Git and the file system are slow, and must not hold up other clients.
    guide = await anyio.to_thread.run_sync(look)
    return contract.GuideAnswer(guide=guide.text, steps=[step.title for step in guide.steps])


async def _found(call: CallContext, reference: str, origin: TaskOrigin) -> Task:
    task = await call.helm.tasks.find(reference)
    if task.origin != origin:
        raise InvalidInput(
            f"Task {task.id} is a {task.origin} task. Use the tools named _{task.agent}_{task.origin}_… for it.",
            parameter="task_id",
        )
    if task.agent != call.agent:
        raise _others(call, f"Task {task.id}", task.agent, "task_id")
    return task


def _others(call: CallContext, what: str, agent: str, parameter: str) -> InvalidInput:
    """Return the error for a task or a thread of another agent."""
    tools = f"the tools named _{agent}_local_…"
    return InvalidInput(f"{what} is of {call.helm.agents.title(agent)}. Use {tools} for it.", parameter=parameter)


async def _now(call: CallContext, task_id: str) -> TaskAnswer:
    return answer(TaskAnswer, call.helm, await call.helm.tasks.get(task_id))


def _directory(call: CallContext, parameter: str, given: str | None) -> Path:
    place = directory(parameter, given if given is not None else ".")
    refuse_outside(place, call.helm.settings.allowed_roots, parameter)
    return place
