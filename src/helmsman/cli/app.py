"""The group of all commands: its help, and how the program ends.

A command's module is imported when the command is called. The modules themselves import only what their options need;
tables, web servers and Codex are left for when they run.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import click

from helmsman._version import __version__
from helmsman.cli.exit_codes import ExitCode

_HEADINGS: Final = {
    "Start and follow": ("run", "plan", "review", "say", "status", "watch", "dashboard"),
    "Answer and stop": ("respond", "steer", "interrupt", "rules"),
    "Sessions": ("list", "fork", "rollback", "compact", "goal", "rename", "archive", "unarchive"),
    "Changes": ("diff", "apply", "discard", "worktrees"),
    "Tasks and cloud": ("tasks",),
    "Codex itself": ("models", "account", "usage", "engines", "hub"),
    "Set-up": ("demo", "doctor", "install", "uninstall", "serve", "completion"),
}
"""The commands under their headings, in the order of the help. Each is the `command` of the module of its name."""

_COMMANDS: Final = tuple(name for names in _HEADINGS.values() for name in names)
_NAME_WIDTH: Final = max(map(len, _COMMANDS))


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"helmsman.cli.{cmd_name}").command
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


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Try it without an account:
  helmsman demo

Settings come from options, then the environment (CODEX_CLI_PATH, CODEX_HOME, …), then helmsman.toml.
""",
)
@click.version_option(__version__, message="helmsman %(version)s")
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
