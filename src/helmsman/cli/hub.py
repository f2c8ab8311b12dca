"""`helmsman hub`: show and stop the process that holds all sessions, and print its log."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.output import counted, print_json

if TYPE_CHECKING:
    from pathlib import Path

_NONE: Final = "No hub is running. One starts with the first client."
_LOG_LINES: Final = 50
_POLL_SECONDS: Final = 0.25


@cli_group(
    "hub",
    "Look at the hub, stop it, read its log and its store.",
    "helmsman hub",
    "helmsman hub log -f",
    "helmsman hub restart",
    modules={"store": "store:command"},
)
def command(as_json: bool) -> None:
    """Look at the hub: the process that holds all sessions, one for each user and state directory.

    It starts with the first client and ends by itself when nobody is connected and nothing runs (HELMSMAN_HUB_IDLE_MS).
    Clients do not notice when it ends: the next one continues where it left off.
    """
    _show(as_json=as_json)


@cli_command("status", "Show the hub and who is connected.", "helmsman hub status --json", group=command)
def _status(as_json: bool) -> None:
    """Show the hub: its version, process, uptime and memory, who is connected, and which engines run."""
    _show(as_json=as_json)


def _show(*, as_json: bool) -> None:
    from helmsman.agents.registry import engine_overviews
    from helmsman.hub.control import ask_hub

    state_dir = settings_of_command().state_dir
    hub = ask_hub(state_dir, "status")
    if as_json:
        print_json({"hub": hub, "engines": engine_overviews(state_dir)})
        return
    if hub is None:
        click.echo(_NONE, err=True)
        return
    memory = f", {hub['memoryBytes'] / 1e6:.0f} MB" if hub["memoryBytes"] else ""
    up = timedelta(seconds=round(hub["uptimeSeconds"]))
    click.echo(f"Hub {hub['pid']}, version {hub['version']}, up {up}{memory}, epoch {hub['epoch']}")
    click.echo(f"State directory: {one_line(hub['stateDirectory'])}")
    click.echo(f"At work: {counted(hub['sessionsAtWork'], 'session')}")
    if hub.get("nextScheduleAt"):
        click.echo(f"Next schedule: {datetime.fromisoformat(hub['nextScheduleAt']).astimezone():%Y-%m-%d %H:%M}")
    if hub.get("noticesPending"):
        click.echo(f"Waiting to be sent: {counted(hub['noticesPending'], 'notice')}")
    click.echo(f"Engines: {len(engine_overviews(state_dir))}")
    click.echo(f"Clients: {len(hub['doors'])}")
    for client in hub["clients"]:
        name = f" ({one_line(client['client'])})" if client.get("client") else ""
        click.echo(f"  {client['pid']}  {client['kind']}{name}  {one_line(client['directory'])}")


@cli_command("run", "Keep a hub running.", "helmsman hub run", group=command, has_json=False)
def _run() -> None:
    """Keep a hub running, and start the next one when it dies, until `helmsman hub stop`. A system service runs this.

    Schedules and notices then need no client. `helmsman hub install` starts it with the machine.
    """
    from helmsman.errors import HelmsmanError
    from helmsman.hub.control import keep_hub
    from helmsman.hub.launch import HubFailed, NoHub

    try:
        keep_hub(settings_of_command().state_dir)
    except (NoHub, HubFailed) as error:
        raise HelmsmanError(f"There can be no hub here: {error}") from error


@cli_command(
    "install",
    "Start the hub with the machine.",
    "helmsman hub install",
    "helmsman hub install --yes",
    group=command,
)
@yes_option
def _install(agreed: bool, as_json: bool) -> None:
    """Start the hub with the machine, as your own service (systemd on Linux, launchd on macOS).

    What is written is shown first. Schedules then run after a restart without any client.
    """
    from helmsman.cli.hub_service import service_of

    service = service_of(settings_of_command().state_dir)
    service.refuse_if_nobody_reads_it()
    if not as_json:
        click.echo(f"{one_line(str(service.path))}:\n\n{visible(service.text)}", err=True)
    agree(
        "Write this file, and start the service?",
        agreed=agreed,
        as_json=as_json,
        otherwise="A file in your home would be written.",
    )
    left = service.install()
    if as_json:
        print_json({"installed": str(service.path), "toDo": left})
    else:
        click.echo("Installed." if left is None else f"Written. {left}", err=True)


@cli_command("uninstall", "Stop starting the hub with the machine.", "helmsman hub uninstall", group=command)
def _uninstall(as_json: bool) -> None:
    """Remove what `helmsman hub install` wrote. A running hub keeps running."""
    from helmsman.cli.hub_service import service_of

    service = service_of(settings_of_command().state_dir)
    was_there = service.uninstall()
    if as_json:
        print_json({"uninstalled": str(service.path) if was_there else None})
    else:
        click.echo(f"Removed {service.path}." if was_there else "It was not installed.", err=True)


@cli_command("stop", "Stop the hub.", "helmsman hub stop", group=command)
@yes_option
def _stop(agreed: bool, as_json: bool) -> None:
    """Stop the hub. Turns keep running in their engines; the next client request starts the next hub.

    On a terminal you are asked first if something is running.
    """
    _end("stop", agreed=agreed, as_json=as_json)


@cli_command("restart", "Stop the hub and let the next one take over.", "helmsman hub restart", group=command)
@yes_option
def _restart(agreed: bool, as_json: bool) -> None:
    """Stop the hub and let the next one take over, at once if clients are connected. Turns keep running in their engines."""
    _end("restart", agreed=agreed, as_json=as_json)


def _end(how: str, *, agreed: bool, as_json: bool) -> None:
    from helmsman.hub.control import ask_hub

    state_dir = settings_of_command().state_dir
    hub = ask_hub(state_dir, "status")
    if hub is not None and hub["sessionsAtWork"]:
        count = counted(hub["sessionsAtWork"], "session")
        fate = "Turns keep running in their engines, and their questions and queued messages wait for the next hub."
        agree(f"{count} running. {fate} Stop the hub?", agreed=agreed, as_json=as_json, otherwise=None)
    stopped: dict[str, Any] | None = ask_hub(state_dir, how) if hub is not None else None
    if as_json:
        print_json({"stopped": None if stopped is None else stopped["pid"]})
    else:
        then = " Clients that are connected start the next one." if how == "restart" else ""
        click.echo(_NONE if stopped is None else f"Stopped hub {stopped['pid']}.{then}", err=True)


@cli_command(
    "connect",
    "Connect another machine to the hub.",
    "ssh build helmsman hub connect",
    group=command,
    has_json=False,
)
@click.argument("state", metavar="[STATE]", required=False)
def _connect(state: str | None) -> int:
    """Connect stdin and stdout to the hub: what `helmsman --host NAME` runs on this machine, over SSH.

    It is not for people. STATE is a state directory, in hex.
    """
    from helmsman.hub.bridge import run_bridge

    return run_bridge(() if state is None else (state,))


@cli_command("log", "Read the hub's log.", "helmsman hub log -f", group=command, has_json=False)
@click.option("-f", "--follow", is_flag=True, help="Keep reading until Ctrl-C.")
def _log(follow: bool) -> None:
    """Read the end of the hub's log."""
    from helmsman.hub.launch import LOG

    path = settings_of_command().state_dir / LOG
    if not path.exists():
        click.echo(f"There is no log yet: {path}", err=True)
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file.readlines()[-_LOG_LINES:]:
            click.echo(visible(line.rstrip("\n")))
        position = file.tell()
    while follow:
        position = _print_rest(path, position)
        time.sleep(_POLL_SECONDS)


def _print_rest(path: Path, position: int) -> int:
    """Print lines added since `position`; a shorter file is a new log."""
    with path.open(encoding="utf-8", errors="replace") as file:
        file.seek(position if position <= os.fstat(file.fileno()).st_size else 0)
        for line in file:
            click.echo(visible(line.rstrip("\n")))
        return file.tell()
