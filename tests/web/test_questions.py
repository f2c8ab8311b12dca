"""Questions answered in the browser, in a race with every other door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from helmsman.mcp.server import build_server
from helmsman.testing import add, patch, run, say
from mcp import Client
from tests.mcp.caller import Caller

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman import Helmsman
    from helmsman.testing import ScriptedModel
    from tests.web.browser import Browser

pytestmark = pytest.mark.anyio


@pytest.fixture
def touch(model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("done"))


@pytest.mark.usefixtures("touch")
async def test_a_question_is_shown_and_approved(browser: Browser, git_repo: Path, asks: dict[str, Any]) -> None:
    session_id = await browser.start("touch it", **asks)
    question = await browser.question()
    assert (question["sessionId"], question["type"], question["summary"]) == (
        session_id,
        "command_approval",
        "touch it",
    )
    (part,) = question["questions"]
    assert {"approve", "approve_session", "deny"} <= set(part["options"])
    assert "touch made.txt" in question["details"]["command"]
    assert question["directory"] == str(git_repo)
    session = await browser.get(f"/api/sessions/{session_id}")
    assert (session["status"], session["questions"]) == ("awaiting_approval", [question])
    (listed,) = (await browser.get("/api/sessions"))["sessions"]
    assert (listed["status"], listed["questions"]) == ("awaiting_approval", 1)
    assert (await browser.get("/api/overview"))["awaitingApproval"] == 1
    await browser.post(f"/api/sessions/{session_id}/questions/{question['id']}", answers=["approve"])
    assert (await browser.settled(session_id))["status"] == "done"
    assert (git_repo / "made.txt").exists()
    assert (await browser.get("/api/questions"))["questions"] == []


@pytest.mark.usefixtures("touch")
async def test_a_denial_tells_codex_the_reason(
    browser: Browser, model: ScriptedModel, git_repo: Path, asks: dict[str, Any]
) -> None:
    session_id = await browser.start("touch it", **asks)
    question = await browser.question()
    path = f"/api/sessions/{session_id}/questions/{question['id']}"
    await browser.post(path, answers=["deny: not in this directory"])
    assert (await browser.settled(session_id))["status"] == "done"
    assert not (git_repo / "made.txt").exists()
    assert "not in this directory" in str(model.requests[-1].body)


async def test_a_change_is_shown_as_a_diff(
    browser: Browser, model: ScriptedModel, tmp_path: Path, asks: dict[str, Any]
) -> None:
    outside = tmp_path / "outside.txt"
    model.on("write", patch(add(str(outside), "hello")), say("done"))
    session_id = await browser.start("write it", **asks | {"sandbox": "read-only"})
    question = await browser.question()
    assert question["type"] == "patch_approval"
    assert "+hello" in question["details"]["diff"]
    await browser.post(f"/api/sessions/{session_id}/questions/{question['id']}", answers=["deny"])
    await browser.settled(session_id)
    assert not outside.exists()


@pytest.mark.usefixtures("touch")
async def test_what_is_no_answer_is_refused_and_the_question_stays(browser: Browser, asks: dict[str, Any]) -> None:
    session_id = await browser.start("touch it", **asks)
    question = await browser.question()
    path = f"/api/sessions/{session_id}/questions/{question['id']}"
    for answers in ([], ["approve", "approve"], ["perhaps"]):
        assert (await browser.post(path, 400, answers=answers))["code"] == "answer_invalid"
    assert (await browser.post(f"{path}x", 409, answers=["approve"]))["code"] == "question_not_open"
    assert (await browser.question())["id"] == question["id"]
    await browser.post(path, answers=["abort"])
    assert (await browser.settled(session_id))["status"] == "interrupted"


@pytest.mark.usefixtures("touch")
async def test_the_first_answer_wins_and_the_other_door_is_told(
    browser: Browser, helm: Helmsman, git_repo: Path, asks: dict[str, Any]
) -> None:
    async with Client(build_server(helm)) as client:
        agent = Caller(client)
        session_id = await browser.start("touch it", **asks)
        question = await browser.question()
        await agent("codex_respond", sessionId=session_id, id=question["id"], answers=["deny"])
        path = f"/api/sessions/{session_id}/questions/{question['id']}"
        late = await browser.post(path, 409, answers=["approve"])
        assert (late["code"], late["answer"], late["by"]) == ("question_not_open", "deny", "agent: mcp 0.1.0")
        assert (await browser.settled(session_id))["status"] == "done"
        assert not (git_repo / "made.txt").exists()


@pytest.mark.usefixtures("touch")
async def test_of_many_answers_at_once_exactly_one_counts(browser: Browser, asks: dict[str, Any]) -> None:
    session_id = await browser.start("touch it", **asks)
    question = await browser.question()
    path = f"/api/sessions/{session_id}/questions/{question['id']}"
    outcomes: list[int] = []

    async def answer() -> None:
        outcomes.append((await browser.http.post(path, json={"answers": ["approve"]})).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(answer)
    assert sorted(outcomes) == [200] + 7 * [409]
    assert (await browser.settled(session_id))["status"] == "done"
