"""`helmsman tasks`: list, wait for, cancel, read and apply all tasks of this machine and the cloud.

A task is one turn of a local session, or a task in the Codex cloud. The registry is shared: the task's process may be
another one or may have ended. To wait for or cancel a task, the command attaches to its engine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
import click

from helmsman.approvals.deadline import in_words
from helmsman.base.files import refuse_outside
from helmsman.base.json_values import present
from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import Named, cli_command, cli_group, limit_option, option
from helmsman.cli.completing import complete_task
from helmsman.cli.consoles import echo, is_terminal, result_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import short_id, with_helmsman
from helmsman.cli.output import (
    WAITING_FOR_YOU,
    Column,
    ago,
    local,
    print_details,
    print_diff,
    print_json,
    print_list,
    print_markdown,
    print_message,
    task_word,
)
from helmsman.cli.run import prompt_text
from helmsman.model.inputs import directory as existing_directory
from helmsman.model.options import DEFAULT_AGENT
from helmsman.shapes.rendering import fields_as_dict, task_as_dict
from helmsman.tasks.model import BUDGET, QUOTA, TaskOrigin, TaskStatus

if TYPE_CHECKING:
    from rich.text import Text

    from helmsman.capabilities.all_tasks import TaskResults
    from helmsman.client import Helmsman
    from helmsman.tasks.model import Task

_ALIAS_WIDTH: Final = 24
_SUBMITTED_POLL: Final = 0.1
_COLUMNS: Final = (
    Column("ID", "cyan"),
    Column("STATUS"),
    Column("WHEN", left_out=1),
    Column("AGENT", left_out=3, usual=DEFAULT_AGENT),
    Column("ALIAS"),
    Column("WHAT", gives_way="at its end", left_out=2),
)
_STYLES: Final = {
    WAITING_FOR_YOU: "bold yellow",
    "working": "blue",
    "completed": "green",
    "failed": "red",
    "unknown": "yellow",
}
_task_argument: Final = click.argument(
    "reference", metavar="TASK", type=Named("helmsman tasks"), shell_complete=complete_task
)


@cli_group(
    "tasks",
    "List tasks; wait for them, stop them, read their results.",
    "helmsman tasks --status working --status pending",
    "helmsman tasks wait fix-parser --timeout 600",
    "helmsman tasks results T-local-0f3a9c1b2d4e > answer.txt",
    'helmsman tasks submit "Add rate limiting to the API" --environment api',
)
@option(
    "--status",
    "Only tasks in this status; may be given several times.",
    to="statuses",
    choices=get_args(TaskStatus),
    multiple=True,
)
@option("--origin", "Only tasks here, or in the cloud.", choices=get_args(TaskOrigin))
@option("--agent NAME", "Only tasks of this agent, such as codex.")
@option("--directory DIR", "Only tasks that work in this directory.")
@limit_option
def command(
    statuses: tuple[TaskStatus, ...],
    origin: TaskOrigin | None,
    agent: str | None,
    directory: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List tasks, newest first: every turn of every session, and what was handed to the Codex cloud.

    A task is named by its id (T-local-…, T-cloud-…) or by its alias, which the list shows. Cloud tasks are as of the last
    look. Not on a terminal, the columns are separated by tabs: id, alias, status, time of the last change, directory,
    instruction, agent.
    """
    place = None if directory is None else host().place(directory)
    tasks, cursor = with_helmsman(
        lambda helm: helm.tasks.list(status=statuses or None, origin=origin, agent=agent, directory=place, limit=limit)
    )
    nothing = 'There are no tasks yet. Start one: helmsman run "…".'
    if statuses or (origin, agent, directory) != (None, None, None):
        nothing = "No task matches. Leave out --status, --origin, --agent or --directory to see all."
    print_list(
        {"tasks": [task_as_dict(task) for task in tasks]} | ({} if cursor is None else {"nextCursor": cursor}),
        [_row(task) for task in tasks],
        _COLUMNS,
        lambda _: [_cells(task) for task in tasks],
        nothing=nothing,
        as_json=as_json,
        note=None if cursor is None else f"These are the newest {limit}; --limit shows more.",
    )


