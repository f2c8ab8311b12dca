"""The group of all commands: its help, its exit codes, and what every command has in common.

A command's module is imported when the command is called. The modules themselves import only what their options need;
tables, web servers and Codex are left for when they run.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman._version import __version__
from helmsman.cli.exit_codes import ExitCode, exit_code_of
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADINGS: Final = {
    "Start and follow": {
        "run": "helmsman.cli.run",
        "plan": "helmsman.cli.plan",
        "review": "helmsman.cli.review",
        "say": "helmsman.cli.say",
        "status": "helmsman.cli.status",
        "watch": "helmsman.cli.watch",
        "dashboard": "helmsman.cli.dashboard",
    },
    "Answer and stop": {
        "respond": "helmsman.cli.respond",
        "steer": "helmsman.cli.steer",
        "interrupt": "helmsman.cli.interrupt",
        "rules": "helmsman.cli.rules",
    },
    "Sessions": {
        "list": "helmsman.cli.list_sessions",
        "fork": "helmsman.cli.fork",
        "rollback": "helmsman.cli.rollback",
        "compact": "helmsman.cli.compact",
        "goal": "helmsman.cli.goal",
        "rename": "helmsman.cli.rename",
        "archive": "helmsman.cli.archive",
        "unarchive": "helmsman.cli.unarchive",
    },
    "Changes": {
        "diff": "helmsman.cli.diff",
        "apply": "helmsman.cli.apply",
        "discard": "helmsman.cli.discard",
        "worktrees": "helmsman.cli.worktrees",
    },
    "Tasks and cloud": {
        "tasks": "helmsman.cli.tasks",
    },
    "Codex itself": {
        "models": "helmsman.cli.models",
        "account": "helmsman.cli.account",
        "usage": "helmsman.cli.usage",
        "engines": "helmsman.cli.engines",
    },
    "Set-up": {
        "demo": "helmsman.cli.demo",
        "doctor": "helmsman.cli.doctor",
        "install": "helmsman.cli.install",
        "uninstall": "helmsman.cli.uninstall",
        "serve": "helmsman.cli.serve",
        "completion": "helmsman.cli.completion",
    },
}
"""Each command's module under its heading, in the order of the help; the command is the `command` in it."""

_COMMANDS: Final = {name: module for commands in _HEADINGS.values() for name, module in commands.items()}
_NAME_WIDTH: Final = max(map(len, _COMMANDS))


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in _HEADINGS.items():
            with formatter.section(heading):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                # Names of one width put the second column of every heading in the same place.
                formatter.write_dl(
                    [(f"{name:<{_NAME_WIDTH}}", command.short_help or "") for name, command in commands if command]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), code.text) for code in ExitCode])


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"helmsman {__version__}")
        ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Try it without an account:
  helmsman demo

Settings come from options, then the environment (CODEX_CLI_PATH, CODEX_HOME, …), then helmsman.toml.
""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def app() -> None:
    """Steer OpenAI Codex: start work, follow it, answer its questions, stop it."""


def run() -> None:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still gets the line
    try:
        code = app.main(standalone_mode=False, prog_name="helmsman")
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough (`helmsman list | head`). Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.FAILED
    sys.exit(code if isinstance(code, int) else ExitCode.OK)


def reports_errors(body: Callable[..., int | None]) -> Callable[..., int]:
    """Let a command raise Helmsman's errors: they are shown, as JSON where `--json` was given, and become exit codes."""

    @functools.wraps(body)
    def command(*args: Any, **kwargs: Any) -> int:
        try:
            return body(*args, **kwargs) or ExitCode.OK
        except HelmsmanError as error:
            code = exit_code_of(error)
            if kwargs.get("as_json"):
                from helmsman.shapes.rendering import json_line

                click.echo(json_line({"type": "result", "status": "error", "error": error.as_dict(), "exitCode": code}))
            else:
                from helmsman.base.shown_text import visible

                click.echo(f"Error: {visible(error.message)}", err=True)
            return code

    return command


json_option: Final = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout, for programs.")
