"""The session that a command means: by a part of its id or title, by `-`, or by the directory."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from helmsman.cli.command_names import expanded
from helmsman.cli.on_session import matching
from helmsman.testing import Gate, ScriptedModel, say
from tests.cli.conftest import Cli, LeaveBehind
from tests.tmux import on_tmux

IDS = {
    "01a1ec1a-0000-7000-8000-00003b2d5c8e": "Fix the parser",
    "01a1ec1a-0001-7000-8000-0000664f1a2b": "Fix the parser again",
    "01a1ec1b-0002-7000-8000-0000aaaa0000": "Say 664f twice",
}
ONE, TWO, THREE = IDS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3b2d", [ONE]),
        ("01a1ec1b", [THREE]),
        ("01a1ec1a", [ONE, TWO]),
        ("664f", [TWO]),
        ("1a2b", [TWO]),
        ("0001-7000", [TWO]),
        ("twice", [THREE]),
        ("PARSER", [ONE, TWO]),
        ("fix the parser", [ONE]),
        ("nowhere", []),
    ],
)
def test_any_part_of_an_id_or_title_names_a_session(text: str, found: list[str]) -> None:
    assert matching(text, IDS) == found


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("stop", "interrupt"),
        ("show parser", "status parser"),
        ("logs 3b2d", "status --lines 500 3b2d"),
        ("ps", "list --running"),
        ("help", "--help"),
        ("help run", "run --help"),
        ("help stop", "interrupt --help"),
        ("resume", "run --continue"),
        ("continue 3b2d more", "run --session 3b2d more"),
        ("resume --detach go", "run --continue --detach go"),
        ("approve", "respond"),
        ("rewind --to 2", "session rewind --to 2"),
        ("run stop", "run stop"),
        ("", ""),
    ],
)
def test_words_that_people_try_are_commands(words: str, command: str) -> None:
    assert expanded(words.split()) == command.split()


@pytest.mark.anyio
async def test_without_an_id_the_last_session_of_the_directory_is_meant(
    cli: Cli, model: ScriptedModel, tmp_path: Path
) -> None:
    model.otherwise(say("Done."))
    first = (await cli.run("run", "--json", "Fix the parser")).json[-1]["sessionId"]
    second = (await cli.run("run", "--json", "Profile the importer")).json[-1]["sessionId"]
    done = await cli.run("status")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"session    {second}\n")
    assert done.stderr == f"Session {second[-8:]}  Profile the importer\n"
    assert (await cli.run("status", "parser", "--json")).json[0]["sessionId"] == first

    assert (await cli.run("session", "open", "parser")).stdout == f"{cli.directory}\n"
    async with cli.on_terminal("session", "open", "parser", EDITOR="echo opened") as program:
        await program.shows("opened /")
        assert await program.exit_code() == 0

    inside = cli.directory / "src"
    inside.mkdir()
    cli.directory = inside
    assert (await cli.run("status", "--json")).json[0]["sessionId"] == second

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cli.directory = elsewhere
    nothing = await cli.run("status")
    assert nothing.exit_code == 2
    assert "There is no session in this directory." in nothing.stderr
    assert (await cli.run("status", "-", "--json")).json[0]["sessionId"] == second


@pytest.mark.anyio
async def test_a_single_argument_of_say_is_the_message(cli: Cli, model: ScriptedModel) -> None:
    model.otherwise(say("Done."))
    session_id = (await cli.run("run", "--json", "Fix the parser")).json[-1]["sessionId"]
    sent = await cli.run("say", "Now add a test", "--wait", "--json")
    assert sent.json[-1]["sessionId"] == session_id
    assert (await cli.run("session", "rename", "A name of its own")).exit_code == 0
    assert (await cli.run("status", "of its own", "--json")).json[0]["sessionId"] == session_id
    missing = await cli.run("say", session_id[-8:])
    assert (missing.exit_code, "Missing argument 'MESSAGE'" in missing.stderr) == (2, True)


@pytest.mark.long
@pytest.mark.anyio
async def test_the_only_running_session_is_meant_and_several_are_listed_or_picked(
    detached_cli: Cli, left_behind: LeaveBehind, model: ScriptedModel
) -> None:
    cli, gates = detached_cli, (Gate(), Gate())
    first = await left_behind.working(gates[0], "Fix the parser")
    model.on("Say hello", say("Hello."))
    await cli.run("run", "Say hello")
    assert (await cli.run("status", "--json")).json[0]["sessionId"] == first

    second = await left_behind.working(gates[1], "Profile the importer")
    listed = await cli.run("interrupt")
    assert listed.exit_code == 2
    assert "2 sessions are running here." in listed.stderr
    assert f"  {first[-8:]}  Fix the parser\n" in listed.stderr
    assert f"  {second[-8:]}  Profile the importer\n" in listed.stderr

    command = [sys.executable, "-m", "helmsman"]
    with on_tmux([*command, "status"], cli.env, cli.directory) as terminal:
        await terminal.shows("Which session?", "Say hello")
        terminal.type("importer")
        await terminal.shows("1 of 3.")
        terminal.press("Enter")
        await terminal.shows(f"session    {second}")
        assert await terminal.exit_code() == 0
    with on_tmux([*command, "interrupt"], cli.env, cli.directory) as terminal:
        await terminal.shows("Which session?")
        terminal.press("Escape")
        assert await terminal.exit_code() == 130
    for gate in gates:
        gate.release()
    with anyio.fail_after(30):
        while (await cli.run("list", "--running", "--json")).json[0]["sessions"]:
            pass
