"""`helmsman schedule`: add, list, pause and remove scheduled work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.approvals.deadline import in_words
from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import Named, cli_command, cli_group, limit_option, option, with_options, yes_option
from helmsman.cli.completing import complete_schedule
from helmsman.cli.consoles import echo
from helmsman.cli.host import host
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import Column, agree, local, print_details, print_json, print_list, print_result, task_word
from helmsman.cli.run import WORK_OPTIONS, config_values, prompt_text, schema_in
from helmsman.errors import TaskNotFound
from helmsman.shapes.rendering import task_as_dict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.capabilities.schedules import Schedules
    from helmsman.client import Helmsman
    from helmsman.schedules.store import Schedule, ScheduleRun
    from helmsman.tasks.model import Task

_COLUMNS: Final = (
    Column("ID", "cyan"),
    Column("STATUS"),
    Column("NEXT"),
    Column("WHEN", left_out=2),
    Column("LAST", left_out=1),
    Column("WHAT", gives_way="at its end", left_out=3),
)

_schedule_argument: Final = click.argument(
    "reference", metavar="SCHEDULE", type=Named("helmsman schedule"), shell_complete=complete_schedule
)


@cli_group(
    "schedule",
    "Run work on a schedule: add, list, pause, run, remove.",
    "helmsman schedule add --cron '0 7 * * 1-5' \"Look at last night's failures\" -s read-only",
    'helmsman schedule add --at "tomorrow 6:00" "Update the dependencies and run the tests" --full-auto --worktree',
    "helmsman schedule show S-3f2a9c1e",
)
def command(as_json: bool) -> None:
    """Run work on a schedule and see how it went. Without a command: list the schedules.

    Schedules run as long as the hub does, which keeps running while there are any; `helmsman hub install` starts it with
    the machine. A run is a task like any other: `helmsman tasks` shows it, and its session.
    """
    from helmsman.shapes.schedules import schedule_as_dict

    async def look(helm: Helmsman) -> list[tuple[Schedule, Task | None]]:
        found = await helm.extras.schedules.list()
        return [(one, None if one.last is None else await _task(helm, one.last)) for one in found]

    found = with_helmsman(look)
    rows = [_cells(schedule, task) for schedule, task in found]
    print_list(
        {"schedules": [schedule_as_dict(schedule) for schedule, _ in found]},
        rows,
        _COLUMNS,
        nothing='There are no schedules. Add one: helmsman schedule add --every 1d "…".',
        as_json=as_json,
    )


@cli_command(
    "add",
    "Add a schedule.",
    "helmsman schedule add --cron '0 7 * * 1-5' \"Look at last night's failures\" -C ~/src/site -s read-only",
    'helmsman schedule add --every 2h "Is the build green?" -s read-only --max-cost-usd 0.20',
    'helmsman schedule add --at "friday 18:30" "Tidy up the changelog" --timezone Europe/Berlin',
    group=command,
    changes=True,
)
@click.argument("prompt")
@option("--cron LINE", "When, as a cron expression: minute, hour, day, month, day of the week.")
@option("--every TIME", "How often: 30m, 2h, 1d.")
@option("--at WHEN", "Once: 'tomorrow 6:00', 'friday 18:30', '2027-01-31 09:00', 'in 90 minutes'.")
@option("--timezone NAME", "The time zone of --cron and --at, such as Europe/Berlin.  [default: here]")
@option(
    "--missed", "What to do about a run missed while the machine was asleep.", choices=["run", "skip"], default="run"
)
@option("--overlap", "Start even if the previous run is still going.")
@with_options(*WORK_OPTIONS)
@option("--worktree", "Give each run its own git worktree.")
def _add(
    prompt: str,
    directory: str | None,
    config: tuple[str, ...],
    schema_file: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add a schedule. Give exactly one of --cron, --every and --at.

    A run has the hub's environment, not this shell's: anything of yours that the agent needs has to be in its own
    configuration. Its questions stay open until they are answered.
    """
    from helmsman.shapes.schedules import schedule_as_dict

    given = {name: value for name, value in options.items() if value}
    text, schema, values = prompt_text(prompt), schema_in(schema_file), config_values(config)

    async def add(helm: Helmsman) -> Schedule:
        return await helm.extras.schedules.add(text, cwd=directory, output_schema=schema, config=values, **given)

    schedule = with_helmsman(add)
    print_result(f"Added {schedule.id}. It begins {_next(schedule)}.", schedule_as_dict(schedule), as_json=as_json)


@cli_command("show", "Show a schedule and its runs.", "helmsman schedule show S-3f2a9c1e --limit 50", group=command)
@_schedule_argument
@limit_option
def _show(reference: str, limit: int, as_json: bool) -> None:
    """Show a schedule and how its runs went, newest first. SCHEDULE is its id, or the start of it."""
    from helmsman.shapes.schedules import run_as_dict, schedule_as_dict

    async def look(helm: Helmsman) -> tuple[Schedule, list[tuple[ScheduleRun, Task | None]]]:
        schedule = await helm.extras.schedules.get(reference)
        runs = await helm.extras.schedules.runs(schedule.id, limit)
        return schedule, [(run, await _task(helm, run)) for run in runs]

    schedule, runs = with_helmsman(look)
    shown = schedule_as_dict(schedule)
    if as_json:
        told = [run_as_dict(run) | ({} if task is None else {"status": task.status}) for run, task in runs]
        print_json(shown | {"runs": told})
        return
    print_details(
        {
            "schedule": schedule.id,
            "status": shown["status"],
            "when": str(schedule.when),
            "next": None if schedule.next_at is None else _next(schedule),
            "work": visible(schedule.prompt),
            "directory": one_line(schedule.directory),
            "agent": shown.get("agent"),
            "sandbox": shown.get("sandbox"),
            "policy": shown.get("approvalPolicy"),
            "model": one_line(shown.get("model", "")),
            "missed": "one run makes up for them" if schedule.missed == "run" else "are left out",
            "runs": "\n".join(_told(run, task) for run, task in runs) or "none yet",
        }
    )


