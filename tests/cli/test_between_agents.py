"""Tests of `helmsman say --agent` and `helmsman review --agent`: an agent continues or reviews another's work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from helmsman.testing import FakeAcpAgent, ScriptedModel, add, patch, say
from helmsman.testing.fake_acp_agent import says
from tests.claude import claude_binary, claude_environment
from tests.cli.conftest import Cli

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.needs_git,
    pytest.mark.skipif(os.name != "posix", reason="There are no hubs here."),
]


async def test_a_session_is_handed_over_and_its_work_reviewed(
    detached_cli: Cli, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    cli = detached_cli
    cli.env.update(claude_environment(model, tmp_path / "claude"), CLAUDE_CLI_PATH=str(claude_binary()))
    model.on("Begin", patch(add("begun.txt", "x\n")), say("Begun."))
    began = await cli.run("run", "-C", str(git_repo), "-s", "workspace-write", "-a", "on-request", "--json", "Begin")
    first = began.json[-1]["sessionId"]

    model.on("Go on", say("Gone on."))
    (said,) = (await cli.run("say", first, "Go on", "--agent", "claude", "-s", "read-only", "--json")).json
    assert (said["handedOverFrom"], "of Codex to a new one of Claude Code" in said["note"]) == (first, True)
    ended = await cli.run("tasks", "wait", said["taskId"], "--timeout", "60", "--json")
    assert ended.json[0]["result"] == "Gone on."
    assert "Asked: Begin" in model.requests[-1].user_texts[-1]
    (listed,) = (await cli.run("list", "--agent", "claude", "--json")).json
    assert [one["handedOverFrom"] for one in listed["sessions"]] == [first]
    same = await cli.run("say", said["sessionId"], "Go on", "--agent", "claude")
    assert same.stderr.startswith("Sent.")
    assert (await cli.run("watch", said["sessionId"])).exit_code == 0

    found = {"title": "Not x", "body": "y", "priority": 1, "confidence": 0.8, "file": "begun.txt", "startLine": 1}
    answer = {"findings": [found, found | {"file": "other.txt", "title": "Elsewhere"}], "verdict": "patch is incorrect"}
    model.on("Review the uncommitted changes.", say(f"```json\n{json.dumps(answer)}\n```"))
    review = await cli.run("review", "--agent", "claude", "--session", first, "--fail-on", "P1")
    assert review.exit_code == 1, review.stderr
    assert "P1  begun.txt:1  Not x" in review.stdout
    assert "Dropped: other.txt is not part of the diff." in review.stdout


async def test_an_unknown_agent_works_if_it_is_configured(
    detached_cli: Cli, git_repo: Path, fake_acp_agent: FakeAcpAgent
) -> None:
    own = Path(detached_cli.env["HOME"]) / ".config" / "helmsman" / "helmsman.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f"[agents.mine]\ncommand = {json.dumps(fake_acp_agent.command)}\n")
    (git_repo / "new.txt").write_text("x\n")
    found = {"title": "Not x", "body": "y", "priority": 1, "confidence": 0.8, "file": "new.txt", "startLine": 1}
    fake_acp_agent.on(
        "Review the uncommitted", says(json.dumps({"findings": [found], "verdict": "patch is incorrect"}))
    )
    given = ("--agent", "mine", "--unenforced", "-C", str(git_repo))
    for command in (("review",), ("run", "Do it"), ("run", "--detach", "Do it", "--json")):
        refused = await detached_cli.run(*command, *given)
        assert (refused.exit_code, "--trust-repository" in refused.stdout + refused.stderr) == (2, True)
    review = await detached_cli.run("review", "--trust-repository", *given)
    assert review.exit_code == 0, review.stderr
    assert "P1  new.txt:1  Not x" in review.stdout
