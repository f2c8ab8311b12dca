"""`helmsman` alone on a terminal: all sessions, the chosen one live, and questions answered with one key."""

from __future__ import annotations

import sys

import pytest

from helmsman.testing import Gate, ScriptedModel, fail, say, spawn_agent, wait_agents
from tests.cli.conftest import Cli, LeaveBehind
from tests.tmux import Tmux

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.mark.long
async def test_sessions_are_seen_answered_searched_started_and_joined(
    detached_cli: Cli, left_behind: LeaveBehind, model: ScriptedModel
) -> None:
    cli, gate = detached_cli, Gate()
    model.on("Say hello", say("Hello there."))
    await cli.run("run", "Say hello")
    asking = await left_behind.asking("Touch a file", gate)
    model.on("Tell a story", say("Once upon a time."))
    with Tmux(columns=120, lines=30) as terminal:
        command = [sys.executable, "-m", "helmsman"]
        terminal.start(command, env=cli.env | {"TERM": "tmux-256color"}, directory=cli.directory)
        # The session that asks comes first, with its question and the keys that answer it.
        shown = await terminal.shows("Touch a file", "Say hello", "Command: touch made.txt", "y approve", "n deny")
        assert shown.index("Touch a file") < shown.index("Say hello")
        await terminal.until(lambda screen: asking in screen, "The session is not the chosen one")
        await terminal.answer("n", "y approve")
        await terminal.shows("Why?", "Esc goes back")
        terminal.press("Escape")
        await terminal.shows("y approve")
        await terminal.answer("y", "y approve")
        gate.release()
        await terminal.shows("Made.")
        assert (cli.directory / "made.txt").exists()

        # Another is chosen, and found by a part of its title.
        terminal.press("Down")
        await terminal.shows("Hello there.")
        terminal.press("/")
        terminal.type("tuch")
        await terminal.shows_no("Say hello")
        terminal.press("Enter")
        await terminal.shows("Made.", "Say hello")

        # A new one is started here, and joined.
        terminal.press("n")
        await terminal.shows("New session in")
        terminal.type("Tell a story")
        terminal.press("Enter")
        await terminal.shows("Once upon a time.")
        terminal.press("Enter")
        await terminal.shows("› Tell a story", "• Once upon a time.", "› your message")
        terminal.press("C-d")
        await terminal.shows("↑↓ choose")
        terminal.press("x")
        await terminal.shows("No turn is running in it.")
        terminal.press("q")
        assert await terminal.exit_code() == 0


@pytest.mark.long
async def test_sub_agents_are_a_tree_below_their_session_with_their_own_transcripts(
    cli: Cli, model: ScriptedModel
) -> None:
    model.on("Delegate", [spawn_agent("Count the files")], [wait_agents()], [say("Delegated.")])
    model.on("Count the files", say("There are three."))
    done = await cli.run("run", "--json", "Delegate")
    assert done.exit_code == 0, done.stderr
    shown = (await cli.run("status")).stdout
    (line,) = (line for line in shown.splitlines() if "↳" in line)
    assert line.startswith("  ↳ Count the files  done  ")
    assert " tokens" in line
    of_agent = line.rpartition("  ")[2]
    assert len(of_agent) == 8
    assert "There are three." in (await cli.run("status", of_agent)).stdout
    assert "There are three." in (await cli.run("watch", of_agent)).stdout
    assert of_agent not in (await cli.run("list", "--all")).stdout
    with Tmux(columns=120, lines=30) as terminal:
        command = [sys.executable, "-m", "helmsman"]
        terminal.start(command, env=cli.env | {"TERM": "tmux-256color"}, directory=cli.directory)
        await terminal.shows("Delegated.", "↳ Count the files")
        terminal.press("Down")
        await terminal.shows("There are three.", " tokens", "↳ Count the files")
        terminal.press("q")
        assert await terminal.exit_code() == 0


async def test_without_a_terminal_the_overview_is_printed_with_the_status_of_each(
    detached_cli: Cli, model: ScriptedModel
) -> None:
    model.on("Say hello", say("Hello there."))
    model.on("Fail", fail(400, message="The context is too long."))
    for prompt in ("Say hello", "Fail now"):
        await detached_cli.run("run", "--attempts", "1", prompt)
    done = await detached_cli.run()
    assert done.exit_code == 0, done.stderr
    assert "Last" in done.stdout
    words = {line.rpartition("  ")[2].strip(): line for line in done.stdout.splitlines()}
    assert " done " in words["Say hello"]
    assert " failed " in words["Fail now"]
