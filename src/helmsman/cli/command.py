"""Declare commands: name, help, examples, `--json` and error handling.

`cli_command` declares a command or a subcommand; `cli_group` declares a listing command that has subcommands.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from helmsman.cli.exit_codes import ExitCode, exit_code_of, in_words_of_shell
from helmsman.cli.host import host
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Body = Callable[..., int | None]
    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

CommandT = TypeVar("CommandT", bound=click.Command)

POSITIVE: Final = click.FloatRange(min=0, min_open=True)  # seconds, or an amount of money


class Named(click.types.StringParamType):
    """Named object. If the argument is missing, the error names the command that lists these objects."""

    def __init__(self, listed_by: str) -> None:
        self._listed_by = listed_by

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return f"`{self._listed_by}` lists them."


_MEANT: Final = {
    "--yolo": "--full-auto",
    "--dangerously-skip-permissions": "--full-auto",
    "--dangerously-bypass-approvals-and-sandbox": "--full-auto",
    "--resume": "--continue",
}
"""Options of the agents' own programs, and the nearest here. Both programs' first options switch the sandbox off."""


class _Command(click.Command):
    """A command that suggests its own option for one of an agent's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = _MEANT.get(error.option_name)
            if meant is None or all(meant not in parameter.opts for parameter in self.params):
                raise
            raise click.NoSuchOption(meant, f"{error.message} Did you mean {meant!r}?", ctx=error.ctx) from None


_BEGINNING: Final = 3  # letters that a command begins with say which one is meant


_SAME: Final = (
    {"cancel", "stop", "abort", "kill", "end", "interrupt"},
    {"remove", "delete", "rm", "drop", "discard"},
    {"list", "ls", "ps", "all"},
    {"show", "status", "info", "get"},
    {"add", "create", "new"},
)
"""Words with one meaning, of which a group has one."""


