"""Test of one client with two agents: Claude Code implements in a worktree, Codex reviews, Claude Code fixes, and it is
applied.

A real client uses `helmsman serve --tools agents` in a separate process with the real agents; only the model is
scripted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helmsman.testing import CodexHome, ScriptedModel, add, call, patch, run, say, update
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.script import Part
from mcp import Client
from tests.claude import claude_binary, claude_environment
from tests.clients.server_process import Serving
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.needs_git]


def judged(request: ModelRequest) -> list[Part]:
    """Return Codex's answer as a reviewer, depending on the code that it has read."""
    wrong = {
        "title": "[P0] The answer is wrong",
        "body": "It must be 42.",
        "confidence_score": 1.0,
        "priority": 0,
        "code_location": {"absolute_file_path": "answer.txt", "line_range": {"start": 1, "end": 1}},
    }
    is_right = "42" in request.tool_output
    return [
        say(
            json.dumps(
                {
                    "findings": [] if is_right else [wrong],
                    "overall_correctness": "patch is correct" if is_right else "patch is incorrect",
                    "overall_explanation": "I read the answer.",
                    "overall_confidence_score": 1.0,
                }
            )
        )
    ]


async def settled(agent: Caller, session_id: str) -> dict[str, Any]:
    """Wait for a session, and say yes to all that it asks."""
    while True:
        status = await agent("agent_wait", sessionId=session_id)
        if (asked := status.get("pendingQuestion")) is not None:
            await agent("agent_respond", sessionId=session_id, id=asked["id"], answers=["approve"])
        elif status["status"] != "active":
            return status


async def reviewed(agent: Caller, session_id: str) -> dict[str, Any]:
    review = await agent("agent_review", agent="codex", sessionId=session_id)
    while review["status"] == "active":
        review = await agent("agent_review", sessionId=review["sessionId"])
    return review


async def test_claude_implements_codex_reviews_claude_fixes_and_it_is_applied(
    codex_home: CodexHome, codex_binary: Path, git_repo: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    claude = claude_environment(model, tmp_path / "claude") | {"CLAUDE_CLI_PATH": str(claude_binary())}
    serving = Serving.on(codex_home, codex_binary, git_repo, **claude)
    model.on("Write the answer", patch(add("answer.txt", "41\n")), say("It is 41."))
    model.on("Review the current code changes", run("cat answer.txt"), judged)
    async with Client(serving.on_stdio("--tools", "agents")) as client:
        agent = Caller(client)
        policy = {"workingDirectory": str(git_repo), "sandbox": "workspace-write", "approvalPolicy": "on-request"}
        started = await agent("agent_start", agent="claude", prompt="Write the answer", worktree=True, **policy)
        session_id, place = started["sessionId"], started["worktree"]["path"]
        done = await settled(agent, session_id)
        assert (done["agent"], done["result"]) == ("claude", "It is 41.")

        review = await reviewed(agent, session_id)
        assert [(found["title"], found["priority"]) for found in review["findings"]] == [("The answer is wrong", 0)]
        assert (await agent("agent_status", sessionId=review["sessionId"]))["agent"] == "codex"

        read = call("Read", {"file_path": f"{place}/answer.txt"})
        model.on("Fix this", read, patch(update("answer.txt", "41", "42")), say("It is 42."))
        found = review["findings"][0]
        await agent("agent_say", sessionId=session_id, message=f"Fix this: {found['title']}. {found['body']}")
        assert (await settled(agent, session_id))["result"] == "It is 42."
        assert (await reviewed(agent, session_id))["findings"] == []

        diff = await agent("agent_diff", sessionId=session_id)
        applied = await agent("agent_apply", sessionId=session_id, digest=diff["digest"])
        assert [file["path"] for file in applied["files"]] == ["answer.txt"]
        await agent("agent_discard", sessionId=session_id)
        listed = (await agent("agent_list"))["sessions"]
        assert {one["agent"] for one in listed} == {"claude", "codex"}
        assert {one["agent"] for one in (await agent("agent_list", agent="claude"))["sessions"]} == {"claude"}
    assert (git_repo / "answer.txt").read_text(encoding="utf-8") == "42\n"
