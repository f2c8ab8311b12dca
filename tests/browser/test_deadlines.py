"""The clock of a question in a real browser: it counts down, and stands still while its card is on a visible screen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.approvals.deadline import Deadline
from helmsman.base.structs import replace
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.browser.chromium import SECONDS, Page

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]


@pytest.fixture
async def helm(
    settings: Settings, codex_home: CodexHome, request: pytest.FixtureRequest
) -> AsyncIterator[HelmsmanService]:
    """A question has so many seconds as the test says, or five minutes."""
    async with HelmsmanService(
        replace(settings, approval_timeout=getattr(request, "param", 300.0)), env=codex_home.env
    ) as helm:
        yield helm


async def start(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> Session:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    session = await helm.start("touch it", cwd=folder, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def go(page: Page, place: str) -> None:
    await page.get(f"location.hash = {json.dumps(place)}")


async def set_window(page: Page, state: str) -> None:
    await page.call("Emulation.setFocusEmulationEnabled", enabled=False)  # with it, a page is visible whatever happens
    window: dict[str, Any] = await page.call("Browser.getWindowForTarget")
    await page.call("Browser.setWindowBounds", windowId=window["windowId"], bounds={"windowState": state})
    await page.until(f"document.visibilityState === '{'hidden' if state == 'minimized' else 'visible'}'")


async def until_paused(deadline: Deadline, wanted: bool) -> None:
    with anyio.fail_after(SECONDS):
        while deadline.is_paused is not wanted:
            await anyio.sleep(0.02)


async def test_the_clock_stands_still_while_the_card_is_on_a_visible_page(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    session = await start(helm, model, folder)
    (deadline,) = session.deadlines.values()
    await page.until_text(".question .deadline", "paused while you look")
    assert deadline.is_paused
    await set_window(page, "minimized")
    await until_paused(deadline, False)
    await set_window(page, "normal")
    await until_paused(deadline, True)
    await go(page, "#/usage")
    await until_paused(deadline, False)


async def test_a_card_that_is_scrolled_away_is_not_on_screen(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    session = await start(helm, model, folder)
    (deadline,) = session.deadlines.values()
    await page.until_text(".question .deadline", "paused while you look")
    await page.get("document.querySelector('.question').style.marginTop = '5000px'")
    await until_paused(deadline, False)
    await page.until_text(".question .deadline", "unless answered")


@pytest.mark.parametrize("helm", [3.0], indirect=True)
async def test_an_unseen_question_is_denied_and_the_status_says_so(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    await go(page, "#/usage")
    session = await start(helm, model, folder)
    with anyio.fail_after(SECONDS):
        while session.status != "done":
            await session.feed.changed()
    await go(page, f"#/s/{session.id}")
    await page.until_text(".session .state", "A question timed out")
    await page.until_text(".session .note", "timed out and was denied")
    await page.until_text(".entry.decision", "denied: no answer in 3 s")
    await go(page, "#/")
    await page.until_text(f"[data-session='{session.id}']", "A question timed out")
    under = "document.querySelector('.row .under')"
    assert await page.get(f"{under}.scrollWidth <= {under}.clientWidth"), "nothing is cut off"
    assert await page.get(f"{under}.querySelector('.place').clientWidth > 60"), "the directory has room"
    assert not (folder / "made.txt").exists()
