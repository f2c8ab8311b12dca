"""Group of all commands: its help and its exit codes.

A command's module is imported when the command runs. The modules import only the dependencies of their options at the
top; tables, web servers and Codex are imported inside the commands.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman._version import __version__
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import Host, OtherMachine, hosted

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP_WIDTHS: Final = 50, 100  # minimum and maximum width of help

_HEADINGS: Final = {
    "Start and follow": ("run", "start", "plan", "review", "say", "status", "watch", "attach", "dashboard"),
    "Outcomes that are verified": ("debug", "refactor", "test"),
    "Answer and stop": ("questions", "respond", "steer", "interrupt", "rules"),
    "Sessions": (
        *("list", "search", "fork", "rewind", "rollback", "compact", "goal", "rename", "hand", "archive", "unarchive"),
    ),
    "Changes": ("diff", "apply", "discard", "worktrees"),
    "Tasks and cloud": ("tasks", "schedule", "notify"),
    "Agents": ("agents", "models", "account", "login", "config", "usage", "engines", "hub", "store"),
    "Several machines": ("hosts", "fleet", "worker"),
    "Set-up": ("demo", "doctor", "install", "uninstall", "serve", "completion"),
}
"""Commands under their headings, in the order of the help."""
_MODULES: Final = {
    "account_commands": ("account", "models", "login"),
    "changes": ("diff", "apply", "discard"),
    "installing": ("install", "uninstall"),
    "outcomes": ("debug", "refactor", "test"),
    "questions": ("questions", "respond"),
    "session_commands": (
        *("fork", "hand", "rename", "archive", "unarchive", "compact", "goal", "rollback", "interrupt", "steer"),
    ),
}
"""Modules that hold several commands, as `NAME_command`. Every other command is `command` in the module of its name."""
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

_COMMANDS: Final = tuple(name for names in _HEADINGS.values() for name in names)
_ELSEWHERE: Final = frozenset(
    (
        *("run", "start", "plan", "review", "watch", "debug", "refactor", "test", "search"),
        *("say", "status", "questions", "respond", "steer", "interrupt", "rewind", "rollback", "fork", "discard"),
        *("apply", "attach"),
    )
)
"""Commands that a local process runs for another machine by calling its hub. The commands listed in `helmsman.cli.thin`
run inside that hub.
"""
_NAME_WIDTH: Final = max(map(len, _COMMANDS))


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        is_alone = cmd_name not in _MODULE_OF
        module = importlib.import_module(f"helmsman.cli.{_MODULE_OF.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, "command" if is_alone else f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0])
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from helmsman.base.unknown_names import nearest

            meant = nearest(name, _COMMANDS)
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{meant}'?" if meant else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in _HEADINGS.items():
            with formatter.section(heading):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                # Equal name widths align the second column across all headings.
                formatter.write_dl(
                    [(f"{name:<{_NAME_WIDTH}}", command.short_help or "") for name, command in commands if command]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), code.text) for code in ExitCode])


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _HELP_WIDTHS[1]},
    epilog="""\b
Try it without an account:
  helmsman demo

Settings come from options, then the environment (CODEX_CLI_PATH, CODEX_HOME, …), then helmsman.toml.
""",
)
@click.version_option(__version__, message="helmsman %(version)s")
@click.option("--host", "name", metavar="NAME", help="Run the command on this machine of yours (`helmsman hosts`).")
@click.pass_context
def app(context: click.Context, name: str | None) -> int | None:
    """Steer coding agents (Codex, Claude Code, Gemini and others): start work, follow it, answer its questions, stop it."""
    command = context.invoked_subcommand
    if name is not None:
        if command not in _ELSEWHERE:
            what = f"`helmsman {command}`" if command else "This"
            raise click.UsageError(f"{what} is for the machine it runs on. Log in to {name} with ssh and run it there.")
        context.with_resource(hosted(OtherMachine(name)))
    if command is not None:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.exceptions.NoArgsIsHelpError(context)
    code: int = importlib.import_module("helmsman.cli.overview").overview()
    return code


def run(refused: str = "") -> None:
    """Run the command line and exit. `refused` is the reason why the hub cannot run commands for this process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # replace characters that the terminal cannot show
    try:
        with hosted(Host(refused)):
            code = outcome(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe (`helmsman list | head`). Redirect stdout, because Python flushes it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.FAILED
    sys.exit(code)


def outcome(arguments: Sequence[str], columns: int | None = None) -> int:
    """Run a command and return its exit code. `columns` is the width of a remote terminal, for formatting help."""
    narrowest, widest = _HELP_WIDTHS
    width: dict[str, Any] = {} if columns is None else {"terminal_width": max(min(columns, widest) - 2, narrowest)}
    try:
        code = app.main(list(arguments), "helmsman", standalone_mode=False, **width)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PermissionError as error:
        where = error.filename or "A file of Helmsman's"
        advice = "Make it readable for you. In the sandbox of an agent it is hidden on purpose."
        click.echo(f"Error: {where} cannot be used: {error.strerror}. {advice}", err=True)
        return ExitCode.FAILED
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK
