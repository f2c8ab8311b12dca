"""Labels of sessions, and several sessions archived at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.testing import ScriptedModel, say
from tests.web.browser import Browser

pytestmark = pytest.mark.anyio


async def labels(browser: Browser, **filters: Any) -> dict[str, list[str]]:
    listed = (await browser.get("/api/sessions", **filters))["sessions"]
    return {one["sessionId"]: one.get("labels", []) for one in listed}


async def test_sessions_are_found_by_their_labels_and_archived_together(
    browser: Browser, model: ScriptedModel, folder: Path
) -> None:
    model.on("rest", say("resting"))
    one, other = [await browser.start("rest", workingDirectory=str(folder)) for _ in range(2)]
    for session in (one, other):
        await browser.until(f"/api/sessions/{session}", lambda shown: shown["status"] == "done")
    known = await browser.post("/api/labels", sessions=[one, other], add=["release", " bug "])
    assert known == {"labels": ["bug", "release"]}
    await browser.post("/api/labels", sessions=[other], remove=["bug"])
    assert await labels(browser) == {one: ["bug", "release"], other: ["release"]}
    assert await labels(browser, label="bug") == {one: ["bug", "release"]}
    assert (await browser.get(f"/api/sessions/{one}"))["labels"] == ["bug", "release"]
    assert (await browser.get("/api/overview"))["labels"] == ["bug", "release"]
    await browser.post("/api/labels", expect=400, sessions=[one], add=["two\nlines"])
    await browser.post("/api/labels", expect=404, sessions=["01a1ec1a-0000-7000-8000-000000000000"], add=["x"])
    done = await browser.post("/api/archive", sessions=[one, "01a1ec1a-0000-7000-8000-000000000000"])
    assert done["archived"] == [one]
    assert [refused["sessionId"] for refused in done["refused"]] == ["01a1ec1a-0000-7000-8000-000000000000"]
    assert await labels(browser) == {other: ["release"]}