# --- one task --------------------------------------------------------------------------------------------------------


@cli_command("show", "Show the state of a task.", "helmsman tasks show fix-parser", group=command)
@_task_argument
def _show(reference: str, as_json: bool) -> None:
    """Show the state of a task: status, progress, result, tokens. For a cloud task, the cloud is asked."""
    _print_task(with_helmsman(lambda helm: helm.tasks.get(reference)), as_json=as_json)


@cli_command(
    "wait",
    "Wait until a task has ended or asks something.",
    "helmsman tasks wait T-local-0f3a9c1b2d4e --timeout 600 && echo done",
    group=command,
    notes="""\b
Exit codes: 0 it completed, 1 it failed, was cancelled, or is unknown, 4 the time is up, 5 it asks something.

""",
)
@_task_argument
@option("--timeout SECONDS", "Wait at most this long.  [default: as long as it takes]", type=click.FloatRange(min=0))
def _wait(reference: str, timeout: float | None, as_json: bool) -> int:
    """Wait until a task has ended or asks something, and show its state then. Ctrl-C ends the wait, not the task."""
    host().require_own_process()

    async def wait(helm: Helmsman) -> Task:
        return await helm.tasks.wait(await helm.tasks.find(reference), timeout=timeout)

    task = with_helmsman(wait)
    # A task that asks needs an answer, not more waiting.
    goes_on = task.is_running and not task.input_required
    _print_task(task, as_json=as_json, timedOut=goes_on)
    if goes_on and not as_json:
        print_message("The time is up, and the task is still running. Wait again to see its end.")
    return ExitCode.TIMED_OUT if goes_on else _exit_code(task)


@cli_command(
    "submit",
    "Hand a task to the Codex cloud.",
    'helmsman tasks submit "Add rate limiting to the API, with tests" --environment api --attempts 2',
    group=command,
    changes=True,
)
@click.argument("prompt")
@option("--environment ENV", "By id, label or configured name.  [default: the configured one]")
@option("--attempts N", "How many to make.", type=click.IntRange(1, 4), default=1)
@option("--branch NAME", "The branch to start from.")
@option("-C --cd DIR", "The repository it is about.  [default: here]", to="directory", default=".", show_default=False)
def _submit(
    prompt: str, environment: str | None, attempts: int, branch: str | None, directory: str, as_json: bool
) -> int:
    """Hand a task to the Codex cloud, where it runs without this machine; PROMPT `-` reads it from stdin.

    Returns when the cloud has it, with its id, its alias and the address of its page.
    """
    text = prompt_text(prompt)
    # On another machine its own file system decides.
    place = host().place(directory) if host().is_elsewhere else existing_directory("directory", directory)

    async def submit(helm: Helmsman) -> Task:
        refuse_outside(place, helm.settings.allowed_roots, "directory")
        task_id = await helm.tasks.cloud.submit(
            text, environment=environment, attempts=attempts, branch=branch, directory=place
        )
        # The cloud answers after some seconds.
        while (task := await helm.tasks.find(task_id)).status == "pending":  # noqa: ASYNC110 - no event
            await anyio.sleep(_SUBMITTED_POLL)
        return task

    task = with_helmsman(submit)
    _print_task(task, as_json=as_json)
    if task.status == "working" and not as_json:
        print_message(f"Submitted. Wait for it: helmsman tasks wait {task.id}")
    return ExitCode.OK if task.status == "working" else ExitCode.FAILED


@cli_command(
    "cancel", "Stop a task.", 'helmsman tasks cancel fix-parser --reason "takes too long"', group=command, changes=True
)
@_task_argument
@option("--reason TEXT", "Why, for the log.")
def _cancel(reference: str, reason: str | None, as_json: bool) -> int:
    """Stop a task: the turn and the commands it is running. What was changed until then stays changed.

    The Codex cloud cannot be told to cancel: you get the task's web address, where you can, and the exit code is 1.
    """

    async def cancel(helm: Helmsman) -> tuple[Task, str]:
        return await helm.tasks.cancel(await helm.tasks.find(reference), reason=reason)

    task, message = with_helmsman(cancel)
    if as_json:
        _print_task(task, as_json=True, message=message)
    else:
        # British spelling in prose; the status value stays "canceled"
        status = "cancelled" if task.status == "canceled" else task.status
        print_message(f"{one_line(message)} {task.id} is {status}.")
    # A cloud task continues, because it cannot be stopped from here.
    return ExitCode.FAILED if task.is_running else ExitCode.OK


