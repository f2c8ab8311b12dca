"""The page of schedules in a real browser, with what begins them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, say
from tests.browser.chromium import Page
from tests.hub_service import hub_service

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare]


@pytest.fixture
async def helm(
    settings: Settings, codex_home: CodexHome, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HelmsmanService]:
    """A hub's, but for engines that outlive it."""
    monkeypatch.setenv("HELMSMAN_DETACH", "0")
    async with hub_service(settings, codex_home.env) as helm:
        yield helm


async def fill(page: Page, name: str, text: str) -> None:
    """Write into an empty field, or over what is in it."""
    await page.get(f"document.querySelector('dialog [name={name}]').select()")
    await page.get(f"document.querySelector('dialog [name={name}]').focus()")
    await page.write(text)


async def test_a_schedule_is_added_run_paused_and_removed(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("look at it", say("all is well"))
    await page.click(".places a[href='#/schedules']")
    await page.until_text("main .empty", "No schedules yet")
    await page.click("main .page-head button")
    await fill(page, "prompt", "look at it")
    await fill(page, "when", "often")
    await fill(page, "workingDirectory", str(git_repo))
    await page.click("dialog button[type=submit]")
    await page.until_text("dialog .note.bad", "five fields")
    await fill(page, "when", "0 7 * * 1-5")
    await page.click("dialog button[type=submit]")
    await page.until_text(".schedules code", "0 7 * * 1-5")
    (schedule,) = await helm.extras.schedules.list()
    assert (schedule.prompt, schedule.directory) == ("look at it", str(git_repo))
    await page.click(".schedules .buttons button:nth-child(1)")
    await page.until_text(".schedules .runs .pill", "Done")
    await page.click(".schedules .buttons button:nth-child(2)")
    await page.until_text(".schedules .pill", "paused")
    await page.click(".schedules .buttons .danger")
    await page.click("dialog [data-yes]")
    await page.until_text("main .empty", "No schedules yet")
    assert await helm.extras.schedules.list() == ()
