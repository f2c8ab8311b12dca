"""Questions answered in the browser, in a race with every other via."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, patch, run, say
from helmsman.web.login import PAGE_HEADER
from mcp import Client
from tests.mcp.caller import Caller
from tests.web.browser import Browser

pytestmark = pytest.mark.anyio


@pytest.fixture
def touch(model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("done"))


@pytest.mark.usefixtures("touch")
async def test_a_question_is_shown_and_approved(browser: Browser, folder: Path, asks: dict[str, Any]) -> None:
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
    assert question["directory"] == str(folder)
    session = await browser.get(f"/api/sessions/{session_id}")
    (in_session,) = session["questions"]
    assert session["status"] == "awaiting_approval"
    assert in_session | {"deadline": question["deadline"]} == question  # it counts down
    (listed,) = (await browser.get("/api/sessions"))["sessions"]
    assert (listed["status"], listed["questions"]) == ("awaiting_approval", 1)
    assert (await browser.get("/api/overview"))["awaitingApproval"] == 1
    await browser.post(f"/api/sessions/{session_id}/questions/{question['id']}", answers=["approve"])
    assert (await browser.settled(session_id))["status"] == "done"
    assert (folder / "made.txt").exists()
    assert (await browser.get("/api/questions"))["questions"] == []


@pytest.mark.usefixtures("touch")
async def test_a_denial_tells_codex_the_reason(
    browser: Browser, model: ScriptedModel, folder: Path, asks: dict[str, Any]
) -> None:
    session_id = await browser.start("touch it", **asks)
    question = await browser.question()
    path = f"/api/sessions/{session_id}/questions/{question['id']}"
    await browser.post(path, answers=["deny: not in this directory"])
    assert (await browser.settled(session_id))["status"] == "done"
    assert not (folder / "made.txt").exists()
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
async def test_an_invalid_answer_is_refused_and_the_question_stays(browser: Browser, asks: dict[str, Any]) -> None:
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
async def test_the_first_answer_wins_and_the_other_client_is_notified(
    browser: Browser, helm: HelmsmanService, folder: Path, asks: dict[str, Any]
) -> None:
    async with Client(build_server(helm)) as client:
        agent = Caller(client)
        session_id = (await agent("codex_start", prompt="touch it", **asks))["sessionId"]
        question = await browser.question()
        await agent("codex_respond", sessionId=session_id, id=question["id"], answers=["deny"])
        path = f"/api/sessions/{session_id}/questions/{question['id']}"
        late = await browser.post(path, 409, answers=["approve"])
        assert (late["code"], late["answer"], late["by"]) == ("question_not_open", "deny", "agent: mcp 0.1.0")
        assert (await browser.settled(session_id))["status"] == "done"
        assert not (folder / "made.txt").exists()


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


async def test_a_card_that_is_out_of_date_answers_no_other_question(
    browser: Browser, model: ScriptedModel, folder: Path, asks: dict[str, Any]
) -> None:
    steps = [run(f"touch {name}", escalate="it is needed") for name in ("one", "two")]
    model.on("touch", *steps, say("done"))
    model.on("also", run("touch three", escalate="it is needed"), say("done"))
    session_id = await browser.start("touch them", **asks)
    first = await browser.question()
    await browser.post(f"/api/sessions/{session_id}/questions/{first['id']}", answers=["approve"])
    await browser.until(
        "/api/questions", lambda found: [one["id"] for one in found["questions"]] not in ([], [first["id"]])
    )
    second = await browser.question()
    stale = await browser.post(f"/api/sessions/{session_id}/questions/{first['id']}", 409, answers=["approve"])
    assert stale["code"] == "question_not_open"
    other = await browser.start("also this", **asks)
    await browser.until("/api/questions", lambda found: len(found["questions"]) == 2)
    elsewhere = await browser.post(f"/api/sessions/{other}/questions/{second['id']}", 409, answers=["approve"])
    assert elsewhere["code"] == "question_not_open"
    assert len((await browser.get("/api/questions"))["questions"]) == 2
    assert {path.name for path in folder.iterdir()} & {"two", "three"} == set()


# --- the clock, and who answered -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("touch")
async def test_a_visible_page_stops_the_clock_of_what_it_shows_and_says_when_it_does_not(
    browser: Browser, asks: dict[str, Any]
) -> None:
    await browser.start("touch it", **asks)
    question = await browser.question()
    assert question["deadline"]["paused"] is False
    assert question["deadline"]["secondsLeft"] > 200
    (told,) = (await browser.post("/api/shown", page="p1", questions=[question["id"], "q_other"]))["questions"]
    assert (told["id"], told["deadline"]["paused"]) == (question["id"], True)
    assert (await browser.question())["deadline"]["paused"] is True
    await browser.post("/api/shown", page="p2", questions=[question["id"]])
    await browser.post("/api/shown", page="p1", hidden=[question["id"]])
    assert (await browser.question())["deadline"]["paused"] is True
    await browser.post("/api/shown", page="p2", hidden=[question["id"]])
    assert (await browser.question())["deadline"]["paused"] is False


@pytest.mark.usefixtures("touch")
async def test_only_the_viewer_can_stop_the_clock(
    browser: Browser, anybody: httpx2.AsyncClient, asks: dict[str, Any]
) -> None:
    await browser.start("touch it", **asks)
    question = await browser.question()
    shown = {"page": "p", "questions": [question["id"]]}
    cookies, header = dict(anybody.cookies), anybody.headers.pop(PAGE_HEADER)
    assert (await anybody.post("/api/shown", json=shown)).status_code == 403
    anybody.cookies.clear()
    assert (await anybody.post("/api/shown", json=shown)).status_code == 401
    anybody.cookies.update(cookies)
    anybody.headers[PAGE_HEADER] = header
    assert (await browser.question())["deadline"]["paused"] is False


@pytest.mark.usefixtures("touch")
async def test_the_audit_log_tells_a_person_in_the_dashboard_from_a_program_with_the_token(
    browser: Browser, anybody: httpx2.AsyncClient, helm: HelmsmanService, token: str, asks: dict[str, Any]
) -> None:
    for credentials in ({}, {"Authorization": f"Bearer {token}"}):
        session_id = await browser.start("touch it", **asks)
        path = f"/api/sessions/{session_id}/questions/{(await browser.question())['id']}"
        assert (await anybody.post(path, json={"answers": ["deny"]}, headers=credentials)).status_code == 200
        await browser.settled(session_id)
        entries = (await browser.get(f"/api/sessions/{session_id}/transcript"))["entries"]
        (decision,) = [entry["item"] for entry in entries if entry["item"]["type"] == "decision"]
        said = "by a program through the dashboard's API" if credentials else "by you in the dashboard"
        assert decision["outcome"] == f"denied {said}"
    lines = (helm.settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert [(entry["by"], entry["via"]) for entry in map(json.loads, lines)] == [
        ("person", "dashboard"),
        ("program", "api"),
    ]