@cli_command(
    "results",
    "Show the result of a task.",
    "helmsman tasks results fix-parser > answer.txt",
    "helmsman tasks results T-cloud-7be1042c9a55 --attempt 2 --diff | git apply",
    group=command,
)
@_task_argument
@option("--diff", "The change, as a unified diff, instead of the message.", to="wants_diff")
@option("--attempt N", "Which attempt of a cloud task.", type=click.IntRange(1, 4), default=1)
def _results(reference: str, wants_diff: bool, attempt: int, as_json: bool) -> int:
    """Show the result of a task: the final message on stdout, or with --diff the change; all else on stderr.

    The exit code is 0 only for a task that completed, and with --diff only if its change is known.
    """

    async def read(helm: Helmsman) -> TaskResults:
        return await helm.tasks.results(await helm.tasks.find(reference), attempt=attempt)

    results = with_helmsman(read)
    task, cloud = results.task, results.cloud
    if as_json:
        attempts = {} if cloud is None else {"attempt": cloud.attempt, "attempts": cloud.attempts, "note": cloud.note}
        _print_task(task, as_json=True, diff=results.diff, costUsd=results.cost_usd, **attempts, **_done(results))
    else:
        text = results.diff if wants_diff else task.result
        if text:
            _print_text(text, is_diff=wants_diff)
        else:
            print_message(_nothing_there(results, wants_diff=wants_diff))
        if not wants_diff:
            _print_done(results)
    return ExitCode.FAILED if wants_diff and results.diff is None else _exit_code(task)


def _done(results: TaskResults) -> dict[str, Any]:
    """Return the work of a task as JSON."""
    return {
        "filesChanged": [fields_as_dict(file) for file in results.files] or None,
        "commands": [fields_as_dict(command) for command in results.commands] or None,
        "tests": None if results.tests is None else fields_as_dict(results.tests),
        "report": results.report,
    }


def _print_done(results: TaskResults) -> None:
    """Print the work of a task on stderr."""
    for file in results.files:
        echo(f"  {file.kind} {one_line(file.path)} +{file.added or 0} -{file.removed or 0}", err=True)
    for ran in results.commands:
        code = "declined" if ran.declined else "did not end" if ran.exit_code is None else f"exit {ran.exit_code}"
        echo(f"  ran {one_line(ran.command)[:500]} ({code})", err=True)
    if (tests := results.tests) is not None:
        echo(f"  tests: {tests.passed} passed, {tests.failed} failed, {tests.skipped} skipped", err=True)


def _print_text(text: str, *, is_diff: bool) -> None:
    """Print text unchanged for a program, and Markdown or a diff as such on a terminal."""
    if not is_diff:
        print_markdown(text)
    elif is_terminal(console := result_console()):
        print_diff(text.encode("utf-8", "surrogateescape"), console)
    else:
        echo(text, nl=False)  # a diff ends with its own line break


def _nothing_there(results: TaskResults, *, wants_diff: bool) -> str:
    """Return why there is no result, and where to look instead."""
    task, cloud = results.task, results.cloud
    if task.is_running:
        return f"{task.id} is still {task.status}. Wait for it: helmsman tasks wait {task.id}"
    if cloud is not None:
        there = "" if wants_diff or results.diff is None else " Show the change with --diff."
        return f"{cloud.note or 'There is nothing to show.'}{there}"
    if task.result_compacted:
        return f"The result of {task.id} has expired. Look at session {task.session_id}."
    if wants_diff:
        return f"A local task changes files directly. See what its session changed: helmsman diff {task.session_id}"
    return _standing(task)


