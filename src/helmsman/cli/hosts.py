"""`helmsman config hosts`: add, check and remove other machines whose hubs are reached by SSH."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from helmsman._version import __version__
from helmsman.base.caller_context import environment
from helmsman.base.files import file_lock, replace_file
from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import Column, print_json, print_list, print_result
from helmsman.errors import HelmsmanError, HostUnreachable, InvalidInput
from helmsman.hub.hosts import HostFailed, checked_host, hosts_file, known_hosts
from helmsman.hub.launch import is_newer

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.hub.hosts import OtherHost

_COLUMNS: Final = (Column("HOST", "cyan"), Column("ADDRESS"), Column("HELMSMAN THERE", usual=""))
_LOCK_SECONDS: Final = 10.0


@cli_group(
    "hosts",
    "Work on other machines, over SSH.",
    "helmsman config hosts add build ssh://me@build",
    "helmsman config hosts check",
    "helmsman --host build list",
)
def command(as_json: bool) -> None:
    """List the machines that `helmsman --host NAME` can work on: over SSH, with the Helmsman installed there.

    They are stored next to your own helmsman.toml, for you only; a repository cannot add one.
    """
    hosts = sorted(_known().values())
    rows = [list(host) for host in hosts]
    nothing = "No other machine is known. Add one: helmsman config hosts add build ssh://me@build"
    shown = {"hosts": [_described(host) for host in hosts]}
    print_list(shown, rows, _COLUMNS, lambda _: rows, nothing=nothing, as_json=as_json)


@cli_command(
    "add",
    "Add a machine.",
    "helmsman config hosts add build ssh://me@build",
    "helmsman config hosts add lab ssh://lab:2222 --command /opt/helmsman/bin/helmsman",
    group=command,
)
@click.argument("name")
@click.argument("address")
@click.option("--command", "program", metavar="PATH", default="", help="Where helmsman is there, if not on the PATH.")
@click.option("--no-check", is_flag=True, help="Add it even if it cannot be reached now.")
def _add(name: str, address: str, program: str, no_check: bool, as_json: bool) -> int:
    """Add a machine under a NAME. ADDRESS is ssh://HOST, ssh://USER@HOST or ssh://USER@HOST:PORT.

    Your own ssh configuration applies, so HOST may be one of its names. The login must work without a prompt: with a key.
    The machine is checked at once (`helmsman config hosts check`), and added if Helmsman answers there.
    """
    try:
        host = checked_host(name, address, program)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    report = None if no_check else _checked(host)
    if report is not None and not report["ok"]:
        _show([report], as_json=as_json)
        if not as_json:
            click.echo("It was not added. --no-check adds it anyway.", err=True)
        return ExitCode.FAILED
    _change(lambda hosts: hosts.update({name: host}))
    if report is None:
        print_result(f"Added {name}, unchecked.", {"added": _described(host)}, as_json=as_json)
    else:
        _show([report], as_json=as_json)
    return ExitCode.OK


@cli_command("remove", "Remove a machine.", "helmsman config hosts remove build", group=command)
@click.argument("name")
def _remove(name: str, as_json: bool) -> None:
    """Remove a machine. Work there continues."""
    hosts = _known()
    if name not in hosts:
        raise InvalidInput(f"There is no host {name!r}. `helmsman config hosts` lists them.")
    _change(lambda hosts: hosts.pop(name, None))
    print_result(f"Removed {name}.", {"removed": name}, as_json=as_json)


@cli_command(
    "check",
    "Check whether machines answer.",
    "helmsman config hosts check",
    "helmsman config hosts check build --json",
    group=command,
)
@click.argument("name", required=False)
def _check(name: str | None, as_json: bool) -> int:
    """Check whether a machine, or each of them, answers: which Helmsman is there, which agents, and their logins."""
    hosts = _known()
    if name is not None and name not in hosts:
        raise InvalidInput(f"There is no host {name!r}. `helmsman config hosts` lists them.")
    chosen = sorted(hosts.values()) if name is None else [hosts[name]]
    reports = [_checked(host) for host in chosen]
    _show(reports, as_json=as_json)
    return ExitCode.OK if all(report["ok"] for report in reports) else ExitCode.FAILED


def _known() -> dict[str, OtherHost]:
    try:
        return known_hosts(environment())
    except HostFailed as error:
        raise HelmsmanError(str(error)) from error


def _change(change: Callable[[dict[str, OtherHost]], object]) -> None:
    path = Path(hosts_file(environment()))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_SECONDS):
            hosts = _known()
            change(hosts)
            lines = ("\t".join(host).rstrip("\t") for host in sorted(hosts.values()))
            replace_file(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise HelmsmanError(f"{path} cannot be written: {error.strerror}.") from error


def _described(host: OtherHost) -> dict[str, Any]:
    return {"name": host.name, "address": host.address, **({"command": host.command} if host.command else {})}


def _checked(host: OtherHost) -> dict[str, Any]:
    """Return the description of a reachable host with its agents. `notes` are warnings."""
    about = _described(host)
    try:
        version, agents = anyio.run(_look, host)
    except HelmsmanError as error:
        return about | {"ok": False, "error": error.as_dict()}
    except (LookupError, TypeError, ValueError, AttributeError):
        why = f"{host.name} gives an answer that cannot be read. Look there: helmsman doctor"
        return about | {"ok": False, "error": HostUnreachable(why).as_dict()}
    notes = []
    if version != __version__:
        where = "here" if is_newer(version, __version__) else f"on {host.name}"
        update = f"Update it {where}: pipx upgrade codex-helmsman"
        notes.append(f"Helmsman is {version} there and {__version__} here. {update}")
    there = [one for one in agents if one.get("installed")]
    if not there:
        notes.append("No agent is installed there. Install one there, for example: npm install -g @openai/codex")
    unknown = [one["agent"] for one in there if "login" not in one]
    notes += [f"{agent} has no login there, as far as one sees. Log in on that machine." for agent in unknown]
    kept = ("agent", "version", "login")
    shown = [{key: one[key] for key in kept if key in one} for one in there]
    return about | {"ok": True, "version": version, "agents": shown, "notes": notes}


async def _look(host: OtherHost) -> tuple[str, list[dict[str, Any]]]:
    """Return the version of Helmsman and the agents on another machine."""
    from helmsman.hub.service_client import ServiceClient
    from helmsman.shapes.agents import all_agents

    async with ServiceClient(host=host) as helm:
        agents = await all_agents(helm)
        if helm.is_lost:
            raise HostUnreachable(f"{host.name} has ended the connection. Look at its hub there: helmsman hub log")
        return helm.version_there, agents


def _show(reports: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"hosts": reports})
        return
    for report in reports:
        if not report["ok"]:
            click.echo(f"✗ {report['name']}  {one_line(report['error']['message'])}")
            continue
        agents = ", ".join(f"{one['agent']} {one.get('version', '?')}" for one in report["agents"])
        click.echo(one_line(f"✓ {report['name']}  Helmsman {report['version']}" + (f"; {agents}" if agents else "")))
        for note in report["notes"]:
            click.echo(f"  {one_line(note)}")
