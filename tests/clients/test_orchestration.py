"""An agent that orchestrates: three sessions at once on one repository, each reviewed, the best one kept.

Told through a real client to `helmsman serve --tools sessions,extras`, a process of its own with a real Codex; only the
model is scripted. Afterwards nothing is left but the change that was chosen: no branch, no worktree, no process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.testing import CodexHome, ScriptedModel, leaks, run, say, usage
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.repository import git
from helmsman.testing.script import Gate, Part
from mcp import Client
from tests.clients.server_process import Serving
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

SECONDS = 90
ANSWERS = {"quick": "41\n", "careful": "42\n", "wild": "a number\n"}
"""What each of the three writes; the reviewer knows that it is to be 42."""
PRICE = (1000, 100, 10, 1)


def judged(request: ModelRequest) -> list[Part]:
    """Return the reviewer's answer, depending on the code that it has read."""
    is_right = "42" in request.tool_output
    wrong = {
        "title": "[P0] The answer is wrong",
        "body": "It must be 42.",
        "confidence_score": 1.0,
        "priority": 0,
        "code_location": {"absolute_file_path": "answer.txt", "line_range": {"start": 1, "end": 1}},
    }
    told = {
        "findings": [] if is_right else [wrong],
        "overall_correctness": "patch is correct" if is_right else "patch is incorrect",
        "overall_explanation": "I read the answer.",
        "overall_confidence_score": 1.0,
    }
    return [say(json.dumps(told)), usage(*PRICE)]


@pytest.fixture
def together(model: ScriptedModel) -> Gate:
    """The point at which all three sessions are at work."""
    gate = model.gate()
    for name, answer in ANSWERS.items():
        writes = [run(f"printf '{answer.strip()}\\n' > answer.txt; touch {name}.txt"), usage(*PRICE)]
        model.on(f"Be {name}", writes, [say("I am ", gate, "done"), usage(*PRICE)])
    model.on("Review the current code changes", [run("cat answer.txt"), usage(*PRICE)], judged)
    return gate


async def orchestrate(codex: Caller, repository: Path, together: Gate) -> dict[str, Any]:
    """What the agent does: start three, wait, have each reviewed, apply the best, drop all worktrees, count the cost."""
    options = {"workingDirectory": str(repository), "sandbox": "workspace-write", "approvalPolicy": "never"}
    started = {
        name: await codex("codex_start", prompt=f"Be {name}: write the answer to answer.txt", worktree=True, **options)
        for name in ANSWERS
    }
    with anyio.fail_after(SECONDS):
        await together.reached(3)
    running = (await codex("codex_list"))["sessions"]
    together.release()
    sessions = {name: one["sessionId"] for name, one in started.items()}
    done = {name: await codex.until_settled(session_id) for name, session_id in sessions.items()}
    diffs = {name: await codex("codex_diff", sessionId=session_id) for name, session_id in sessions.items()}
    reviews = {}
    for name, one in started.items():
        review = await codex("codex_review", workingDirectory=one["worktree"]["path"], target="uncommitted")
        while review["status"] == "active":
            review = await codex("codex_review", sessionId=review["sessionId"])
        reviews[name] = review
    best = min(reviews, key=lambda name: len(reviews[name]["findings"]))
    applied = await codex("codex_apply", sessionId=sessions[best])
    discarded = {name: await codex("codex_discard", sessionId=session_id) for name, session_id in sessions.items()}
    spent = {by: await codex("codex_usage", groupBy=by) for by in ("session", "directory", "day", "model")}
    return {
        "running": running,
        "sessions": sessions,
        "done": done,
        "diffs": diffs,
        "reviews": reviews,
        "best": best,
        "applied": applied,
        "discarded": discarded,
        "spent": spent,
    }


@pytest.mark.long
async def test_three_sessions_are_reviewed_and_the_best_is_kept(
    codex_home: CodexHome, codex_binary: Path, git_repo: Path, model: ScriptedModel, together: Gate
) -> None:
    before = leaks.child_processes()
    serving = Serving.on(codex_home, codex_binary, git_repo)
    async with Client(serving.on_stdio("--tools", "sessions,extras")) as client:
        told = await orchestrate(Caller(client), git_repo, together)

    assert sum(session["isActive"] for session in told["running"]) == 3
    assert {name: one["status"] for name, one in told["done"].items()} == dict.fromkeys(ANSWERS, "done")
    for name, diff in told["diffs"].items():
        assert diff["scope"] == "worktree"
        assert {file["path"] for file in diff["files"]} == {"answer.txt", f"{name}.txt"}
    assert {name: len(review["findings"]) for name, review in told["reviews"].items()} == {
        "quick": 1,
        "careful": 0,
        "wild": 1,
    }
    assert told["reviews"]["quick"]["findings"][0]["priority"] == 0
    assert told["best"] == "careful"

    # The change that was chosen is in the repository, and nothing else is.
    assert (git_repo / "answer.txt").read_text(encoding="utf-8") == "42\n"
    assert git(git_repo, "status", "--porcelain", "--untracked-files=all") == "?? answer.txt\n?? careful.txt\n"
    assert git(git_repo, "branch", "--all", "--format=%(refname:short)").split() == ["main"]
    assert git(git_repo, "worktree", "list").count("\n") == 1
    assert not (git_repo / ".git" / "worktrees").exists()
    assert list((serving.state_dir / "worktrees").iterdir()) == []
    assert list((serving.state_dir / "worktree-records").glob("*.json")) == []

    # What the model charged is what was told, whatever it is summed up by.
    calls = len(model.requests)
    assert calls == 3 * 2 + 3 * 2
    for report in told["spent"].values():
        assert report["total"]["inputTokens"] == calls * PRICE[0]
        assert report["total"]["outputTokens"] == calls * PRICE[2]
        assert sum(group["inputTokens"] for group in report["groups"]) == calls * PRICE[0]
    assert [group["key"] for group in told["spent"]["directory"]["groups"]] == [str(git_repo)]
    assert set(told["sessions"].values()) <= {group["key"] for group in told["spent"]["session"]["groups"]}

    assert leaks.wait_until_gone(os.environ[leaks.MARKER_VARIABLE], before) == set()
