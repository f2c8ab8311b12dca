"""Several sessions at once, in the list: labels, and the archive."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, say
from tests.browser.chromium import SECONDS, Page

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]


async def test_selected_sessions_get_a_label_and_are_archived(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("rest", say("resting"))
    for number in range(3):
        session = await helm.start(f"rest {number}", cwd=folder)
        with anyio.fail_after(SECONDS):
            await session.wait()
    await page.until("document.querySelectorAll('.row').length === 3")
    await page.click(".list-pane .select")
    for place in (1, 2):
        await page.click(f".list-pane li:nth-child({place}) input.selected")
    await page.until_text(".selection", "2 selected")
    await page.click("[data-selected=label]")
    await page.type_quickly("bug")
    await page.click("dialog [data-yes]")
    await page.until("document.querySelectorAll('.row .label').length === 2")
    await page.get("location.hash = '#/?label=bug'")
    await page.until("document.querySelectorAll('.row').length === 2")
    await page.click(".list-pane .select")
    await page.click(".list-pane li:nth-child(1) input.selected")
    await page.click("[data-selected=archive]")
    await page.until("document.querySelectorAll('.row').length === 1")
    await page.get("location.hash = '#/?label='")
    await page.until("document.querySelectorAll('.row').length === 2")