class Commands(click.Group):
    """Group whose commands are imported when they are used.

    Args:
        modules: The commands that other modules declare: `module:attribute` below `helmsman.cli`, by name.
    """

    known_words: Iterable[str] = ()  # words that are replaced by commands (`command_names`), for suggestions

    def __init__(self, *args: Any, modules: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._modules[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"helmsman.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = click.utils.make_str(args[0]), self.list_commands(ctx)
        # Completion asks for commands that are not yet typed to the end.
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            from helmsman.base.unknown_names import nearest

            # A beginning counts before likeness: `stat` means `status`, not `start`.
            short = [one for one in known if len(name) >= _BEGINNING and one.startswith(name)]
            likely = short or [one for words in _SAME if name in words for one in known if one in words]
            meant = nearest(name, likely, likeness=0) if likely else nearest(name, [*known, *self.known_words])
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{meant}'?" if meant else ""))
        return super().resolve_command(ctx, args)


def cli_command(
    name: str,
    short_help: str,
    *examples: str,
    group: click.Group | None = None,
    has_json: bool = True,
    changes: bool = False,
    notes: str = "",
    **more: Any,
) -> Callable[[Body], click.Command]:
    """Make a command of a function that may raise Helmsman errors and returns an exit code, or None for success.

    Args:
        examples: Command lines shown at the end of the help.
        group: The parent group, for a subcommand.
        has_json: Whether it accepts `--json`, passed as `as_json`.
        changes: Whether it changes something, in any case (`Host.begin_change`).
        notes: Help text before the examples.
        more: Arguments for `click.command`.
    """

    def declare(body: Body) -> click.Command:
        make = click.command if group is None else group.command
        epilog = notes + _epilog(examples)
        command: click.Command = make(name, cls=_Command, short_help=short_help, epilog=epilog, **more)(
            reports_errors(_announces_change(body) if changes else body)
        )
        return _with_json(command) if has_json else command

    return declare


def _announces_change(body: Body) -> Body:
    @functools.wraps(body)
    def command(*args: Any, **kwargs: Any) -> int | None:
        host().begin_change()
        return body(*args, **kwargs)

    return command


def cli_noun(name: str, short_help: str, help: str, *examples: str, modules: Mapping[str, str]) -> Commands:  # noqa: A002
    """Make a group that only shows its help if no subcommand is given."""
    return Commands(name, short_help=short_help, help=help, epilog=_epilog(examples), modules=modules)


def cli_group(
    name: str,
    short_help: str,
    *examples: str,
    modules: Mapping[str, str] | None = None,
    parent: click.Group | None = None,
    itself: str | None = "list",
) -> Callable[[Body], click.Group]:
    """Make a group of a listing function, which runs if no subcommand is given.

    Options of the group are passed to a subcommand that has the same option: `helmsman tasks --json show …`.

    Args:
        modules: Subcommands that other modules declare, as in `Commands`.
        parent: The group that it belongs to.
        itself: The name of the subcommand that runs the listing function too, if there is one.
    """

    def declare(body: Body) -> click.Group:
        run = reports_errors(body)

        @functools.wraps(body)
        def list_or_pass_on(**options: Any) -> int | None:
            context = click.get_current_context()
            if context.invoked_subcommand is None:
                return run(**options)
            _pass_on(context, group)
            return None

        about: dict[str, Any] = {"short_help": short_help, "epilog": _epilog(examples)}
        declared = click.group(name, Commands, invoke_without_command=True, modules=modules, **about)
        group = _with_json(declared(list_or_pass_on))
        if itself is not None:
            # Nouns (`agents config`) show the whole command.
            begin = examples[0].partition(f" {name}")[0]
            about = {"short_help": f"The same as `{begin} {name}`.", "epilog": _epilog((f"{begin} {name} {itself}",))}
            group.add_command(click.Command(itself, callback=run, params=group.params, help=group.help, **about))
        if parent is not None:
            parent.add_command(group)
        return group

    return declare


def option(
    spelled: str,
    help: str,  # noqa: A002
    *,
    to: str = "",
    choices: Iterable[str] = (),
    **more: Any,
) -> Decorator:
    """Declare an option as the help shows it: `--limit N`, `-v --verbose` for a flag, `--image FILE...` for several.

    Args:
        to: Name of the parameter, if it is not that of the option.
        choices: The values that it takes.
        more: Arguments for `click.option`. A default is shown in the help.
    """
    words = spelled.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if words[-1] not in names else None
    if metavar is not None and metavar.endswith("..."):
        metavar, more["multiple"] = metavar.removesuffix("..."), True
    if choices:
        more["type"] = click.Choice(list(choices))
    elif metavar is None and not more.keys() & {"type", "flag_value"}:
        more["is_flag"] = True
    if more.get("default") is not None:
        more.setdefault("show_default", True)
    return click.option(*names, *([to] if to else []), metavar=metavar, help=help, **more)


limit_option: Final = option("--limit N", "Show at most this many.", type=click.IntRange(min=1), default=20)
yes_option: Final = option("--yes -y", "Do it without asking.", to="agreed")


def with_options(*options: Decorator) -> Decorator:
    """Add options to a command, in this order."""

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(lambda declared, option: option(declared), reversed(options), command)

    return declare


def reports_errors(body: Body) -> Callable[..., int]:
    """Show Helmsman errors of a command, as JSON with `--json`, and convert them to exit codes."""

    @functools.wraps(body)
    def command(*args: Any, **kwargs: Any) -> int:
        try:
            return body(*args, **kwargs) or ExitCode.OK
        except HelmsmanError as raised:
            error, code = in_words_of_shell(raised), exit_code_of(raised)
            if kwargs.get("as_json"):
                from helmsman.cli.output import print_json

                # Programs get errors in the same form as results, on stdout.
                print_json({"type": "result", "status": "error", "error": error.as_dict(), "exitCode": code})
            else:
                from helmsman.cli.output import print_error

                print_error(error.message)
            return code

    return command


def _epilog(examples: tuple[str, ...]) -> str:
    heading = "Example:" if len(examples) == 1 else "Examples:"
    return "\n".join(["\b", heading, *(f"  {example}" for example in examples)])


def _with_json(command: CommandT) -> CommandT:
    command.params.append(click.Option(["--json", "as_json"], is_flag=True, help="Write JSON to stdout, for programs."))
    return command


def _pass_on(context: click.Context, group: click.Group) -> None:
    """Use the group's options as defaults of the called subcommand."""
    called = group.get_command(context, context.invoked_subcommand or "")
    assert called is not None
    taken = [parameter.opts for parameter in called.params]
    # Only typed options: a default of the group must not override one of the subcommand.
    given = [
        parameter
        for parameter in group.params
        if context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT
    ]
    for parameter in given:
        if parameter.opts not in taken:
            # Otherwise the option would have no effect.
            raise click.UsageError(f"{parameter.opts[0]} is for the list. Put it after `helmsman {group.name} list`.")
    context.default_map = {called.name or "": {one.name: context.params[one.name or ""] for one in given}}
