"""The button of a turn that takes the session back to before it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, run, say
from tests.browser.chromium import SECONDS, Page

pytestmark = [
    *(pytest.mark.anyio, pytest.mark.browser, pytest.mark.long, pytest.mark.needs_git),
    pytest.mark.usefixtures("snapshots"),
]

YES = "document.querySelector('dialog [data-yes]')"


async def test_a_turn_is_taken_back_by_its_button_after_a_look_and_the_rewind_too(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("first", run("echo one > a.txt"), say("Made."))
    model.on("second", run("echo two > a.txt"), say("Changed."))
    session = await helm.start("first", cwd=git_repo, sandbox="workspace-write", approval_policy="never")
    with anyio.fail_after(SECONDS):
        await session.wait(until="end")
        await session.say("second")
        await session.wait(until="end")
    await page.goto(f"{await page.get('location.origin')}/#/s/{session.id}")
    await page.click("[role=tab]:nth-child(3)")
    await page.click(".turns li:nth-child(2) .rewind")
    await page.until_text("dialog .rewind-preview", "turn 2: second")
    await page.until_text("dialog .rewind-preview", "modified  a.txt  +1 -1")
    await page.click("dialog [data-yes]")
    await page.until_text(".toast", "is back to before turn 2")
    assert (git_repo / "a.txt").read_text(encoding="utf-8") == "one\n"
    await page.until("document.querySelectorAll('.turns li').length === 1")
    await page.click(".turns li .rewind")
    await page.until_text("dialog .rewind-preview", "before turn 1")
    await page.get(
        "(() => { const one = document.querySelector('dialog select'); one.value = 'undo';"
        " one.dispatchEvent(new Event('change')); })()"
    )
    await page.until_text("dialog .rewind-preview", "continues as session")
    await page.until(f"{YES}.disabled === false")
    await page.click("dialog [data-yes]")
    await page.until(f"location.hash.startsWith('#/s/') && !location.hash.includes('{session.id}')")
    assert (git_repo / "a.txt").read_text(encoding="utf-8") == "two\n"
    await page.until_text(".transcript", "Changed.")
    await page.until_text(".row[aria-current] .summary", "first")
