"""Group of all commands: its help and its exit codes.

A command's module is imported when the command runs. The modules import only the dependencies of their options at the
top; tables, web servers and Codex are imported inside the commands.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Final

import click

from helmsman._version import __version__
from helmsman.cli.command import Commands, cli_noun, option
from helmsman.cli.command_names import ON_OTHER_HOSTS, SESSION_VERBS, WORDS, command_name
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import OtherMachine, hosted

if TYPE_CHECKING:
    from collections.abc import Sequence

session_command = cli_noun(
    "session",
    "Commit, publish, find, export, rewind and archive sessions.",
    "Manage sessions. `helmsman list` lists them.",
    "helmsman session search flaky parser test",
    "helmsman session rewind 3b2d5c8e",
    modules={
        "attach": "session_commands:attach_command",
        "commit": "publish:commit_command",
        "open": "session_commands:open_command",
        "pr": "publish:pr_command",
        "watch-pr": "publish:watch_pr_command",
        "discard": "changes:discard_command",
        "export": "session_commands:export_command",
        "import": "session_commands:import_command",
        "rewind": "session_commands:rewind_command",
        "search": "list:search_command",
        "worktrees": "changes:worktrees_command",
        **{name: f"session_commands:{name}_command" for name in SESSION_VERBS},
    },
)

job_command = cli_noun(
    "job",
    "Fix a bug, refactor, test, plan or review, with a verified outcome.",
    "Ask for an outcome. Helmsman chooses the agent, runs the checks itself and applies only what they verify.",
    'helmsman job debug "test_parse fails: KeyError" --check "make test"',
    modules={name: f"outcomes:{name}_command" for name in ("debug", "plan", "refactor", "review", "test")},
)

config_command = cli_noun(
    "config",
    "Rules, notifications, other machines, shell completion.",
    "Look at and change what Helmsman keeps in its configuration. `helmsman agents config` is for Codex's own.",
    "helmsman config rules",
    "helmsman config hosts add build ssh://me@build",
    modules={
        "completion": "completing:completion_command",
        "hosts": "config:hosts_command",
        "notify": "config:notify_command",
        "rules": "config:command",
    },
)


_HELP_WIDTH: Final = 100  # maximum

_HEADINGS: Final = {
    "Start work": ("run", "plan", "review", "job", "loop"),
    "Follow it": ("list", "status", "watch", "dashboard"),
    "Answer and steer": ("respond", "say", "steer", "interrupt"),
    "Take the changes": ("diff", "apply"),
    "Manage": ("session", "tasks", "schedule", "usage"),
    "Agents and machines": ("agents", "hub", "fleet"),
    "Set up": ("demo", "doctor", "install", "config", "serve", "acp"),
}
"""Commands under their headings, in the order of the help."""
_COMMANDS: Final = tuple(name for names in _HEADINGS.values() for name in names)
_SHARED: Final = {
    "changes": ("diff", "apply"),
    "installing": ("install",),
    "outcomes": ("loop",),
    "app": ("job", "session", "config"),
    "questions": ("respond",),
    "run": ("plan", "review"),
    "serve": ("acp",),
    "session_commands": ("interrupt", "say", "status", "steer", "watch"),
}
"""Modules that hold several commands, as `NAME_command`. Every other command is `command` in the module of its name."""
_MODULES: Final = {name: f"{name}:command" for name in _COMMANDS} | {
    name: f"{module}:{name}_command" for module, names in _SHARED.items() for name in names
}
_NAME_WIDTH: Final = max(map(len, _COMMANDS))
_NAME: Final = "helmsman.cli.name"  # key of the command's name in the context, with its noun


class _TopLevel(Commands):
    known_words = WORDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Noted for `app`, which runs before the command and has to know whether `--host` fits.
        ctx.meta[_NAME] = command_name(args)
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
    cls=_TopLevel,
    modules=_MODULES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _HELP_WIDTH},
    epilog="""\b
Try it without an account:
  helmsman demo

Settings come from options, then the environment (CODEX_CLI_PATH, CODEX_HOME, …), then helmsman.toml.
""",
)
@click.version_option(__version__, message="helmsman %(version)s")
@option("--host NAME", "Run the command on this machine of yours (`helmsman config hosts`).", to="name")
@click.pass_context
def app(context: click.Context, name: str | None) -> int | None:
    """Steer coding agents (Codex, Claude Code, Gemini and others): start work, follow it, answer its questions, stop it."""
    command = context.invoked_subcommand
    if name is not None:
        whole = context.meta.get(_NAME, "")
        if whole not in ON_OTHER_HOSTS:
            what = f"`helmsman {whole}`" if whole else "This"
            raise click.UsageError(f"{what} is for the machine it runs on. Log in to {name} with ssh and run it there.")
        # The other machine is connected to until the command ends.
        context.with_resource(hosted(OtherMachine(name)))
    if command is not None:
        return None
    # Only here, because it imports what lists need.
    code: int = importlib.import_module("helmsman.cli.list").overview()
    return code


def run() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # replace characters that the terminal cannot show
    try:
        code = outcome(sys.argv[1:])
        # Buffered output may fail only when it is written.
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe (`helmsman list | head`). Redirect stdout, because Python flushes it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.FAILED
    sys.exit(code)


def outcome(arguments: Sequence[str]) -> int:
    """Run a command, show its errors, and return its exit code."""
    try:
        return rendered(arguments)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PermissionError as error:
        # In the sandbox of an agent the state directory cannot be read, which is not an error of Helmsman.
        where = error.filename or "A file of Helmsman's"
        advice = "Make it readable for you. In the sandbox of an agent it is hidden on purpose."
        click.echo(f"Error: {where} cannot be used: {error.strerror}. {advice}", err=True)
        return ExitCode.FAILED
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED


def rendered(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Usage errors are raised."""
    # Without click's own handling, which would print errors and exit.
    code = app.main(list(arguments), "helmsman", standalone_mode=False)
    return code if isinstance(code, int) else ExitCode.OK
