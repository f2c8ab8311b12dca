"""`helmsman engines`: the Codex engines that outlive the processes using them; list and stop them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from helmsman.settings import Settings


@click.group(
    "engines",
    invoke_without_command=True,
    short_help="List and stop the engines that run without you.",
    epilog="""\b
Examples:
  helmsman engines
  helmsman engines stop 3f2a9c1e
  helmsman engines stop --all
""",
)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int | None:
    """List and stop the Codex engines that go on working when the process that started them has ended.

    An engine that nobody uses and in which nothing runs ends by itself after HELMSMAN_ENGINE_IDLE_MS (15 minutes).
    """
    ctx.obj = as_json
    if ctx.invoked_subcommand is None:
        return list_engines(as_json=as_json)
    return None


@reports_errors
def list_engines(*, as_json: bool) -> None:
    """List the engines that run, oldest first."""
    from helmsman.agents.codex.detached.overview import engine_overviews
    from helmsman.cli.consoles import is_terminal, result_console
    from helmsman.shapes.rendering import json_line

    engines = engine_overviews(_settings().state_dir)
    if as_json:
        click.echo(json_line({"engines": engines}))
    elif not engines:
        click.echo("No engine is running. One starts with the first session.", err=True)
    elif is_terminal(console := result_console()):
        _print_table(console, engines)
    else:
        for engine in engines:
            cells = ("id", "codexVersion", "status", "running", "waiting", "pid", "startedAt", "codexHome")
            click.echo("\t".join("" if engine[cell] is None else str(engine[cell]) for cell in cells))


@command.command(
    "list",
    short_help="List the engines that run.",
    epilog="""\b
Example:
  helmsman engines list --json
""",
)
@json_option
@click.pass_obj
def _list(json_of_group: bool, as_json: bool) -> int:
    """List the engines that run, oldest first.

    Not on a terminal, the columns are separated by tabs: id, version, status, turns at work, turns that wait for an answer,
    process id, start, CODEX_HOME.
    """
    return list_engines(as_json=as_json or json_of_group)


@command.command(
    "stop",
    short_help="Stop an engine and all that runs in it.",
    epilog="""\b
Examples:
  helmsman engines stop 3f2a9c1e
  helmsman engines stop --all
""",
)
@click.argument("engine_id", metavar="ID", required=False)
@click.option("--all", "every", is_flag=True, help="Stop all of them.")
@yes_option
@json_option
@click.pass_obj
def _stop(json_of_group: bool, engine_id: str | None, every: bool, agreed: bool, as_json: bool) -> int:
    """Stop an engine and all that runs in it: its turns are interrupted; their sessions can go on later.

    At a terminal you are asked first if turns are under way.
    """
    return stop_engines(engine_id, every=every, agreed=agreed, as_json=as_json or json_of_group)


@reports_errors
def stop_engines(engine_id: str | None, *, every: bool, agreed: bool, as_json: bool) -> int:
    """Stop the engine with this id (any unique beginning will do), or every one."""
    from helmsman.agents.codex.detached.engines import stop_engine
    from helmsman.agents.codex.detached.overview import engine_overviews
    from helmsman.agents.codex.detached.records import read_records
    from helmsman.errors import InvalidInput
    from helmsman.shapes.rendering import json_line

    if (engine_id is None) is not every:
        raise InvalidInput("Name one engine, or give --all. `helmsman engines` lists them.")
    state_dir = _settings().state_dir
    found = [record for record in read_records(state_dir) if every or record.id.startswith(engine_id or "")]
    if engine_id is not None and len(found) != 1:
        problem = "There is no engine" if not found else "There is more than one engine"
        raise InvalidInput(f"{problem} {engine_id}. `helmsman engines` lists them.")
    meant = {record.id for record in found}
    under_way = sum(
        (engine["running"] or 0) + (engine["waiting"] or 0)
        for engine in engine_overviews(state_dir)
        if engine["id"] in meant
    )
    if under_way and not agree(
        f"{under_way} turn(s) under way are interrupted. Stop?", agreed=agreed, as_json=as_json, otherwise=None
    ):
        return ExitCode.FAILED
    for record in found:
        stop_engine(record)
        if not as_json:
            click.echo(f"Stopped engine {record.id}.", err=True)
    if as_json:
        click.echo(json_line({"stopped": [record.id for record in found]}))
    elif not found:
        click.echo("No engine is running.", err=True)
    return ExitCode.OK


def _settings() -> Settings:
    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    return settings


def _print_table(console: Console, engines: list[dict[str, Any]]) -> None:
    from helmsman.base.shown_text import one_line
    from helmsman.cli.list_sessions import ago
    from helmsman.cli.tables import Column, fitting_table

    now = datetime.now(UTC)
    rows: list[tuple[str, ...]] = []
    for engine in engines:
        age: timedelta = now - datetime.fromisoformat(engine["startedAt"])
        known = (engine["id"], engine["codexVersion"], engine["status"], _turns(engine), ago(age))
        rows.append((*known, one_line(engine["codexHome"])))
    columns = (
        Column("ID", "cyan"),
        Column("CODEX"),
        Column("STATUS"),
        Column("TURNS"),
        Column("STARTED", left_out=2),
        Column("HOME", "dim", gives_way="at its beginning", left_out=1),
    )
    console.print(fitting_table(console, columns, rows))


def _turns(engine: dict[str, Any]) -> str:
    parts = [f"{engine['running']} running"] if engine["running"] else []
    parts += [f"{engine['waiting']} asking"] if engine["waiting"] else []
    return ", ".join(parts) or "none"
