"""Tests that the page recovers after the hub is killed while only a browser is connected."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from helmsman.testing import ScriptedModel, run, say
from mcp import Client
from tests.browser.chromium import SECONDS, Chromium
from tests.hub.conftest import Place, place
from tests.hub.test_http import Dashboard
from tests.mcp.caller import Caller

__all__ = ["place"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

HEAR = """
    import('/live.js').then(({live}) => {
        window.heard = [];
        live.addEventListener('state', (event) => heard.push(event.detail));
    })
"""


async def test_the_page_comes_back_by_itself_and_its_question_can_be_answered(
    place: Place, model: ScriptedModel, folder: Path, chromium: Chromium
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("It is made."))
    async with Client(place.on_stdio()) as client:
        asking = {"prompt": "touch it", "sandbox": "read-only", "approvalPolicy": "on-request"}
        started = await Caller(client)("codex_start", workingDirectory=str(folder), **asking)
        assert (await Caller(client).until_settled(started["sessionId"]))["status"] == "awaiting_approval"
    dashboard = Dashboard(place.env, place.directory)
    async with dashboard.turned_on() as shown, chromium.page() as page:
        await page.goto(f"{shown['address']}#login={shown['code']}")
        await page.until_text(".question", "touch made.txt")
        await page.get(HEAR)
        await place.kill_hub()
        await page.until("heard.includes('live')")
        await page.click("[data-answer=approve]")
        await page.until_text("h1", "Nothing is waiting for you")
        with anyio.fail_after(SECONDS):
            while not (folder / "made.txt").exists():
                await anyio.sleep(0.02)
