"""Sessions through the dashboard's API: started, listed, looked into, steered, stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from helmsman import load_settings
from helmsman.base.structs import replace
from helmsman.httpd.application import build_app
from helmsman.httpd.listening import HttpOptions
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, fail, hang, patch, run, say, update, usage
from tests.web.browser import SECONDS, Browser

pytestmark = pytest.mark.anyio


async def test_a_session_is_started_listed_and_shown(browser: Browser, model: ScriptedModel, folder: Path) -> None:
    model.on("greet", say("Hello there"))
    session_id = await browser.start("greet me", workingDirectory=str(folder))
    session = await browser.settled(session_id)
    assert (session["status"], session["result"], session["turnCount"]) == ("done", "Hello there", 1)
    assert session["workingDirectory"] == str(folder)
    assert (session["questions"], session["queued"], session["itemEvents"]) == ([], 0, [])
    (listed,) = (await browser.get("/api/sessions"))["sessions"]
    assert (listed["sessionId"], listed["summary"], listed["isActive"]) == (session_id, "greet me", False)
    assert (listed["status"], listed["agent"], session["agent"]) == ("done", "codex", "codex")
    assert listed["taskIds"] == session["taskIds"]


async def test_a_running_session_is_marked_at_once(browser: Browser, model: ScriptedModel, folder: Path) -> None:
    gate = model.gate()
    model.on("work", say("so far", gate, " done"))
    session_id = await browser.start("work", workingDirectory=str(folder))
    for params in ({}, {"running": "1"}):
        (listed,) = (await browser.get("/api/sessions", **params))["sessions"]
        assert (listed["sessionId"], listed["isActive"], listed["status"]) == (session_id, True, "active")
        assert listed["agent"] == "codex"
    assert (await browser.get("/api/overview"))["running"] == 1
    with anyio.fail_after(SECONDS):
        await gate.reached()
    gate.release()
    await browser.settled(session_id)
    assert (await browser.get("/api/sessions", running="1"))["sessions"] == []
    assert (await browser.get("/api/overview"))["running"] == 0


async def test_a_transcript_has_messages_commands_and_diffs(
    browser: Browser, model: ScriptedModel, git_repo: Path, asks: dict[str, Any]
) -> None:
    model.on("work", run("echo one; exit 3"), patch(update("README.md", "# Repository", "# Changed")), say("done"))
    (git_repo / "README.md").write_text("# Repository\n", encoding="utf-8")
    session_id = await browser.start("work", **asks | {"workingDirectory": str(git_repo)})
    await browser.settled(session_id)
    page = await browser.get(f"/api/sessions/{session_id}/transcript")
    items = {entry["item"]["type"]: entry["item"] for entry in page["entries"]}
    assert items["user_message"]["text"] == "work"
    assert (items["command_execution"]["exitCode"], items["command_execution"]["output"].strip()) == (3, "one")
    (change,) = items["file_change"]["changes"]
    assert (change["kind"], change["added"], change["removed"]) == ("modified", 1, 1)
    assert ["add", "+# Changed", None, 1] in change["lines"]
    assert items["agent_message"]["text"] == "done"
    assert [entry["index"] for entry in page["entries"]] == list(range(page["total"]))
    assert (await browser.get(f"/api/sessions/{session_id}"))["hasDiff"]
    (file,) = (await browser.get(f"/api/sessions/{session_id}/diff"))["files"]
    assert (file["path"], file["added"], file["removed"]) == ("README.md", 1, 1)
    assert ["add", "+# Changed", None, 1, [[2, ""], [7, "word"]]] in file["lines"]  # the word that changed is marked


async def test_the_transcript_of_a_running_turn_grows_where_it_is(
    browser: Browser, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("first", say("one"))
    model.on("second", say("almost", gate, " two"))
    session_id = await browser.start("first", workingDirectory=str(folder))
    await browser.settled(session_id)
    await browser.post(f"/api/sessions/{session_id}/say", message="second")
    path = f"/api/sessions/{session_id}/transcript"
    with anyio.fail_after(SECONDS):
        await gate.reached()
    during = await browser.until(path, lambda page: page["entries"][-1]["item"].get("text") == "almost")
    assert [entry["turn"] for entry in during["entries"]] == [1, 1, 2, 2]
    gate.release()
    await browser.settled(session_id)
    after = await browser.get(path)
    assert [entry["item"]["text"] for entry in after["entries"]] == ["first", "one", "second", "almost two"]
    assert [entry["index"] for entry in after["entries"]] == [entry["index"] for entry in during["entries"]]


async def test_the_timeline_has_each_turn_with_its_time_and_usage(
    browser: Browser, model: ScriptedModel, folder: Path
) -> None:
    model.on("first", say("one"), usage(input_tokens=100, output_tokens=10))
    model.on("second", run("true"), say("two"))
    session_id = await browser.start("first", workingDirectory=str(folder))
    await browser.settled(session_id)
    await browser.post(f"/api/sessions/{session_id}/say", message="second")
    await browser.settled(session_id)
    first, second = (await browser.get(f"/api/sessions/{session_id}/turns"))["turns"]
    assert (first["number"], first["prompt"], first["status"], first["firstIndex"]) == (1, "first", "done", 0)
    assert first["usage"]["inputTokens"] == 100
    assert second["kinds"]["command_execution"] == 1
    assert second["firstIndex"] == first["items"]
    assert first["startedAt"] <= first["endedAt"] <= second["endedAt"]
    assert [first["taskId"], second["taskId"]] == (await browser.get(f"/api/sessions/{session_id}"))["taskIds"]


async def test_a_turn_is_steered_and_interrupted(browser: Browser, model: ScriptedModel, folder: Path) -> None:
    model.on("work", run("sleep 1000"), hang())
    session_id = await browser.start("work", workingDirectory=str(folder))
    path = f"/api/sessions/{session_id}"
    await browser.until(
        f"{path}/transcript",
        lambda page: any(entry["item"]["type"] == "command_execution" for entry in page["entries"]),
    )
    assert (await browser.post(f"{path}/say", 409, message="and this"))["code"] == "session_busy"
    (folder / "seen.png").touch()
    picture = {"message": "and this", "whenBusy": "steer", "images": [str(folder / "seen.png")]}
    assert "no images" in (await browser.post(f"{path}/say", 400, **picture))["message"]
    assert (await browser.post(f"{path}/steer", message="and this"))["status"] == "active"
    assert (await browser.post(f"{path}/interrupt"))["status"] == "interrupted"
    assert (await browser.post(f"{path}/steer", 409, message="more"))["code"] == "session_idle"
    assert (await browser.post(f"{path}/interrupt"))["status"] == "interrupted"


async def test_the_list_is_searched_and_paged(browser: Browser, model: ScriptedModel, folder: Path) -> None:
    model.on("", say("ok"))
    ids = []
    for prompt in ("mend the parser", "paint the shed", "mend the fence"):
        ids.append(await browser.start(prompt, workingDirectory=str(folder)))
        await browser.settled(ids[-1])
    page = await browser.get("/api/sessions", limit=2)
    rest = await browser.get("/api/sessions", limit=2, cursor=page["nextCursor"])
    assert [one["sessionId"] for one in page["sessions"] + rest["sessions"]] == ids[::-1]
    assert "nextCursor" not in rest
    found = await browser.get("/api/sessions", query="mend")
    assert [one["summary"] for one in found["sessions"]] == ["mend the fence", "mend the parser"]
    assert len((await browser.get("/api/sessions", directory=str(folder)))["sessions"]) == 3
    assert (await browser.get("/api/sessions", directory="/elsewhere"))["sessions"] == []
    with anyio.fail_after(SECONDS):
        while "unread" in (both := await browser.get("/api/search", q="PARSER")):
            await anyio.sleep(0.05)
    assert [one["summary"] for one in both["sessions"]] == ["mend the parser"]
    assert [task["instruction"] for task in both["tasks"]] == ["mend the parser"]
    assert await browser.get("/api/search", q="") == {"sessions": [], "tasks": []}


async def test_a_session_of_an_earlier_process_is_shown_as_codex_has_it(
    browser: Browser, model: ScriptedModel, folder: Path, settings: Settings, codex_home: CodexHome
) -> None:
    model.on("before", say("It was so"))
    async with HelmsmanService(settings, env=codex_home.env) as earlier:
        session = await earlier.start("before", cwd=folder)
        await session.wait(timeout=SECONDS)
    shown = await browser.get(f"/api/sessions/{session.id}")
    assert (shown["status"], shown["result"]) == ("done", "It was so")
    page = await browser.get(f"/api/sessions/{session.id}/transcript")
    assert [entry["item"]["text"] for entry in page["entries"]] == ["before", "It was so"]
    (turn,) = (await browser.get(f"/api/sessions/{session.id}/turns"))["turns"]
    assert turn["startedAt"] <= turn["endedAt"]


async def test_a_turn_that_another_process_runs_is_shown_once(
    browser: Browser, model: ScriptedModel, folder: Path, settings: Settings, codex_home: CodexHome
) -> None:
    gate = model.gate()
    model.on("look around", run("echo seen"), say(gate, "Nothing here"))
    async with HelmsmanService(settings, env=codex_home.env) as other:
        session = await other.start("look around", cwd=folder)
        with anyio.fail_after(SECONDS):
            await gate.reached()
        shown = await browser.get(f"/api/sessions/{session.id}")
        assert shown["status"] == "active"
        assert "only it can steer, stop and answer it" in shown["elsewhere"]  # so the page offers neither
        (task,) = (await browser.get("/api/tasks"))["tasks"]
        assert (task["elsewhere"], task["note"]) == (True, shown["elsewhere"])  # nor does the list of tasks
        entries = (await browser.get(f"/api/sessions/{session.id}/transcript"))["entries"]
        assert [entry["item"].get("text") for entry in entries if entry["item"]["type"] == "user_message"] == [
            "look around"
        ]
        (turn,) = (await browser.get(f"/api/sessions/{session.id}/turns"))["turns"]
        assert turn["status"] == "active"
        gate.release()
        await session.wait(timeout=SECONDS)


async def test_turns_of_the_exec_engine_are_remembered_while_the_server_runs(
    model: ScriptedModel, git_repo: Path, codex_binary: Path, codex_home: CodexHome, tmp_path: Path, token: str
) -> None:
    model.on("first", run("echo one"), say("done"))
    model.on("second", say("again"))
    flags = {"codex_path": str(codex_binary), "engine": "exec"}
    bearer = {"Authorization": f"Bearer {token}"}
    async with HelmsmanService(load_settings(flags, codex_home.env, tmp_path), env=codex_home.env) as helm:
        transport = httpx2.ASGITransport(build_app(helm, token=token, options=HttpOptions()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", headers=bearer) as http:
            browser = Browser(http)
            session_id = await browser.start("first", workingDirectory=str(git_repo), approvalPolicy="never")
            await browser.settled(session_id)
            await browser.post(f"/api/sessions/{session_id}/say", message="second")
            await browser.settled(session_id)
            entries = (await browser.get(f"/api/sessions/{session_id}/transcript"))["entries"]
    shown = [(entry["turn"], entry["item"]["type"], entry["item"].get("text")) for entry in entries]
    assert shown == [
        (1, "user_message", "first"),
        (1, "command_execution", None),
        (1, "agent_message", "done"),
        (2, "user_message", "second"),
        (2, "agent_message", "again"),
    ]


@pytest.mark.parametrize("part", ["", "/turns", "/transcript", "/transcript/0", "/diff"])
async def test_an_unknown_session_is_not_found(browser: Browser, part: str) -> None:
    answer = await browser.http.get(f"/api/sessions/0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f00{part}")
    assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")


async def test_how_each_session_ended_is_listed_before_it_is_opened_also_after_a_restart(
    browser: Browser, model: ScriptedModel, folder: Path, settings: Settings, codex_home: CodexHome
) -> None:
    gate = model.gate()
    model.on("end well", say("It was so"))
    model.on("fail", fail(400, message="The tide is out."))
    model.on("stop", say("at it ", gate))
    model.on("touch", run("touch made.txt", escalate="please"), say("As you wish"))
    earlier = replace(settings, approval_timeout=1)
    async with HelmsmanService(earlier, env=codex_home.env) as helm:
        sessions = {}
        for prompt in ("end well", "fail now", "stop it", "touch it"):
            session = sessions[prompt] = await helm.start(prompt, cwd=folder, full_auto=True)
            if prompt == "stop it":
                with anyio.fail_after(SECONDS):
                    await gate.reached()
                await helm.interrupt(session.id)
            await session.wait(timeout=SECONDS, until="end")
    listed = {one["summary"]: one for one in (await browser.get("/api/sessions"))["sessions"]}
    assert {prompt: one["status"] for prompt, one in listed.items()} == {
        "end well": "done",
        "fail now": "error",
        "stop it": "interrupted",
        "touch it": "done",
    }
    assert "touch made.txt" in listed["touch it"]["timedOut"][0]
    (denied,) = (await browser.get("/api/sessions", state="denied"))["sessions"]
    assert denied["sessionId"] == sessions["touch it"].id
    (failed,) = (await browser.get("/api/sessions", state="error", project=str(folder.resolve())))["sessions"]
    entries = (await browser.get(f"/api/sessions/{failed['sessionId']}/transcript"))["entries"]
    assert [entry["item"]["type"] for entry in entries] == ["user_message", "error"]
    assert "The tide is out." in entries[-1]["item"]["message"]
