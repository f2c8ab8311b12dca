"""Write docs/commands.md from the code: every command with its arguments, options and examples, as `--help` has them.

python scripts/make_commands.py            write it
python scripts/make_commands.py --check    only say whether it is up to date
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

import click

from generated_page import write_or_check
from helmsman.cli.app import app
from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

INTRODUCTION = """\
# Commands

Made by `scripts/make_commands.py` from the code, and checked against it by the tests. Change the code, then run
`make reference`. [terminal.md](terminal.md) explains how to work with them.

Every command takes `--help`. With `--json`, stdout has one JSON object per line, and errors are JSON too.
"""


def commands() -> str:
    parts = [INTRODUCTION]
    for name, command in _commands(app):
        parts += _command(name, command)
    return "\n".join((*parts, *_exit_codes())) + "\n"


def _commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield f"{before}{name}", command
            if isinstance(command, click.Group):
                yield from _commands(command, f"{before}{name} ")


def _command(name: str, command: click.Command) -> Iterator[str]:
    words = [_usage(one) for one in command.params if isinstance(one, click.Argument)]
    yield f"## {' '.join(('helmsman', name, *words))}\n"
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    for paragraph in text.split("\n\n"):
        yield _paragraph(paragraph) + "\n"
    options = [
        one for one in command.params if isinstance(one, click.Option) and not one.hidden and one.name != "as_json"
    ]
    if options:
        yield "| option | meaning |\n| --- | --- |"
        yield "\n".join(_option(option) for option in options) + "\n"
    if examples := [line.strip() for line in (command.epilog or "").splitlines()[2:] if line.strip()]:
        yield "```sh\n" + "\n".join(examples) + "\n```\n"


def _usage(argument: click.Argument) -> str:
    name = argument.make_metavar(click.Context(app))
    return _escaped(name)


def _paragraph(text: str) -> str:
    """Return a paragraph; one that click must not rewrap (it begins with a backspace) is shown as it is."""
    if text.startswith("\b"):
        return "```text\n" + text.removeprefix("\b").strip("\n") + "\n```"
    return _escaped(" ".join(text.split()))


def _option(option: click.Option) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    metavar = "" if option.is_flag or option.count else f" {option.make_metavar(click.Context(app))}"
    default = option.show_default if isinstance(option.show_default, str) else None
    if default is None and option.show_default and option.default not in (None, False):
        default = str(option.default)
    said = f"{option.help or ''}{f' Default: {default}.' if default else ''}"
    return f"| `{_cell(names + metavar)}` | {_cell(_escaped(said))} |"


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n\n| code | meaning |\n| --- | --- |"
    for code in ExitCode:
        yield f"| {code.value} | {code.text} |"
    yield "\nA session, task or question that does not exist is a wrong argument (2). One that is busy is 1."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(write_or_check("commands.md", commands()))
