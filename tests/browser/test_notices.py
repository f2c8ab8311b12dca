"""A new question is told of at once: in the title, the icon, the page, and by the browser where it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from helmsman.testing import run, say
from tests.browser.chromium import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman import Helmsman
    from helmsman.sessions.session import Session
    from helmsman.testing import ScriptedModel
    from tests.browser.chromium import Page

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

ICON = "document.querySelector('link[rel=icon]').getAttribute('href')"
RECORD_NOTIFICATIONS = """
    window.told = [];
    window.Notification = class extends Notification {
        constructor(title, options) {
            super(title, options);
            told.push(this);
        }
    };
"""


async def ask(helm: Helmsman, model: ScriptedModel, directory: Path) -> Session:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    session = await helm.start("touch it", cwd=directory, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def answer(helm: Helmsman, session: Session) -> None:
    await helm.respond(session.id, session.questions[0].id, ["deny"])


async def test_title_and_icon_tell_of_a_question_until_it_is_answered(
    page: Page, helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    await page.get("location.hash = '#/usage'")
    await page.until("document.title === 'Usage · Helmsman'")
    assert await page.get(ICON) == "/icon.svg"
    session = await ask(helm, model, folder)
    await page.until("document.title === '(1) Usage · Helmsman'")
    assert await page.get(ICON) == "/icon-asking.svg"
    assert await page.get(f"fetch({ICON}).then((answer) => answer.ok)")
    await answer(helm, session)
    await page.until("document.title === 'Usage · Helmsman'")
    assert await page.get(ICON) == "/icon.svg"


async def test_a_notice_leads_to_a_question_that_is_not_on_the_page(
    page: Page, helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    model.on("rest", say("resting"))
    other = await helm.start("rest a while", cwd=folder)
    with anyio.fail_after(SECONDS):
        await other.wait()
    await page.get(f"location.hash = '#/s/{other.id}'")
    await page.until_text(".agent_message", "resting")
    session = await ask(helm, model, folder)
    await page.until_text(".notice", "Codex asks you: touch it")
    await page.click(".notice a")
    await page.until_text(".session .question", "touch made.txt")
    await page.until("document.querySelector('.notice') === null")
    assert session.status == "awaiting_approval"


async def test_a_notice_goes_with_its_question_and_none_comes_where_it_stands(
    page: Page, helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    first = await ask(helm, model, folder)
    await page.until_text(".home .question", "touch made.txt")
    assert await page.count(".notice") == 0
    await answer(helm, first)
    await page.until("document.querySelector('.question') === null")
    await page.get("location.hash = '#/tasks'")
    await page.until("document.body.dataset.view === 'tasks'")
    second = await ask(helm, model, folder)
    await page.until_text(".notice", "touch it")
    await answer(helm, second)
    await page.until("document.querySelector('.notice') === null")
    third = await ask(helm, model, folder)
    await page.click(".notice button")
    assert await page.count(".notice") == 0
    assert third.status == "awaiting_approval"


async def test_the_browser_notifies_only_after_a_click_and_only_who_does_not_look(
    page: Page, helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    await page.allow_notifications()
    await page.get(RECORD_NOTIFICATIONS)
    await page.call("Emulation.setFocusEmulationEnabled", enabled=False)
    await page.get("document.hasFocus = () => false")  # as with another window in front
    unasked = await ask(helm, model, folder)
    await page.until("document.title === '(1) Helmsman'")
    assert await page.get("told.length") == 0
    await answer(helm, unasked)
    await page.until("document.title === 'Helmsman'")

    await page.click("#notify")
    await page.until("document.getElementById('notify').ariaPressed === 'true'")
    session = await ask(helm, model, folder)
    await page.until("told.length === 1")
    title, body, tag = await page.get("[told[0].title, told[0].body, told[0].tag]")
    assert (title, body, tag) == ("Codex asks you", "touch it", session.questions[0].id)
    await page.get("told[0].dispatchEvent(new Event('click'))")
    await page.until_text(".session .question", "touch made.txt")
    await answer(helm, session)

    await page.get("delete document.hasFocus")
    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    await ask(helm, model, folder)
    await page.until("document.title.startsWith('(1)')")
    assert await page.get("told.length") == 1
