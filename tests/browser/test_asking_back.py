"""What the page asks before it does it: a rule for good, and whatever stops work or takes something away."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import Gate, ScriptedModel, run, say
from tests.browser.chromium import SECONDS, Page

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

NO_DIALOG = "document.querySelector('dialog') === null"


@pytest.fixture
async def asking(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> Session:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    session = await helm.start("touch it", cwd=folder, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


@pytest.fixture
def gate(model: ScriptedModel) -> Gate:
    return model.gate()


@pytest.fixture
async def working(helm: HelmsmanService, model: ScriptedModel, folder: Path, gate: Gate) -> Session:
    """A session at work until the gate is opened."""
    model.on("work", say("at it ", gate, "done"))
    session = await helm.start("work for ever", cwd=folder)
    with anyio.fail_after(SECONDS):
        await gate.reached()
    return session


async def ended(session: Session, status: str) -> None:
    with anyio.fail_after(SECONDS):
        while session.status != status:
            await session.feed.changed()


async def test_always_shows_its_rule_and_asks(page: Page, asking: Session, helm: HelmsmanService, folder: Path) -> None:
    await page.click("[data-answer=approve_always]")
    rule = await page.text("dialog .rule")
    assert rule.startswith('[[rules]]\neffect = "allow"')
    assert "touch made.txt" in rule
    assert str(folder) in rule
    await page.press("Enter")  # by habit, which says no
    await page.until(NO_DIALOG)
    assert asking.status == "awaiting_approval"
    assert helm.rules.listed(folder) == []
    await page.click("[data-answer=approve_always]")
    await page.click("dialog [data-yes]")
    await ended(asking, "done")
    (kept,) = helm.rules.listed(folder)
    assert kept.toml.strip() == rule.strip()


async def test_all_of_a_long_rule_is_in_the_dialog_and_no_command_writes_lines_of_it(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    command = "echo " + "x" * 300 + " outside = false\n" * 40
    model.on("long", run(command, escalate="it is needed"), say("All said."))
    session = await helm.start("a long one", cwd=folder, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
    await page.until("document.querySelector('[data-answer=approve_always]')?.scrollIntoView() ?? true")
    await page.click("[data-answer=approve_always]")
    await page.until_text("dialog .rule", "outside = true")
    box = "document.querySelector('dialog .rule')"
    assert await page.get(f"{box}.scrollHeight - {box}.clientHeight") <= 1, "nothing to scroll in"
    assert await page.get("document.querySelector('dialog').scrollTop") == 0, "its beginning is seen first"
    first, further = await page.get(
        """(() => {
            const [first, further] = [[], []];
            for (const line of document.querySelectorAll('dialog .rule-line')) {
                const text = document.createRange();
                text.selectNodeContents(line);
                const [begins, ...more] = [...text.getClientRects()].filter((part) => part.width).map((part) => part.left);
                first.push(begins);
                further.push(...more);
            }
            return [first, further];
        })()"""
    )
    assert further
    assert max(first) < min(further)


async def test_a_double_click_does_not_agree_to_the_rule(page: Page, asking: Session, helm: HelmsmanService) -> None:
    await page.click("[data-answer=approve_always]")
    x, y = await page.until(
        """(() => {
            const box = document.querySelector('dialog [data-yes]')?.getBoundingClientRect();
            return box && [box.x + box.width / 2, box.y + box.height / 2];
        })()"""
    )
    await page.click_at(x, y)
    assert not await page.get(NO_DIALOG)
    await page.until_text("dialog", "too soon")
    assert asking.status == "awaiting_approval"
    assert helm.rules.listed(None) == []


async def test_the_key_for_interrupting_asks(page: Page, working: Session) -> None:
    await page.click(".row")
    await page.until_text(".agent_message", "at it")
    await page.until("document.querySelector('.actions .danger').checkVisibility()")
    await page.hold("x", times=5)
    await page.until_text("dialog", "Interrupt this turn?")
    assert await page.count("dialog") == 1
    await page.press("Enter")
    await page.until(NO_DIALOG)
    assert working.status == "active"
    await page.press("x")
    await page.press("Escape")
    await page.until(NO_DIALOG)
    assert working.status == "active"
    await page.press("x")
    await page.click("dialog [data-yes]")
    await ended(working, "interrupted")


async def test_a_task_is_cancelled_after_a_question(page: Page, working: Session) -> None:
    await page.get("location.hash = '#/tasks'")
    await page.click(".tasks button")
    await page.until_text("dialog", "work for ever")
    await page.press("Escape")
    await page.until(NO_DIALOG)
    assert working.status == "active"
    await page.click(".tasks button")
    await page.click("dialog [data-yes]")
    await ended(working, "interrupted")
    await page.until_text(".tasks", "Cancelled")
