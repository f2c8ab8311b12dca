from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from helmsman.testing import ScriptedModel, say
from tests.claude import claude_binary
from tests.cli.conftest import Cli
from tests.real_agents import find_agent_command

pytestmark = pytest.mark.anyio


@pytest.fixture
def demo(bare_cli: Cli, codex_binary: Path, tmp_path: Path) -> Cli:
    """The command with a Codex, and a directory for temporary files in which nothing may be left."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    bare_cli.env |= {"CODEX_CLI_PATH": str(codex_binary), "TMPDIR": str(temporary)}
    return bare_cli


def _left_behind(demo: Cli) -> list[str]:
    places = [Path(demo.env["TMPDIR"]), Path(demo.env["HOME"]) / ".codex"]
    return [entry.name for place in places for entry in place.iterdir()]


async def test_it_shows_a_command_a_change_and_an_approval(demo: Cli) -> None:
    done = await demo.run("demo")
    assert done.exit_code == 0
    assert done.stdout.endswith("3 of 3 checks pass. The greeting is published.\n")
    story = done.stderr
    assert "$ sh check.sh" in story
    assert "0/3 checks passed\n  ✗ exit 1" in story
    assert "± change greet.sh  +1 -1" in story
    assert "3/3 checks passed\n  ✓ exit 0" in story
    assert story.count("? Codex asks to run a command") == 1
    assert "→ approve (answered by the demo itself: no terminal here)" in story
    assert "What changed\n  change greet.sh  +1 -1\n" in story
    assert " tokens in" in story
    assert "helmsman doctor" in story
    assert _left_behind(demo) == []


@pytest.mark.long
async def test_the_approval_is_asked_on_a_terminal(demo: Cli) -> None:
    async with demo.on_terminal("demo") as program:
        await program.shows("deny and stop the turn")
        program.press("y")
        await program.shows("The greeting is published.")
        await program.shows("Try next")
        assert await program.exit_code() == 0
    assert _left_behind(demo) == []


@pytest.mark.long
async def test_a_denial_is_respected(demo: Cli) -> None:
    async with demo.on_terminal("demo", columns=140) as program:
        await program.shows("deny and stop the turn")
        program.press("n")
        await program.shows("Why?")
        program.press("\n")
        await program.shows("I did not publish it, as you decided.")
        assert await program.exit_code() == 0


@pytest.mark.rare
@pytest.mark.timeout(300)
async def test_a_denial_of_another_agent_is_respected_whatever_its_reason(demo: Cli) -> None:
    demo.env["CLAUDE_CLI_PATH"] = str(claude_binary())
    async with demo.on_terminal("demo", "--agent", "claude", columns=140) as program:
        for step in ("sh check.sh", "Adds:", "sh check.sh"):
            await program.shows(step)
            await program.shows("deny and stop the turn")
            program.press("y")
            await program.shows("→ approve")
        await program.shows("published/")
        await program.shows("deny and stop the turn")
        program.press("n")
        await program.shows("Why?")
        program.press("not on a Friday\n")
        await program.shows("3 of 3 checks pass. I did not publish it, as you decided.")
        assert await program.exit_code() == 0


@pytest.mark.rare
async def test_with_auto_it_answers_itself_on_a_terminal_too(demo: Cli) -> None:
    async with demo.on_terminal("demo", "--auto") as program:
        await program.shows("→ approve (answered by the demo itself, because of --auto)")
        assert await program.exit_code() == 0


@pytest.mark.rare
async def test_it_can_be_interrupted(demo: Cli) -> None:
    async with demo.on_terminal("demo") as program:
        await program.shows("deny and stop the turn")
        program.press("\x03")
        await program.shows("■ Interrupted")
        assert await program.exit_code() == 130
    assert _left_behind(demo) == []


async def test_json_tells_the_same_story_and_its_codex_takes_no_picture_of_the_login_shell(
    demo: Cli, codex_binary: Path, tmp_path: Path
) -> None:
    wrapper, words = tmp_path / "codex", tmp_path / "words"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {words}\nexec {codex_binary} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    demo.env |= {"CODEX_CLI_PATH": str(wrapper), "HELMSMAN_SHELL_SNAPSHOTS": "on"}
    done = await demo.run("demo", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    *events, result = done.json
    assert [event["answer"] for event in events if event["type"] == "question_closed"] == ["approve"]
    assert result["status"] == "done"
    starts = [line for line in words.read_text(encoding="utf-8").splitlines() if line.startswith("app-server")]
    assert "app-server --disable shell_snapshot" in starts


@pytest.mark.rare
async def test_the_suggested_commands_work_as_printed(demo: Cli, cli: Cli, model: ScriptedModel) -> None:
    """In a clone, where `helmsman` is not on the PATH, with a Codex that is logged in."""
    installed = Path(sys.executable).with_name("helmsman")
    told = await anyio.run_process([str(installed), "demo", "--auto"], env=demo.env, cwd=demo.directory)
    steps = [line.split("  ")[1] for line in told.stderr.decode().partition("Try next\n")[2].splitlines()]
    activate, *commands = steps
    names = ["helmsman doctor", "helmsman agents login", 'helmsman run "Explain this project"', "helmsman list"]
    assert commands == names
    model.on("Explain", say("It greets."))
    for step in (names[0], names[2], names[3]):  # no login page here
        done = await anyio.run_process(
            ["sh", "-c", f"{activate} && {step}"], env=cli.env, cwd=demo.directory, check=False
        )
        shown = (done.stdout + done.stderr).decode()
        assert done.returncode == 0 or step == names[0], shown  # the doctor may find that something else is missing
        assert "command not found" not in shown
        assert "not logged in" not in shown


@pytest.mark.rare
async def test_it_works_without_git(demo: Cli, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "bash", "cat", "cp", "mkdir", "env"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    done = await demo.run("demo", PATH=str(programs))
    assert done.exit_code == 0, done.stderr
    assert "What changed\n  change greet.sh  +1 -1\n" in done.stderr


async def test_without_codex_the_exit_code_is_3(bare_cli: Cli) -> None:
    done = await bare_cli.run("demo")
    assert done.exit_code == 3
    assert "Install Codex" in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "agent",
    [
        pytest.param("claude", marks=pytest.mark.rare),
        # OpenCode, too, but its first start may take longer than a command has here.
        *(pytest.param(name, marks=pytest.mark.matrix) for name in ("gemini", "qwen", "copilot")),
    ],
)
async def test_another_agent_shows_the_same_and_leaves_nothing(bare_cli: Cli, tmp_path: Path, agent: str) -> None:
    temporary, config = tmp_path / "tmp", Path(bare_cli.env["HOME"]) / ".config" / "helmsman"
    temporary.mkdir()
    config.mkdir(parents=True)
    if agent == "claude":
        bare_cli.env["CLAUDE_CLI_PATH"] = str(claude_binary())
    else:
        command = find_agent_command(agent)
        if command is None:
            pytest.skip("The agents are not here: python scripts/fetch_agents.py")
        (config / "helmsman.toml").write_text(f"[agents.{agent}]\ncommand = {json.dumps(command)}\n", encoding="utf-8")
    done = await bare_cli.run("demo", "--agent", agent, TMPDIR=str(temporary))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.endswith("3 of 3 checks pass. The greeting is published.\n")
    assert "add greet.sh  +1 -0" in done.stderr
    assert f"run --agent {agent}" in done.stderr
    assert "None" not in done.stderr
    assert list(temporary.iterdir()) == []


async def test_an_agent_that_is_not_there_is_named(bare_cli: Cli) -> None:
    done = await bare_cli.run("demo", "--agent", "qwen")
    assert done.exit_code == 3
    assert "Install it" in done.stderr
