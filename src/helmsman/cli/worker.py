"""`helmsman fleet worker`: make this machine part of a fleet."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import TYPE_CHECKING, Final

import click

from helmsman.base.structs import replace
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import PROCESS_LOG, log_to_stderr
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.fleet import fleet_url, with_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.fleet.worker import WorkerOptions
    from helmsman.settings import Settings

_LEAVE_SECONDS: Final = 20  # time for an orderly shutdown
_DIE_SECONDS: Final = 5  # time for shutdown if other machines have taken over the work


@cli_command(
    "worker",
    "Add this machine to a fleet.",
    "helmsman fleet worker",
    "helmsman fleet worker --name build-1 --capacity 8 --label gpu",
    has_json=False,
)
@click.option("--name", metavar="NAME", help="What this machine is called in the fleet. Default: its host name.")
@click.option(
    "--capacity", type=click.IntRange(1, 1000), default=4, show_default=True, help="How many tasks it runs at once."
)
@click.option("--label", "labels", metavar="LABEL", multiple=True, help="Something that tasks can ask for. Repeatable.")
@click.option(
    "--agent", "agents", metavar="AGENT", multiple=True, help="An agent that it runs. Repeatable. Default: codex."
)
@click.option(
    "--lease",
    type=click.FloatRange(2, 600),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="After this long without a sign of life, the others take its work.",
)
def command(name: str | None, capacity: int, labels: tuple[str, ...], agents: tuple[str, ...], lease: float) -> int:
    """Take tasks of the fleet that HELMSMAN_FLEET_URL names, and run them on this machine.

    When stopped (SIGTERM, Ctrl-C), it hands its running work over to the others. Exit code 75: the others considered it dead
    and took its work; start it again.
    """
    with_fleet()
    import anyio

    from helmsman.fleet.worker import DIRECTORY, WorkerOptions
    from helmsman.settings import load_settings

    url = fleet_url()
    state_dir = load_settings().state_dir / DIRECTORY
    settings = load_settings({"state_dir": state_dir / "service", "max_sessions": capacity, "detach": True})
    settings = replace(settings, fleet_url=None)  # this machine does the work itself
    log_to_stderr(PROCESS_LOG, settings.log_level)
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
    from helmsman.base.concurrency import background_tasks
    from helmsman.capabilities.limits import ANSWERED_WITHIN
    from helmsman.cli.signals import exit_after, handle_signals
    from helmsman.fleet.lease import DeclaredDead
    from helmsman.fleet.worker import DECLARED_DEAD, Worker
    from helmsman.service import HelmsmanService
    from helmsman.steering.shared import Shared

    exit_code = ExitCode.OK

    def stop(code: ExitCode) -> None:
        nonlocal exit_code
        exit_code = code
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
        if not name.startswith(("HELMSMAN_", "PG")) and url not in value
    }
