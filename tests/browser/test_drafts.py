"""No typed text is lost, nothing is off the screen at any width, and a phone shows code."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, patch, say
from tests.browser.chromium import Page
from tests.browser.test_appearance import AXE, findings
from tests.browser.test_sessions import settled

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long, pytest.mark.needs_git]

WIDTHS = (320, 390, 768, 820, 900, 1024, 1280, 1920, 3840)
LINES = "".join(f"value_{number} = {number}\n" for number in range(60))


async def test_typed_text_outlives_other_pages_reloads_and_forms(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("write values", patch(add("values.py", LINES)), say("Written."))
    await settled(await helm.start("write values", cwd=git_repo, full_auto=True, worktree=True))

    # A message to a session: another page, and a reload.
    await page.click(".row")
    await page.click(".composer textarea")
    await page.write("Half a message")
    await page.get("location.hash = '#/tasks'")
    await page.until("document.body.dataset.view === 'tasks'")
    await page.get("history.back()")
    await page.until("document.querySelector('.composer textarea')?.value === 'Half a message'")
    await page.call("Page.reload")
    await page.until("document.querySelector('.composer textarea')?.value === 'Half a message'")

    # A comment: another line, and a reload.
    await page.click("[role=tab]:nth-child(2)")
    await page.until_text(".lines .add", "value_0")
    await page.click("[data-line='3'] .no")
    await page.write("Why this one?")
    await page.click("[data-line='5'] .no")
    await page.until("document.querySelectorAll('.comment.asked').length === 2")
    await page.call("Page.reload")
    await page.until("document.querySelector('.comment.asked textarea')?.value === 'Why this one?'")
    assert await page.count(".comment.asked") == 1
    await page.click(".comment.asked [type=submit]")
    await page.until_text(".comment.kept", "Why this one?")
    await page.call("Page.reload")
    await page.until_text(".comment.kept", "Why this one?")
    assert await page.count(".comment.asked") == 0

    # A new session: Escape closes the form, and its text is there again.
    await page.click("#new")
    await page.until("document.activeElement?.name === 'prompt'")
    await page.write("A new idea")
    await page.press("Escape")
    await page.until("!document.querySelector('dialog')")
    await page.click("#new")
    await page.until("document.querySelector('dialog textarea')?.value === 'A new idea'")
    await page.press("Escape")


async def test_every_control_is_on_the_screen_and_a_phone_shows_25_lines_of_code(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("write values", patch(add("values.py", LINES)), say("Written."))
    session = await settled(await helm.start("write values", cwd=git_repo, full_auto=True, worktree=True))
    for width in WIDTHS:
        await page.resize(width, 844)
        assert await page.get("document.documentElement.scrollWidth <= innerWidth"), f"at {width}"
        rights = "[...document.querySelectorAll('.tools button')].map((one) => one.getBoundingClientRect().right)"
        assert await page.get(f"Math.max(...{rights}) <= innerWidth"), f"at {width}"

    await page.resize(1280, 800)
    await page.click(".row")
    await page.until_text(".facts", session.id[-8:])  # as the terminal calls it
    await page.resize(390, 844)
    await page.click("[role=tab]:nth-child(2)")
    await page.until_text(".lines .add", "value_0")
    seen = """(() => {
        const box = document.querySelector('.panel:not([hidden])').getBoundingClientRect();
        const end = Math.min(box.bottom, innerHeight);
        const lines = [...document.querySelectorAll('.lines .line')].map((line) => line.getBoundingClientRect());
        return lines.filter(({ height, top, bottom }) => height > 0 && top >= box.top && bottom <= end).length;
    })()"""
    assert await page.get(seen) >= 25
    buttons = "[...document.querySelectorAll('.changes button')].filter((one) => one.checkVisibility())"
    for width in (320, 390):
        await page.resize(width, 844)
        assert await page.get(f"{buttons}.map((one) => one.textContent).includes('Apply')")
        assert await page.get(f"Math.max(...{buttons}.map((one) => one.getBoundingClientRect().right)) <= innerWidth")
    if AXE.exists():
        assert await findings(page) == []

    # Text follows the font size that the browser is set to.
    await page.resize(1280, 800)
    small = await page.get("parseFloat(getComputedStyle(document.querySelector('.facts')).fontSize)")
    await page.get("document.documentElement.style.fontSize = '32px'")
    assert await page.get("parseFloat(getComputedStyle(document.querySelector('.facts')).fontSize)") == 2 * small
    await page.get("document.documentElement.style.fontSize = ''")

    # A session that does not exist offers nothing to do.
    await page.get("location.hash = '#/s/deadbeef'")
    await page.until_text(".session-head h1", "There is no such session")
    assert not await page.get("document.querySelector('.composer').checkVisibility()")
    assert not await page.get("document.querySelector('[data-part=actions]').checkVisibility()")


async def test_sessions_that_ended_unseen_are_marked_and_found_by_a_few_letters(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("Say hello", say("Hello."))
    model.on("Tell a story", say("Once."))
    first = await settled(await helm.start("Say hello", cwd=git_repo))
    await page.until(f"document.querySelector('.row.unread')?.dataset.session === '{first.id}'")
    await page.click(".row")
    await page.until_text(".transcript", "Hello.")
    await settled(await helm.start("Tell a story", cwd=git_repo))
    await page.until("document.querySelectorAll('.row.unread').length === 1")
    await page.until_text(".row.unread", "Tell a story")

    palette = "new KeyboardEvent('keydown', {key: 'k', code: 'KeyK', ctrlKey: true, bubbles: true, cancelable: true})"
    await page.get(f"document.dispatchEvent({palette})")
    await page.until("document.activeElement?.role === 'combobox'")
    await page.write("sto")
    await page.until_text(".palette-list [aria-selected=true]", "Tell a story")
    if AXE.exists():
        assert await findings(page) == []
    await page.press("Enter")
    await page.until_text(".session-head h1", "Tell a story")
    await page.until("document.querySelectorAll('.row.unread').length === 0")
    await page.get(f"document.dispatchEvent({palette})")
    await page.until("document.activeElement?.role === 'combobox'")
    await page.write("usage")
    await page.press("Enter")
    await page.until("document.body.dataset.view === 'usage'")
