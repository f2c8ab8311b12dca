"""Tasks, engines, usage and the overview through the API, and what it says to requests that make no sense."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from helmsman import load_settings
from helmsman.httpd.application import build_app
from helmsman.httpd.listening import HttpOptions
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, hang, rate_limit, run, say, usage
from helmsman.web.json_http import MAX_BODY_BYTES
from tests.hub_service import hub_service
from tests.web.browser import SECONDS, Browser

pytestmark = pytest.mark.anyio


async def test_the_overview_says_what_runs_here(
    browser: Browser, codex_version: tuple[int, ...], codex_binary: Path
) -> None:
    overview = await browser.get("/api/overview")
    assert overview["codex"] == {"version": ".".join(map(str, codex_version)), "path": str(codex_binary)}
    assert (overview["running"], overview["atOnce"], overview["questions"], overview["directories"]) == (0, 0, 0, [])
    assert overview["defaultDirectory"] == str(Path.cwd())


async def test_without_codex_the_page_still_opens(codex_home: CodexHome, token: str, tmp_path: Path) -> None:
    settings = load_settings({"codex_path": str(tmp_path / "none")}, codex_home.env, tmp_path)
    bearer = {"Authorization": f"Bearer {token}"}
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        transport = httpx2.ASGITransport(build_app(helm, token=token, options=HttpOptions()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", headers=bearer) as http:
            overview = (await http.get("/api/overview")).json()
            assert overview["codexError"]["code"] == "codex_not_found"
            assert "codex" not in overview
            refused = await http.post("/api/sessions", json={"prompt": "go", "workingDirectory": str(tmp_path)})
            assert (refused.status_code, refused.json()["code"]) == (502, "codex_not_found")


async def test_tasks_are_listed_shown_and_cancelled(browser: Browser, model: ScriptedModel, folder: Path) -> None:
    model.on("quick", say("ok"))
    model.on("slow", run("sleep 1000"), hang())
    reads = {"sandbox": "read-only", "approvalPolicy": "never"}
    await browser.settled(await browser.start("quick one", workingDirectory=str(folder), **reads))
    slow = await browser.start("slow one", workingDirectory=str(folder))
    both = await browser.get("/api/tasks")
    assert [task.get("unchanged", False) for task in both["tasks"]] == [False, True]
    assert [task["instruction"] for task in both["tasks"]] == ["slow one", "quick one"]
    (running,) = (await browser.get("/api/tasks", status="pending,working"))["tasks"]
    assert (running["sessionId"], running["mode"], running["agent"]) == (slow, "local", "codex")
    page = await browser.get("/api/tasks", limit=1)
    rest = await browser.get("/api/tasks", limit=1, cursor=page["nextCursor"])
    assert [task["instruction"] for task in rest["tasks"]] == ["quick one"]
    assert (await browser.get("/api/tasks", origin="cloud"))["tasks"] == []
    assert (await browser.get("/api/tasks", agent="other"))["tasks"] == []
    of_codex = (await browser.get("/api/tasks", agent="codex"))["tasks"]
    assert [task["taskId"] for task in of_codex] == [task["taskId"] for task in both["tasks"]]
    assert (await browser.get(f"/api/tasks/{running['alias']}"))["taskId"] == running["taskId"]
    done = await browser.post(f"/api/tasks/{running['taskId']}/cancel", reason="enough")
    assert done["task"]["status"] == "canceled"
    assert "enough" in done["task"]["note"]
    assert (await browser.http.get("/api/tasks/T-local-none")).status_code == 404


async def test_rate_limits_are_reported_with_when_they_are_reset(
    browser: Browser, model: ScriptedModel, folder: Path
) -> None:
    unknown = await browser.get("/api/account")
    assert (unknown["limits"], unknown["largeTaskFits"]) == ([], "unknown")
    resets_at = int(time.time()) + 3600
    model.on("one", [say("ok"), rate_limit(90, window_minutes=300, resets_at=resets_at)])
    await browser.settled(await browser.start("one", workingDirectory=str(folder)))
    (limit,) = (await browser.get("/api/account"))["limits"]
    assert (limit["remainingPercent"], limit["windowMinutes"]) == (10, 300)
    assert datetime.fromisoformat(limit["resetsAt"]).timestamp() == resets_at


async def test_usage_is_grouped_and_adds_up(browser: Browser, model: ScriptedModel, folder: Path) -> None:
    model.on("one", [say("ok"), usage(100, 20, 10)])
    model.on("two", [say("ok"), usage(200, 0, 30)])
    for prompt in ("one", "two"):
        await browser.settled(await browser.start(prompt, workingDirectory=str(folder)))
    for by, rows in (("day", 1), ("model", 1), ("directory", 1), ("session", 2)):
        report = await browser.get("/api/usage", by=by)
        assert (report["by"], len(report["rows"]), report["omitted"]) == (by, rows, 0)
        assert (report["total"]["inputTokens"], report["total"]["turns"]) == (300, 2)
        assert sum(row["outputTokens"] for row in report["rows"]) == report["total"]["outputTokens"] == 40
    first = await browser.get("/api/usage", by="session", limit=1, since="all")
    assert (len(first["rows"]), first["omitted"], "since" in first) == (1, 1, False)
    assert first["rows"][0]["inputTokens"] == 200
    assert (await browser.get("/api/usage", by="directory"))["rows"][0]["key"] == str(folder)


@pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")
async def test_engines_are_shown_with_what_runs_in_them(
    codex_binary: Path,
    codex_home: CodexHome,
    detached_engines: Path,
    model: ScriptedModel,
    folder: Path,
    tmp_path: Path,
    token: str,
) -> None:
    model.on("work", hang())
    settings = load_settings({"codex_path": str(codex_binary), "detach": True}, codex_home.env, tmp_path)
    bearer = {"Authorization": f"Bearer {token}"}
    async with hub_service(settings, codex_home.env) as helm:
        transport = httpx2.ASGITransport(build_app(helm, token=token, options=HttpOptions()))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:1", headers=bearer, timeout=SECONDS
        ) as http:
            assert (await http.get("/api/engines")).json() == {"engines": []}
            session = await helm.start("work", cwd=folder)
            with anyio.fail_after(SECONDS):
                while not (shown := (await http.get("/api/engines")).json())["engines"][0]["running"]:
                    pass  # Codex says so of itself, a moment after the turn began
            (engine,) = shown["engines"]
            assert (engine["status"], engine["running"], engine["sessions"]) == ("in use", 1, [session.id])
            assert shown["own"] == {"name": "app-server", "id": engine["id"]}
            await helm.interrupt(session.id)


async def test_invalid_input_is_reported(browser: Browser, folder: Path) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/api/sessions", {"limit": "many"}),
        ("/api/sessions", {"limit": "0"}),
        ("/api/sessions", {"cursor": "x"}),
        ("/api/tasks", {"status": "asleep"}),
        ("/api/tasks", {"origin": "moon"}),
        ("/api/tasks", {"cursor": "x"}),
        ("/api/usage", {"by": "mood"}),
        ("/api/usage", {"since": "ever"}),
    ]
    for begins in ("~nobody-of-this-name/", "/a\0b/", "relative"):
        assert (await browser.get("/api/directories", begins=begins))["directories"] == []
    for path, params in requests:
        answer = await browser.http.get(path, params=params)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input"), (path, params, answer.text)
    bodies: list[Any] = [
        b"",
        b"{",
        b"[]",
        b'{"prompt": 3}',
        b'{"prompt": "x", "colour": "red"}',
        b"[" * 100_000,
        b"\xff",
    ]
    for content in bodies:
        answer = await browser.http.post("/api/sessions", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input"), content[:40]
    missing = {"prompt": "x", "workingDirectory": str(folder / "none")}
    assert (await browser.post("/api/sessions", 400, **missing))["code"] == "invalid_input"
    large = await browser.http.post(
        "/api/sessions", content=b" " * (MAX_BODY_BYTES + 1), headers={"Content-Type": "application/json"}
    )
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    for path in ("/api/", "/api/nothing", "/api/sessions/x/y/z"):
        nothing = await browser.http.get(path)
        assert (nothing.status_code, nothing.json()["code"]) == (404, "not_found"), path


async def test_trouble_of_our_own_is_an_answer_too(
    browser: Browser, helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(**_options: Any) -> Any:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(helm, "list", broken)
    answer = await browser.http.get("/api/sessions")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
