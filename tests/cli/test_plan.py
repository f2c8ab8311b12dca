"""`helmsman plan` on a real Codex: with a person at a terminal, and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.testing import ScriptedModel, run, say
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio

PLAN = "I have looked.\n<proposed_plan>\n# Plan\n1. Make a file.\n</proposed_plan>\n"
WRITABLE = ("-s", "workspace-write", "-a", "never")


@pytest.fixture(autouse=True)
def works(model: ScriptedModel) -> None:
    write = run("echo made > made.txt")
    model.on("Make it", write, say(PLAN))
    model.on("call it so", say(PLAN.replace("a file", "it so")))
    model.on("The plan is approved", write, say("It is made."))


async def test_a_plan_is_revised_and_approved_at_the_prompt(cli: Cli, git_repo: Path) -> None:
    async with cli.on_terminal("plan", *WRITABLE, "Make it") as program:
        await program.shows("1. Make a file.")
        await program.shows("Carry out this plan?")
        await program.shows("do nothing")
        assert not (git_repo / "made.txt").exists()
        program.press("r")
        await program.shows("What should change?")
        program.press("call it so\n")
        await program.shows("1. Make it so.")
        await program.shows("do nothing")
        program.press("y")
        await program.shows("It is made.")
        await program.shows("✓ Done in")
        assert await program.exit_code() == 0
    assert (git_repo / "made.txt").exists()


async def test_a_plan_is_stopped_at_the_prompt(cli: Cli, git_repo: Path) -> None:
    async with cli.on_terminal("plan", *WRITABLE, "Make it") as program:
        await program.shows("do nothing")
        program.press("x")
        assert await program.exit_code() == 130
    assert not (git_repo / "made.txt").exists()


async def test_without_a_terminal_the_plan_is_the_result(cli: Cli, git_repo: Path) -> None:
    done = await cli.run("plan", *WRITABLE, "Make it")
    assert (done.exit_code, done.stdout) == (0, "# Plan\n1. Make a file.\n"), done.stderr
    assert not (git_repo / "made.txt").exists()


async def test_json_tells_the_plan_and_the_end(cli: Cli, git_repo: Path) -> None:
    done = await cli.run("plan", "--json", *WRITABLE, "Make it")
    asked = [event["question"] for event in done.json if event["type"] == "question_asked"]
    assert asked[0]["details"]["plan"] == "# Plan\n1. Make a file."
    assert done.json[-1]["result"] == "# Plan\n1. Make a file."
    assert not (git_repo / "made.txt").exists()
