"""Tests that a new question is announced immediately: in the title, the icon, the page, and the browser."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.hub.notifier import Notifier
from helmsman.model.question_text import describe
from helmsman.notices.config import NotifySettings, Recipient
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import ScriptedModel, run, say
from tests.browser.chromium import SECONDS, Page
from tests.browser.test_deadlines import set_window

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare]

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


async def ask(helm: HelmsmanService, model: ScriptedModel, directory: Path) -> Session:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    session = await helm.start("touch it", cwd=directory, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def answer(helm: HelmsmanService, session: Session) -> None:
    await helm.respond(session.id, session.questions[0].id, ["deny"])


async def test_title_and_icon_tell_of_a_question_until_it_is_answered(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    await page.get("location.hash = '#/usage'")
    await page.until("document.title === 'Usage · Helmsman'")
    assert await page.get(ICON) == "icon.svg"
    session = await ask(helm, model, folder)
    await page.until("document.title === '(1) Usage · Helmsman'")
    assert await page.get(ICON) == "icon-asking.svg"
    assert await page.get(f"fetch({ICON}).then((answer) => answer.ok)")
    await answer(helm, session)
    await page.until("document.title === 'Usage · Helmsman'")
    assert await page.get(ICON) == "icon.svg"


async def test_a_notice_leads_to_a_question_that_is_not_on_the_page(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("rest", say("resting"))
    other = await helm.start("rest a while", cwd=folder)
    with anyio.fail_after(SECONDS):
        await other.wait()
    await page.get(f"location.hash = '#/s/{other.id}'")
    await page.until_text(".agent_message", "resting")
    session = await ask(helm, model, folder)
    await page.until_text(".notice", "outside the sandbox: touch it")
    await page.click(".notice a")
    await page.until_text(".session .question", "touch made.txt")
    await page.until("document.querySelector('.notice') === null")
    assert session.status == "awaiting_approval"


async def test_a_notice_goes_with_its_question_and_none_comes_where_it_stands(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
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
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
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
    assert (title, body, tag) == (describe(session.questions[0]).title, "touch it", session.questions[0].id)
    await page.get("told[0].dispatchEvent(new Event('click'))")
    await page.until_text(".session .question", "touch made.txt")
    await answer(helm, session)

    await page.get("delete document.hasFocus")
    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    await ask(helm, model, folder)
    await page.until("document.title.startsWith('(1)')")
    assert await page.get("told.length") == 1


async def test_unwatched_ends_and_questions_are_notified_as_configured(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    told_by_hub(helm)
    await page.allow_notifications()
    await page.get(RECORD_NOTIFICATIONS)
    await page.click("#notify")
    await set_window(page, "minimized")
    model.on("rest", say("All is well."))
    await ended(await helm.start("rest a while", cwd=git_repo))
    await page.until("told.length === 1")
    title, body = await page.get("[told[0].title, told[0].body]")
    assert (title, body) == (f"{git_repo.name}: Codex is done", "rest a while\n\nAll is well.")
    asked = await ask(helm, model, git_repo)
    await page.until("told.length === 2")
    title, tag = await page.get("[told[1].title, told[1].tag]")
    assert (title, tag) == (
        f"{git_repo.name}: Codex asks to run a command outside the sandbox",
        asked.questions[0].id,
    )
    await sent(helm, 2)
    await answer(helm, asked)
    await page.until("told.length === 3")
    await sent(helm, 3)
    await page.get("told[0].dispatchEvent(new Event('click'))")
    await set_window(page, "normal")
    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    await page.until_text(".agent_message", "All is well.")

    model.on("again", say("All is well again."))
    again = await helm.start("again", cwd=git_repo)
    await ended(again)
    await page.until(
        f"document.querySelector('.notice[data-session=\"{again.id}\"]')?.innerText.includes('Codex is done')"
    )
    assert await page.get("told.length") == 3, "who looks needs no more"
    await page.get(f"location.hash = '#/s/{again.id}'")
    await page.until_text(".agent_message", "All is well again.")
    await page.until(f"document.querySelector('.notice[data-session=\"{again.id}\"]') === null")


async def test_an_end_that_is_on_screen_is_not_notified(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    told_by_hub(helm)
    session = await ask(helm, model, git_repo)
    await page.get(f"location.hash = '#/s/{session.id}'")
    await page.until_text(".session .question", "touch made.txt")
    with anyio.fail_after(SECONDS):
        while not session.is_watched:
            await anyio.sleep(0.02)
    await answer(helm, session)
    await ended(session)
    with anyio.fail_after(SECONDS):
        await helm.task_writer.write()
        while await helm.notices.due():
            await anyio.sleep(0.02)
    assert [one.notification.kind for one in await helm.extras.notices.log()] in ([], ["question"])


async def sent(helm: HelmsmanService, number: int) -> None:
    """Wait until a page has confirmed this many notifications."""
    with anyio.fail_after(SECONDS):
        while [one.status for one in await helm.extras.notices.log()] != ["sent"] * number:
            await anyio.sleep(0.02)


def told_by_hub(helm: HelmsmanService) -> None:
    """Send all notifications to the browser, like a hub."""
    to = Recipient(name="browser", way="browser", is_full=True)
    notifier = Notifier(helm._shared, load=lambda: NotifySettings((to,), unanswered=0.0))
    helm.in_background(notifier.run)


async def ended(session: Session) -> Session:
    """Wait for its end, like a page that is not watched."""
    with anyio.fail_after(SECONDS):
        while session.state.is_running:
            await anyio.sleep(0.02)
    return session
