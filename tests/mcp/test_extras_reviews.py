"""`codex_review` through the Python client, in both eras, on a real Codex."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import ScriptedModel, always, run, say
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

ANSWER = json.dumps(
    {
        "findings": [
            {
                "title": "[P2] The port is wrong",
                "body": "It must be 80.",
                "confidence_score": 0.9,
                "priority": 2,
                "code_location": {"absolute_file_path": "README.md", "line_range": {"start": 1, "end": 1}},
            }
        ],
        "overall_correctness": "patch is incorrect",
        "overall_explanation": "It breaks the port.",
        "overall_confidence_score": 0.75,
    }
)


def found(directory: str) -> dict[str, object]:
    return {
        "title": "The port is wrong",
        "body": "It must be 80.",
        "priority": 2,
        "confidence": 0.9,
        "file": f"{directory}/README.md",
        "startLine": 1,
        "endLine": 1,
    }


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, tools=("sessions", "extras"))


@pytest.fixture(params=["legacy", "auto"])
async def codex(request: pytest.FixtureRequest, helm: HelmsmanService) -> AsyncIterator[Caller]:
    async with Client(build_server(helm), mode=request.param) as client:
        yield Caller(client)


@pytest.fixture
def changed(git_repo: Path) -> str:
    (git_repo / "README.md").write_text("# Changed\n", encoding="utf-8")
    return str(git_repo)


async def test_the_findings_come_with_the_call(codex: Caller, model: ScriptedModel, changed: str) -> None:
    model.otherwise(run("git diff"), say(ANSWER))
    done = await codex("codex_review", workingDirectory=changed)
    assert (done["status"], done["findings"], done["verdict"]) == ("done", [found(changed)], "patch is incorrect")
    assert (done["verified"], done["rejected"], [one["ok"] for one in done["evidence"]]) == (True, [], [True, True])
    assert "It breaks the port." in done["text"]
    assert done["taskId"].startswith("T-local-")


async def test_a_review_that_takes_longer_is_read_on(codex: Caller, model: ScriptedModel, changed: str) -> None:
    gate = model.gate()
    model.otherwise([gate, say(ANSWER)])
    begun = await codex("codex_review", workingDirectory=changed, timeoutSec=0)
    assert begun["status"] == "active"
    assert "findings" not in begun
    gate.release()
    done = await codex("codex_review", sessionId=begun["sessionId"])
    assert (done["status"], done["findings"], done["taskId"]) == ("done", [found(changed)], begun["taskId"])
    assert done == await codex("codex_review", sessionId=begun["sessionId"])


async def test_where_nothing_changed_it_says_so(codex: Caller, model: ScriptedModel, git_repo: Path) -> None:
    said = await codex("codex_review", workingDirectory=str(git_repo), target="base", branch="main")
    assert said["nothingToReview"] is True
    assert said["findings"] == []
    assert "sessionId" not in said
    assert model.requests == []


async def test_the_session_that_did_the_work_can_be_reviewed_and_told_to_mend(
    codex: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("echo new > README.md"), say("Done"))
    model.on("Review the current code changes", always(say(ANSWER)))
    model.on("mend", say("Mended"))
    writes = {"sandbox": "workspace-write", "approvalPolicy": "never"}
    started = await codex("codex_start", prompt="work", workingDirectory=str(git_repo), **writes)
    session_id = started["sessionId"]
    await codex.until_settled(session_id)
    inside = await codex("codex_review", sessionId=session_id, target="uncommitted")
    assert (inside["sessionId"], inside["findings"]) == (session_id, [found(str(git_repo))])
    beside = await codex("codex_review", sessionId=session_id, target="uncommitted", detached=True)
    assert beside["sessionId"] != session_id
    assert beside["findings"] == [found(str(git_repo))]
    await codex("codex_say", sessionId=session_id, message="mend")
    assert (await codex.until_settled(session_id))["result"] == "Mended"


async def test_wrong_arguments_are_explained(codex: Caller, changed: str) -> None:
    assert "workingDirectory" in (await codex.error("codex_review"))["message"]
    assert "branch" in (await codex.error("codex_review", workingDirectory=changed, target="base"))["message"]
    stray = await codex.error("codex_review", workingDirectory=changed, branch="main")
    assert "target base" in stray["message"]
    unknown = await codex.error("codex_review", workingDirectory=changed, target="base", branch="nowhere")
    assert (unknown["code"], "nowhere" in unknown["message"]) == ("invalid_input", True)


async def test_a_session_without_a_review_has_no_findings(codex: Caller, model: ScriptedModel, git_repo: Path) -> None:
    model.on("hello", say("Hello"))
    session_id = (await codex("codex_start", prompt="hello", workingDirectory=str(git_repo)))["sessionId"]
    await codex.until_settled(session_id)
    assert "no review" in (await codex.error("codex_review", sessionId=session_id))["message"]