@cli_command(
    "resume",
    "Resume a task that waits for a usage limit.",
    "helmsman tasks resume fix-parser",
    'helmsman tasks resume fix-parser --at "tomorrow 6:00"',
    group=command,
    changes=True,
)
@_task_argument
@option("--at WHEN", "Not now, but then: 'tomorrow 6:00', 'in 2h'.")
def _resume(reference: str, at: str | None, as_json: bool) -> None:
    """Resume a task that waits for the account's usage limit, now or at another time.

    `helmsman tasks cancel` drops it instead.
    """

    async def go_on(helm: Helmsman) -> Task:
        return await helm.extras.limits.go_on(await helm.tasks.get(reference), at)

    _print_task(with_helmsman(go_on), as_json=as_json)


# --- shared ----------------------------------------------------------------------------------------------------------


def _exit_code(task: Task) -> ExitCode:
    if task.input_required:
        return ExitCode.ASKED
    return ExitCode.OK if task.status == "completed" else ExitCode.FAILED


def _print_task(task: Task, *, as_json: bool, **more: Any) -> None:
    if as_json:
        print_json(task_as_dict(task) | present(more))
    else:
        print_details(_details(task))
        # Otherwise the note names who can answer.
        if task.input_required and task.is_hubs and (task.session_id or task.job):
            asks = f"helmsman respond {short_id(task.session_id)}" if task.session_id else "helmsman respond"
            print_message(f"It asks something. Answer it: {asks}, or in `helmsman dashboard`.")


def _details(task: Task) -> dict[str, str | None]:
    """Return labelled details of a task; unknown values are empty."""
    error = None if task.error is None else f"{task.error.get('code')}: {task.error.get('message')}"
    url = task.url
    usage = task.usage
    result = None if task.result is None else visible(task.result).strip()
    return {
        "task": f"{task.id} ({task.alias})",
        "status": one_line(_standing(task)),
        "note": one_line(task.note or ""),
        # The note of a cancelled task has the reason.
        "cancel reason": one_line(task.cancel_reason or "") if task.is_running else None,
        "error": one_line(error or ""),
        "agent": None if task.agent == DEFAULT_AGENT else one_line(task.agent),
        "job": task.job,
        "work": one_line(task.instruction)[:500],
        "directory": one_line(task.directory or ""),
        "session": task.session_id,
        "page": one_line(url) if isinstance(url, str) else None,
        "model": one_line(task.model or ""),
        "began": local(task.created_at),
        "ended": None if task.completed_at is None else local(task.completed_at),
        "kept until": None if task.expires_at is None else local(task.expires_at),
        "tokens": None if usage is None else f"{usage.input_tokens:,} in, {usage.output_tokens:,} out",
        "result": result,
    }


def _standing(task: Task) -> str:
    if task.resumes_at is not None:
        left = in_words(max(0.0, (task.resumes_at - datetime.now(UTC)).total_seconds()))
        return f"{task.status}: waits for the usage limit until {local(task.resumes_at)}, for {left}"
    if task.waiting_for == BUDGET:
        return f"{WAITING_FOR_YOU}: a budget is used up"
    if task.input_required:
        return WAITING_FOR_YOU
    progress = task.progress.get("text") if task.progress is not None and task.is_running else None
    return f"{task.status}: {progress}" if progress else task.status


def _row(task: Task) -> tuple[str | None, ...]:
    time = task.updated_at.isoformat(timespec="seconds")
    # For programs, the columns stay the same, so remarks go into the status.
    more = f" ({WAITING_FOR_YOU})" if task.input_required else " (a question timed out)" if task.timed_out else ""
    more = " (waits for the usage limit)" if task.waiting_for == QUOTA else more
    status = task.status + more
    return task.id, task.alias, status, time, task.directory, task.instruction, task.agent


def _cells(task: Task) -> tuple[str | Text, ...]:
    from rich.text import Text

    status = task_word(task)
    alias = Text(one_line(task.alias))
    alias.truncate(_ALIAS_WIDTH, overflow="ellipsis")
    what = Text(one_line(task.instruction)[:500])
    if task.is_unenforced:
        what = Text("(unenforced) ", "yellow").append_text(what)
    if task.timed_out:
        what = Text("(a question timed out) ", "yellow").append_text(what)
    return task.id, Text(status, _STYLES.get(status, "")), ago(task.updated_at), one_line(task.agent), alias, what
