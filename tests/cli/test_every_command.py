"""What holds for all commands alike: help with an example, exit codes, `--json`, and a place in the documentation."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import click
import pytest
from click.testing import CliRunner

from helmsman.cli.app import app
from helmsman.cli.exit_codes import ExitCode
from tests.cli.conftest import Cli

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
WITHOUT_JSON = {
    *("serve", "acp", "config completion", "hub connect", "hub log", "hub run", "fleet worker"),
    *("config", "job", "session"),
}
"""What goes to their stdout is for a program already, or they do nothing without another word."""


def _commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{before}{name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")


COMMANDS = dict(_commands(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_does_and_shows_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert command.short_help, "the list of commands has nothing to say of it"
    assert command.short_help.endswith(".")
    done = CliRunner().invoke(app, [*name.split(), "--help"])
    assert done.exit_code == 0
    examples = re.search(r"^  Examples?:\n((?:    .+\n)+)", done.output, re.MULTILINE)
    assert examples is not None, done.output
    assert f"helmsman {name}" in examples[1]
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, f"{option.name} is not explained"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_a_usage_error(name: str) -> None:
    done = CliRunner().invoke(app, [*name.split(), "--fly"])
    assert done.exit_code == ExitCode.USAGE
    assert "--fly" in done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_programs_can_have_json(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert ("--json" in options) is (name not in WITHOUT_JSON)


@pytest.mark.parametrize("columns", [60, 100])
def test_all_commands_are_listed_under_headings_whole(columns: int) -> None:
    done = CliRunner().invoke(app, ["--help"], terminal_width=columns)
    for heading in ("Start work", "Follow it", "Answer and steer", "Take the changes", "Manage", "Set up"):
        assert f"\n{heading}:\n" in done.output
    text = " ".join(done.output.split())
    assert sum(" " not in name for name in COMMANDS) <= 28, "a newcomer reads them all"
    for name, command in COMMANDS.items():
        if " " not in name:
            assert f" {name} {command.short_help} " in text
    assert all(len(line) <= columns + 10 for line in done.output.splitlines()), done.output


@pytest.mark.anyio
async def test_a_session_that_is_not_there_is_reported_as_json(bare_cli: Cli) -> None:
    with_session = [
        name for name, command in COMMANDS.items() if command.params and command.params[0].name == "session"
    ]
    assert len(with_session) > 10
    more = {"say": ["hello"], "steer": ["hello"], "session rename": ["a name"], "session hand": ["--back"]}

    async def run(name: str) -> None:
        done = await bare_cli.run(*name.split(), "abcd1234", *more.get(name, []), "--json")
        (said,) = done.json
        assert (name, said["error"]["code"]) == (name, "session_not_found")
        assert (done.exit_code, said["exitCode"]) == (ExitCode.USAGE, ExitCode.USAGE)

    for name in with_session:
        await run(name)


def test_the_documentation_has_every_command_and_every_exit_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in COMMANDS:
        assert re.search(rf"helmsman {name}\b", page), f"docs/commands.md does not list `helmsman {name}`"
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    assert table == {str(code.value): code.text for code in ExitCode}


# --- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_each_shell_gets_its_script(bare_cli: Cli, shell: str) -> None:
    done = await bare_cli.run("config", "completion", shell)
    assert done.exit_code == 0
    assert f"_HELMSMAN_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash" and sys.platform != "win32":
        checked = await anyio.run_process(["bash", "-n"], input=done.stdout.encode(), check=False)
        assert checked.returncode == 0
