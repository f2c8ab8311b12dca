"""`helmsman engines`: list and stop the engines that outlive the processes using them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.output import counted, print_json, print_list
from helmsman.cli.tables import Column, ago
from helmsman.errors import InvalidInput

_COLUMNS: Final = (
    Column("ID", "cyan"),
    Column("AGENT"),
    Column("VERSION"),
    Column("STATUS"),
    Column("TURNS"),
    Column("STARTED", left_out=2),
    Column("PLACE", "dim", gives_way="at its beginning", left_out=1),
)
_FIELDS: Final = ("id", "version", "status", "running", "waiting", "pid", "startedAt", "place", "agent")


@cli_group(
    "engines",
    "List and stop the engines that run without you.",
    "helmsman engines",
    "helmsman engines stop 3f2a9c1e",
    "helmsman engines stop --all",
)
def command(as_json: bool) -> None:
    """List and stop the engines that keep working after the process that started them has ended.

    One Codex engine holds all its sessions, an engine of another agent holds one. An engine that nobody uses and that runs
    nothing ends by itself after HELMSMAN_ENGINE_IDLE_MS (15 minutes).
    """
    _list_engines(as_json=as_json)


@cli_command("list", "List the running engines.", "helmsman engines list --json", group=command)
def _list(as_json: bool) -> None:
    """List the running engines, oldest first.

    Not on a terminal, the columns are separated by tabs: id, version, status, turns running, turns waiting for an answer,
    process id, start, where it is (Codex's home, or the session's directory), agent.
    """
    _list_engines(as_json=as_json)


def _list_engines(*, as_json: bool) -> None:
    from helmsman.agents.registry import engine_overviews

    engines = engine_overviews(settings_of_command().state_dir)
    print_list(
        {"engines": engines},
        [["" if engine[field] is None else str(engine[field]) for field in _FIELDS] for engine in engines],
        _COLUMNS,
        lambda _: [_cells(engine) for engine in engines],
        nothing="No engine is running. One starts with the first session.",
        as_json=as_json,
    )


@cli_command(
    "stop",
    "Stop an engine and everything in it.",
    "helmsman engines stop 3f2a9c1e",
    "helmsman engines stop --all",
    group=command,
)
@click.argument("engine_id", metavar="ID", required=False)
@click.option("--all", "every", is_flag=True, help="Stop all of them.")
@yes_option
def _stop(engine_id: str | None, every: bool, agreed: bool, as_json: bool) -> None:
    """Stop an engine and everything in it: its turns are interrupted; their sessions can be continued later.

    On a terminal you are asked first if turns are running.
    """
    from helmsman.agents.registry import engine_overviews, stop_engine

    if (engine_id is None) is not every:
        raise InvalidInput("Name one engine, or give --all. `helmsman engines` lists them.")
    state_dir = settings_of_command().state_dir
    found = [engine for engine in engine_overviews(state_dir) if every or engine["id"].startswith(engine_id or "")]
    if engine_id is not None and len(found) != 1:
        problem = "There is no engine" if not found else "There is more than one engine"
        raise InvalidInput(f"{problem} {engine_id}. `helmsman engines` lists them.")
    under_way = sum((engine["running"] or 0) + (engine["waiting"] or 0) for engine in found)
    if under_way:
        lost = f"{counted(under_way, 'turn')} under way {'is' if under_way == 1 else 'are'} interrupted."
        agree(f"{lost} Stop?", agreed=agreed, as_json=as_json, otherwise=None)
    for engine in found:
        stop_engine(state_dir, engine["id"])
        if not as_json:
            click.echo(f"Stopped engine {engine['id']}.", err=True)
    if as_json:
        print_json({"stopped": [engine["id"] for engine in found]})
    elif not found:
        click.echo("No engine is running.", err=True)


def _cells(engine: dict[str, Any]) -> tuple[str, ...]:
    started = ago(datetime.fromisoformat(engine["startedAt"]))
    known = (
        engine["id"],
        engine["agent"],
        one_line(engine["version"] or ""),
        engine["status"],
        _turns(engine),
        started,
    )
    return *known, one_line(engine["place"])


def _turns(engine: dict[str, Any]) -> str:
    parts = [f"{engine['running']} running"] if engine["running"] else []
    parts += [f"{engine['waiting']} asking"] if engine["waiting"] else []
    return ", ".join(parts) or "none"
