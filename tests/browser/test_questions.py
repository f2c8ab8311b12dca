"""Questions in the browser: announced, approved and denied by click and by key, and lost to a faster client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import ScriptedModel, ask_user, question, run, say
from tests.browser.chromium import SECONDS, Page

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
async def asking(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> Session:
    """A session that waits for an answer."""
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    session = await helm.start("touch it", cwd=folder, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
    assert session.status == "awaiting_approval"
    return session


async def press_twice(page: Page, key: str) -> None:
    """The first press shows which question is meant, the second answers it, once it has been seen for a moment."""
    await page.press(key)
    assert await page.get("document.activeElement.matches('.question')")
    await settle(page)
    await page.press(key)


async def settle(page: Page) -> None:
    await page.until("document.querySelector('.question').dataset.settled === 'yes'")
    await page.get("import('/answering.js').then(({MOMENT}) => new Promise((done) => setTimeout(done, MOMENT + 250)))")


async def done(session: Session) -> None:
    with anyio.fail_after(SECONDS):
        while session.status != "done":
            await session.feed.changed()


async def test_a_question_is_announced_and_approved_with_a_click(page: Page, asking: Session, folder: Path) -> None:
    await page.until_text(".question", "touch made.txt")
    await page.until_text(".question", "it is needed")
    assert "touch made.txt" in await page.get("document.getElementById('announcer').textContent")
    assert await page.get("document.title") == "(1) Helmsman"
    await page.until_text(".rows h2", "Waiting for you")
    await page.click("[data-answer=approve]")
    await done(asking)
    assert (folder / "made.txt").exists()
    await page.until_text("h1", "Nothing is waiting for you")
    await page.until("document.title === 'Helmsman'")
    assert await page.count(".question") == 0


async def test_a_question_is_approved_with_a_key(page: Page, asking: Session, folder: Path) -> None:
    await page.until_text(".question", "touch made.txt")
    await press_twice(page, "y")
    await done(asking)
    assert (folder / "made.txt").exists()


async def test_the_address_of_a_question_leads_to_it(page: Page, asking: Session) -> None:
    (question,) = asking.questions
    await page.until_text(".question", "touch made.txt")
    await page.get(f"location.hash = '#/s/{asking.id}/question/{question.id}'")
    await page.until(f"document.activeElement.dataset.question === {question.id!r}")
    assert await page.count(".session .question") == 1


async def test_a_denial_asks_for_the_reason_and_codex_reads_it(
    page: Page, asking: Session, model: ScriptedModel, folder: Path
) -> None:
    await page.click(".row")
    await page.until_text(".session .question", "touch made.txt")
    await press_twice(page, "n")
    await page.until("document.activeElement.matches('.question textarea')")
    await page.press("Escape")
    await page.until("document.activeElement.matches('[data-answer=deny]')")
    await settle(page)
    await page.press("n")
    await page.write("not on a Sunday")
    await page.press("Enter")
    await done(asking)
    assert "not on a Sunday" in str(model.requests[-1].body)
    assert not (folder / "made.txt").exists()
    await page.until("document.querySelector('.question') === null")
    await page.until_text(".agent_message", "All said.")


async def test_of_several_questions_the_first_key_only_shows_which_is_meant(
    page: Page, helm: HelmsmanService, asking: Session, folder: Path
) -> None:
    second = await helm.start("touch it again", cwd=folder, full_auto=True)
    await page.until("document.querySelectorAll('.question').length === 2")
    await page.press("y")
    assert await page.get("document.activeElement === document.querySelector('.question')")
    assert asking.status == "awaiting_approval"
    await settle(page)
    await page.press("y")
    await done(asking)
    await page.until("document.querySelectorAll('.question').length === 1")
    assert second.status == "awaiting_approval"
    await page.until("document.activeElement.matches('.question')")
    await settle(page)
    await page.press("y")
    await done(second)


async def test_letters_are_only_letters_while_one_writes(page: Page, asking: Session) -> None:
    await page.until_text(".question", "touch made.txt")
    await page.click(".search input")
    await page.press("y")
    await page.press("j")
    assert await page.get("document.querySelector('.search input').value") == "yj"
    assert asking.status == "awaiting_approval"


async def test_a_choice_of_codexs_own_is_answered(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    colours = question("Which colour?", "Red", "Blue", id="colour")
    sizes = question("Which size?", "Small", "Large", id="size")
    model.on("paint", ask_user(colours, sizes), say("Painted."))
    options: dict[str, Any] = {"config": {"features.default_mode_request_user_input": True}}
    session = await helm.start("paint it", cwd=folder, full_auto=True, **options)
    await page.until_text(".question", "Which colour?")
    await page.click(".question fieldset:nth-of-type(1) input[value=Blue]")
    await page.click(".question fieldset:nth-of-type(2) input[value=Large]")
    await page.click(".question [type=submit]")
    await done(session)
    answered = str(model.requests[-1].body)
    assert "Blue" in answered
    assert "Large" in answered
