"""Another agent than Codex, by the command line and through the death of a hub."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from helmsman.testing import ScriptedModel, run, say
from helmsman.testing.hubs import end_hub
from tests.claude import claude_binary, claude_environment
from tests.cli.conftest import Cli

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no hubs here.")]

SECONDS = 60


@pytest.mark.rare
async def test_a_question_of_claude_code_outlives_the_hub_and_its_session_continues(
    detached_cli: Cli, detached_engines: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    model.on("Make it", run("touch made.txt"), say("Made."))
    model.on("More", say("There is no more."))
    binary = claude_binary()
    detached_cli.env.update(claude_environment(model, tmp_path / "claude"), CLAUDE_CLI_PATH=str(binary))
    (listed,) = (await detached_cli.run("agents", "--json")).json
    agents = {agent["agent"]: agent for agent in listed["agents"]}
    claude = agents["claude"]
    assert ("codex" in agents, claude["path"]) == (True, str(binary.resolve()))
    assert "steer" in claude["can"]
    assert claude["heldBy"] == "Codex's sandbox"
    assert claude["cannot"]["rollback"] == "Codex can."

    (started,) = (await detached_cli.run("run", "--detach", "--agent", "claude", "Make it", "--json")).json
    session_id = started["sessionId"]
    question = await _question(detached_cli, session_id)
    end_hub(detached_engines)
    assert await _question(detached_cli, session_id) == question
    assert (await detached_cli.run("respond", session_id, question, "approve")).exit_code == 0
    done = await detached_cli.run("watch", session_id)
    assert (done.exit_code, done.stdout) == (0, "Made.\n")
    assert (detached_cli.directory / "made.txt").exists()

    done = await detached_cli.run("run", "--session", session_id[-8:], "More")
    assert (done.exit_code, done.stdout) == (0, "There is no more.\n")
    (sessions,) = (await detached_cli.run("list", "--json")).json
    (session,) = sessions["sessions"]
    assert (session["sessionId"], session["agent"], session["status"]) == (session_id, "claude", "done")
    assert session["enforced"] is True
    (none,) = (await detached_cli.run("list", "--agent", "codex", "--json")).json
    assert none["sessions"] == []


async def _question(cli: Cli, session_id: str) -> str:
    with anyio.fail_after(SECONDS):
        while True:
            (status,) = (await cli.run("status", session_id, "--json")).json
            if status.get("pendingQuestion"):
                return str(status["pendingQuestion"]["id"])
            await anyio.sleep(0.2)


async def test_a_terminal_says_how_to_get_what_is_not_there(bare_cli: Cli) -> None:
    async with bare_cli.on_terminal("agents") as program:
        await program.shows("Trying each agent in its sandbox")
        await program.shows("not installed")
        await program.shows("npm install -g @github/copilot")