async def _task(helm: Helmsman, run: ScheduleRun) -> Task | None:
    if run.task_id is None:
        return None

    try:
        return await helm.tasks.get(run.task_id)
    except TaskNotFound:
        return None


@cli_command("pause", "Pause a schedule.", "helmsman schedule pause S-3f2a9c1e", group=command)
@_schedule_argument
def _pause(reference: str, as_json: bool) -> None:
    """Pause a schedule until `helmsman schedule resume`. Runs already started continue."""
    _change(lambda schedules: schedules.pause(reference), "Paused {id}.", as_json=as_json)


@cli_command("resume", "Resume a paused schedule.", "helmsman schedule resume S-3f2a9c1e", group=command)
@_schedule_argument
def _resume(reference: str, as_json: bool) -> None:
    """Resume a paused schedule from its next time on; missed runs are not made up."""
    _change(lambda schedules: schedules.resume(reference), "{id} is resumed; the next run is {next}.", as_json=as_json)


@cli_command("confirm", "Confirm a proposed schedule.", "helmsman schedule confirm S-3f2a9c1e", group=command)
@_schedule_argument
@yes_option
def _confirm(reference: str, agreed: bool, as_json: bool) -> None:
    """Confirm a schedule that an MCP client's model has proposed. It is shown first, and you are asked."""
    from helmsman.shapes.schedules import what_begins

    schedule = with_helmsman(lambda helm: helm.extras.schedules.get(reference))
    if schedule.proposed_by is not None and not as_json:
        # Not wrapped: lines of the model's text must keep their margin.
        echo(f"The model of {one_line(schedule.proposed_by)} proposes:\n{what_begins(schedule)}", err=True)
    agree(
        "Confirm it?",
        # A schedule that a person has made needs no confirmation.
        agreed=agreed or schedule.proposed_by is None,
        as_json=as_json,
        otherwise="A proposed schedule starts work without you.",
    )
    _change(
        lambda schedules: schedules.confirm(schedule.id), "Confirmed {id}; the next run is {next}.", as_json=as_json
    )


@cli_command("remove", "Remove a schedule.", "helmsman schedule remove S-3f2a9c1e", group=command)
@_schedule_argument
@yes_option
def _remove(reference: str, agreed: bool, as_json: bool) -> None:
    """Remove a schedule. Runs already started continue, and stay in the list of tasks. On a terminal you are asked first."""
    agree(f"Remove schedule {reference}?", agreed=agreed, as_json=as_json, otherwise=None)
    _change(lambda schedules: schedules.remove(reference), "Removed {id}.", as_json=as_json)


@cli_command("run-now", "Start a run now.", "helmsman schedule run-now S-3f2a9c1e", group=command, changes=True)
@_schedule_argument
def _run_now(reference: str, as_json: bool) -> None:
    """Start a run now. The schedule itself does not change."""
    task = with_helmsman(lambda helm: helm.extras.schedules.run_now(reference))
    print_result(f"Begun as task {task.id}.", task_as_dict(task), as_json=as_json)


def _change(change: Callable[[Schedules], Awaitable[Schedule]], said: str, *, as_json: bool) -> None:
    from helmsman.shapes.schedules import schedule_as_dict

    host().begin_change()
    schedule = with_helmsman(lambda helm: change(helm.extras.schedules))
    sentence = said.format(id=schedule.id, next=_next(schedule))
    print_result(sentence, schedule_as_dict(schedule), as_json=as_json)


def _cells(schedule: Schedule, task: Task | None) -> tuple[str, ...]:
    from helmsman.shapes.schedules import standing

    last = schedule.last
    # A run without a task was left out, and its note says why.
    ran = "" if last is None else _what_came(last, task) if last.task_id else one_line(last.note or "")
    return schedule.id, standing(schedule), _next(schedule), str(schedule.when), ran, one_line(schedule.prompt)[:500]


def _told(run: ScheduleRun, task: Task | None) -> str:
    what = _what_came(run, task) if run.task_id is not None else f"left out: {one_line(run.note or '')}"
    return f"{local(run.due_at)}  {what}"


def _what_came(run: ScheduleRun, task: Task | None) -> str:
    return f"{run.task_id} {'gone' if task is None else task_word(task)}"


def _next(schedule: Schedule) -> str:
    if schedule.next_at is None:
        return "never"
    # A due time may just have passed.
    left = max((schedule.next_at - datetime.now(UTC)).total_seconds(), 0)
    days, hours = divmod(int(left // 3600), 24)
    about = f"{days} d {hours} h" if days else in_words(left if left < 60 else left // 60 * 60)
    return f"{local(schedule.next_at)} (in {about})"
