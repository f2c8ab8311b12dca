"""Much of everything: 500 sessions, 10,000 events, megabytes of output. Pages stay small and nothing is lost."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.model.events import CommandExecution, ItemEnded, McpToolCall
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import ScriptedModel, say
from tests.web.browser import SECONDS, Browser

pytestmark = [pytest.mark.anyio, pytest.mark.rare]

EVENTS = 10_000
PAGE_BYTES = 3 * 1024 * 1024


async def test_500_sessions_are_listed_page_by_page(
    browser: Browser, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("", say("ok"))
    first = await browser.start("the first of many", workingDirectory=str(folder))
    await browser.settled(first)
    info = await helm.agent_records.find(first)
    assert info is not None
    assert info.path is not None
    content = info.path.read_text(encoding="utf-8")
    for _ in range(499):
        copy = str(uuid.uuid4())
        path = info.path.with_name(info.path.name.replace(first, copy))
        path.write_text(content.replace(first, copy), encoding="utf-8")
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 10_000}
    while True:
        page = await browser.get("/api/sessions", **params)
        assert 0 < len(page["sessions"]) <= 200
        seen += [one["sessionId"] for one in page["sessions"]]
        if "nextCursor" not in page:
            break
        params["cursor"] = page["nextCursor"]
    assert len(seen) == len(set(seen)) == 500
    assert first in seen
    assert (await browser.get("/api/overview"))["directories"] == [str(folder)]


async def make_events(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> tuple[Session, Any]:
    """A turn that really runs, with 10,000 more things done in it than Codex did."""
    gate = model.gate()
    model.on("work", say("almost", gate, " done"))
    session = await helm.start("work", cwd=folder)
    with anyio.fail_after(SECONDS):
        await gate.reached()
        while not any(item.type == "agent_message" for item in session.items):
            await session.feed.changed()
    for number in range(EVENTS):
        output = "x" * 2_000_000 if number == 5000 else f"line {number}\n"
        item = CommandExecution(id=f"call-{number}", command=f"echo {number}", exit_code=0, output=output)
        session.apply(ItemEnded(session_id=session.id, turn_id=session.state.turn_id, item=item))
    return session, gate


async def test_a_transcript_of_10000_events_is_read_in_pages_from_both_ends(
    browser: Browser, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    session, gate = await make_events(helm, model, folder)
    path = f"/api/sessions/{session.id}/transcript"
    newest = await browser.get(path)
    total = newest["total"]
    assert total >= EVENTS + 2
    assert len(newest["entries"]) == 100
    assert newest["next"] == total

    backwards: list[dict[str, Any]] = []
    before = total
    while before > 0:
        answer = await browser.http.get(path, params={"before": before, "limit": 5000})
        page = answer.json()
        assert len(answer.content) < PAGE_BYTES
        assert 0 < len(page["entries"]) <= 500
        assert page["next"] == before
        backwards = page["entries"] + backwards
        before = page["first"]
    forwards: list[dict[str, Any]] = []
    while len(forwards) < total:
        page = await browser.get(path, after=len(forwards), limit=500)
        assert page["first"] == len(forwards)
        forwards += page["entries"]
    assert [entry["index"] for entry in backwards] == list(range(total))
    assert [entry["item"]["id"] for entry in forwards] == [entry["item"]["id"] for entry in backwards]

    gate.release()
    await browser.settled(session.id)
    after = await browser.get(path)
    assert after["total"] == total
    (turn,) = (await browser.get(f"/api/sessions/{session.id}/turns"))["turns"]
    assert (turn["items"], turn["kinds"]["command_execution"]) == (total, EVENTS)
    status = await browser.http.get(f"/api/sessions/{session.id}")
    assert len(status.content) < 100_000


async def test_a_long_output_is_cut_in_a_page_and_whole_by_itself(
    browser: Browser, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    session, gate = await make_events(helm, model, folder)
    path = f"/api/sessions/{session.id}/transcript"
    page = await browser.get(path, after=4990, limit=30)
    (long,) = [entry for entry in page["entries"] if "cut" in entry]
    output = long["item"]["output"]
    assert len(output) < 10_000
    assert output.count("x") + long["cut"] == 2_000_000
    whole = await browser.get(f"{path}/{long['index']}")
    assert (len(whole["item"]["output"]), "cut" in whole) == (2_000_000, False)
    missing = await browser.http.get(f"{path}/{page['total']}")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    gate.release()
    await browser.settled(session.id)


async def test_hostile_items_stay_small_and_are_only_ever_json(
    browser: Browser, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("almost", gate, " done"))
    session = await helm.start("work", cwd=folder)
    with anyio.fail_after(SECONDS):
        await gate.reached()
    deep: Any = "core"
    for _ in range(200):
        deep = [deep]
    script = "<script>alert(1)</script>\ud800\x00"
    arguments = {"deep": deep, "wide": list(range(100_000)), script: script}
    item = McpToolCall(id="m", server="lab", tool=script, arguments=arguments, result="é" * 500_000)
    session.apply(ItemEnded(session_id=session.id, turn_id=session.state.turn_id, item=item))
    answer = await browser.http.get(f"/api/sessions/{session.id}/transcript")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.content) < 200_000
    (entry,) = [one for one in answer.json()["entries"] if one["item"]["type"] == "mcp_tool_call"]
    assert entry["item"]["tool"] == "<script>alert(1)</script>\\ud800\\x00"
    assert len(entry["item"]["arguments"]["wide"]) == 200
    assert entry["cut"] > 490_000
    gate.release()
    await browser.settled(session.id)
