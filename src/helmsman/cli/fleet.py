"""`helmsman fleet`: run several machines as one, with a Postgres database."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import TYPE_CHECKING, Final, TypeVar

import click

from helmsman.base.caller_context import FLEET_URL
from helmsman.base.concurrency import background_tasks
from helmsman.base.sanitize import one_line
from helmsman.base.structs import replace
from helmsman.base.truncate import counted
from helmsman.cli.command import cli_command, cli_group, option
from helmsman.cli.consoles import PROCESS_LOG, log_to_stderr, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import print_json, print_result
from helmsman.cli.signals import exit_after, handle_signals
from helmsman.errors import FleetNotReady, InvalidInput, InvalidSetting
from helmsman.settings import load_settings
from helmsman.shapes.rendering import budget_as_dict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from helmsman.capabilities.budgets import BudgetState
    from helmsman.fleet.client import FleetClient
    from helmsman.fleet.doctor import FleetCheck
    from helmsman.fleet.values import Machine
    from helmsman.fleet.worker import WorkerOptions
    from helmsman.settings import Settings

ResultT = TypeVar("ResultT")
_MARKS: Final = {"ok": "ok", "warning": "!", "wrong": "✗"}


def with_fleet() -> None:
    """Check that the dependencies of a fleet are installed.

    Raises:
        FleetNotReady: One is missing.
    """
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise FleetNotReady(f'{error.name} is missing. Install it: pip install "codex-helmsman[fleet]"') from error


def fleet_url() -> str:
    """Return the address of the fleet's database.

    Raises:
        InvalidSetting: It is not set.
    """
    url = settings_of_command().fleet_url
    if url is None:
        raise InvalidSetting(f"{FLEET_URL} is not set. It is the address of the fleet: postgresql://USER@HOST/DATABASE")
    return url


@cli_group(
    "fleet",
    "Several machines as one, on Postgres.",
    "helmsman fleet init postgresql://me@db.example/fleet",
    itself=None,
)
def command(as_json: bool) -> None:
    """Several machines as one: `fleet init` once, `fleet worker` on each machine, HELMSMAN_FLEET_URL on every client."""
    click.echo(click.get_current_context().get_help())


@cli_command(
    "init",
    "Prepare a database for a fleet.",
    "helmsman fleet init postgresql://me@db.example/fleet",
    group=command,
)
@click.argument("url", required=False)
def _init(url: str | None, as_json: bool) -> int:
    """Prepare a Postgres database for a fleet, or update it; workers can keep running.

    Without URL, HELMSMAN_FLEET_URL is used.
    """
    with_fleet()
    import anyio

    from helmsman.fleet.setup import init_fleet

    checks = anyio.run(init_fleet, url or fleet_url())
    if as_json:
        print_json({"checks": [one._asdict() for one in checks]})
        return ExitCode.OK
    _print_checks(checks)
    click.echo(
        "The fleet is ready. Start `helmsman fleet worker` on its machines, and set HELMSMAN_FLEET_URL there and here."
    )
    return ExitCode.OK


def _ask(do: Callable[[FleetClient], Awaitable[ResultT]]) -> ResultT:
    with_fleet()
    import anyio

    from helmsman.fleet.client import FleetClient

    # Straight to the database: no hub is needed to look at a fleet.
    async def ask() -> ResultT:
        async with FleetClient(fleet_url()) as client:
            return await do(client)

    return anyio.run(ask)


@cli_command("status", "Show the machines of the fleet, and what is waiting.", "helmsman fleet status", group=command)
def _status(as_json: bool) -> int:
    """Show the machines of the fleet with their load, and how many tasks are waiting in each queue."""

    async def look(client: FleetClient) -> tuple[Sequence[Machine], Mapping[str, int]]:
        return await client.machines(), await client.waiting()

    machines, waiting = _ask(look)
    if as_json:
        print_json({"machines": [machine.as_dict() for machine in machines], "waiting": dict(waiting)})
        return ExitCode.OK
    for machine in machines:
        # A machine that drains may also be alive, and draining says more.
        state = "draining" if machine.is_draining else "up" if machine.is_alive else "silent"
        agents = ", ".join(f"{agent} {version}".strip() for agent, version in sorted(machine.agents.items()))
        labels = ", ".join(machine.as_dict()["labels"])
        has = "  ".join(filter(None, (agents, labels, machine.version)))
        click.echo(f"{machine.name:<20} {state:<9} {machine.running} of {machine.capacity} running  {one_line(has)}")
    if not machines:
        click.echo("No machine is part of the fleet. Start `helmsman fleet worker` on one.", err=True)
    for queue, count in waiting.items():
        click.echo(f"{counted(count, 'task')} waiting for {queue}")
    return ExitCode.OK


@cli_command("drain", "Stop a machine from taking new work.", "helmsman fleet drain build-1", group=command)
@click.argument("machine")
def _drain(machine: str, as_json: bool) -> int:
    """Stop a machine from taking new work. Its worker exits when nothing is running there."""
    if not _ask(lambda client: client.drain(machine)):
        raise InvalidInput(f"There is no machine {machine} in the fleet. `helmsman fleet status` shows them.")
    said = f"{machine} takes no new work. Its worker exits when nothing is running there."
    print_result(said, {"machine": machine, "isDraining": True}, as_json=as_json)
    return ExitCode.OK


@cli_command(
    "budget",
    "Show or set what the fleet may spend.",
    "helmsman fleet budget",
    "helmsman fleet budget day_usd=25 task_usd=5 project_day_usd=none",
    group=command,
)
@click.argument("amounts", metavar="[KEY=AMOUNT]...", nargs=-1)
def _budget(amounts: tuple[str, ...], as_json: bool) -> int:
    """Show what all machines of the fleet together may spend, or set it. KEY is as in [budget]; `none` removes an amount.

    When one is used up, the fleet asks a question. Days are those of UTC.
    """
    given = dict(amount.partition("=")[::2] for amount in amounts)

    async def ask(client: FleetClient) -> tuple[Mapping[str, float], Sequence[BudgetState]]:
        from helmsman.fleet.budgets import budget_of_fleet, set_budget
        from helmsman.tasks.prices import Prices

        # Set first, so that the answer shows what holds from now on.
        if given:
            await set_budget(client.database, given)
        return await budget_of_fleet(client.database, Prices.load(load_settings().files))

    budget, states = _ask(ask)
    if as_json:
        print_json({"budget": dict(budget), "today": [budget_as_dict(state) for state in states]})
        return ExitCode.OK
    for key, amount in budget.items():
        click.echo(f"{key:<20} {amount:g}")
    for state in states:
        click.echo(f"{state.key}: {state.in_words()}" + (f" ({one_line(state.project)})" if state.project else ""))
    if not budget:
        click.echo("The fleet has no budget. Set one: helmsman fleet budget day_usd=25", err=True)
    return ExitCode.OK


@cli_command("doctor", "Check the fleet.", "helmsman fleet doctor", group=command)
def _doctor(as_json: bool) -> int:
    """Check the database, the machines and the queues. The exit code is 1 if something is wrong."""

    async def look(client: FleetClient) -> Sequence[FleetCheck]:
        from helmsman.fleet.doctor import check_database, check_fleet

        return [*await check_database(client.database), *await check_fleet(client)]

    checks = _ask(look)
    if as_json:
        print_json({"checks": [one._asdict() for one in checks]})
    else:
        _print_checks(checks)
    return ExitCode.FAILED if any(one.verdict == "wrong" for one in checks) else ExitCode.OK


def _print_checks(checks: Sequence[FleetCheck]) -> None:
    for check in checks:
        click.echo(f"  {_MARKS[check.verdict]:<3} {check.name}: {one_line(check.text)}")


_LEAVE_SECONDS: Final = 20  # time for an orderly shutdown
_DIE_SECONDS: Final = 5  # time for shutdown if other machines have taken over the work


@cli_command(
    "worker",
    "Add this machine to a fleet.",
    "helmsman fleet worker",
    "helmsman fleet worker --name build-1 --capacity 8 --label gpu",
    has_json=False,
    group=command,
)
@option("--name NAME", "What this machine is called in the fleet. Default: its host name.")
@option("--capacity", "How many tasks it runs at once.", type=click.IntRange(1, 1000), default=4)
@option("--label LABEL...", "Something that tasks can ask for. Repeatable.", to="labels")
@option("--agent AGENT...", "An agent that it runs. Repeatable. Default: codex.", to="agents")
@option(
    "--lease SECONDS",
    "After this long without a sign of life, the others take its work.",
    type=click.FloatRange(2, 600),
    default=30,
)
def worker_command(
    name: str | None, capacity: int, labels: tuple[str, ...], agents: tuple[str, ...], lease: float
) -> int:
    """Take tasks of the fleet that HELMSMAN_FLEET_URL names, and run them on this machine.

    When stopped (SIGTERM, Ctrl-C), it hands its running work over to the others. Exit code 75: the others considered it dead
    and took its work; start it again.
    """
    with_fleet()
    import anyio

    from helmsman.fleet.worker import DIRECTORY, WorkerOptions

    url = fleet_url()
    state_dir = load_settings().state_dir / DIRECTORY
    # A state directory of its own, so that the worker and the user's hub do not share one.
    settings = load_settings({"state_dir": state_dir / "service", "max_sessions": capacity, "detach": True})
    settings = replace(settings, fleet_url=None)  # this machine does the work itself
    log_to_stderr(PROCESS_LOG, settings.log_level)
    # Names of machines are part of queues in the database.
    name = name or re.sub(r"[^a-z0-9._-]", "-", platform.node().lower())[:40] or "machine"
    options = WorkerOptions(
        url=url,
        name=name,
        agents=tuple(dict.fromkeys(agents or ("codex",))),
        labels=labels,
        capacity=capacity,
        lease=lease,
    )
    code = anyio.run(_work, options, settings, state_dir)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads may still read from agents, and would delay the exit


async def _work(options: WorkerOptions, settings: Settings, directory: Path) -> int:
    from helmsman.agents.registry import Owner
    from helmsman.capabilities.limits import ANSWERED_WITHIN
    from helmsman.fleet.lease import DeclaredDead
    from helmsman.fleet.worker import DECLARED_DEAD, Worker
    from helmsman.service import HelmsmanService
    from helmsman.steering.shared import Shared

    exit_code = ExitCode.OK

    def stop(code: ExitCode) -> None:
        nonlocal exit_code
        exit_code = code
        # Work that cannot be handed over in time is taken by the others when the lease ends.
        exit_after(_LEAVE_SECONDS, code)
        worker.stop()

    async def announce() -> None:
        await worker.ready.wait()
        click.echo(f"{options.name} is part of the fleet: {options.capacity} at once.", err=True)

    env = _environment_of_agents(options.url)
    async with Worker(options, directory) as worker, background_tasks() as tasks:
        await tasks.start(handle_signals, stop)
        tasks.start_soon(announce)
        try:
            # Agents run under supervisors with a lease watchdog, and end when the lease does, even if this process
            # hangs.
            shared = Shared(
                settings.state_dir,
                owner=Owner(lease=worker.lease),
                files=settings.files,
                retention_days=settings.retention_days,
            )
            patience = replace(settings, approval_timeout=ANSWERED_WITHIN.total_seconds())
            async with (
                shared,
                HelmsmanService(settings, env=env, shared=shared) as helm,
                HelmsmanService(patience, env=env, shared=shared) as patient,
            ):
                try:
                    await worker.serve(helm, patient)
                except DeclaredDead:
                    # The others work on these tasks already, so this process must not go on.
                    exit_after(_DIE_SECONDS, DECLARED_DEAD)
                    raise
        except DeclaredDead:
            click.echo("The fleet considered this machine dead, and others took its work. Start it again.", err=True)
            return DECLARED_DEAD
        await worker.hand_over()
    return exit_code


def _environment_of_agents(url: str) -> Mapping[str, str]:
    """Return the environment without the fleet's variables: agents must not reach its database."""
    return {
        name: value
        for name, value in os.environ.items()
        # The address may also be in a variable of another name.
        if not name.startswith(("HELMSMAN_", "PG")) and url not in value
    }
