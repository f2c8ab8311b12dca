"""Tests that a model's proposal is confirmed in a dialog that shows everything, also with two tabs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from helmsman.base.caller_context import current
from helmsman.base.clients import HANDED, McpClient
from helmsman.model.answered_by import AnsweredBy
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from helmsman.web.login import Logins
from tests.browser.chromium import SECONDS, Chromium, Page
from tests.browser.test_no_accident import a_moment, ask, done
from tests.browser.test_overview import act
from tests.hub_service import hub_service

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

CURSOR = McpClient("pipe", "cursor")


@pytest.fixture
async def helm(
    settings: Settings, codex_home: CodexHome, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HelmsmanService]:
    monkeypatch.setenv("HELMSMAN_DETACH", "0")
    async with hub_service(settings, codex_home.env) as helm:
        yield helm


async def test_a_proposed_schedule_is_confirmed_in_a_dialog_that_says_all_of_it(
    page: Page, helm: HelmsmanService, git_repo: Path
) -> None:
    with current().on_behalf_of(CURSOR).entered():
        await helm.extras.schedules.add(
            "look at it", cron="0 7 * * 1-5", cwd=git_repo, sandbox="danger-full-access", approval_policy="never"
        )
    await page.click(".places a[href='#/schedules']")
    await page.until_text(".schedules .pill", "proposed")
    assert "Run now" not in await page.text(".schedules .buttons")
    await page.click(".schedules .buttons button:nth-child(1)")
    for shown in ("cursor", "look at it", str(git_repo), "danger-full-access", "It asks: never", "0 7 * * 1-5"):
        await page.until_text("dialog", shown)
    await page.press("Enter")  # by habit: the answer is no
    await page.until("document.querySelector('dialog') === null")
    (schedule,) = await helm.extras.schedules.list()
    assert schedule.proposed_by == "cursor"
    await page.click(".schedules .buttons button:nth-child(1)")
    await a_moment(page, "document.querySelector('dialog')")
    await page.click("dialog [data-yes]")
    await page.until_text(".schedules .pill", "active")
    (schedule,) = await helm.extras.schedules.list()
    assert (schedule.proposed_by, schedule.is_paused) == (None, False)


async def test_a_proposed_rule_is_confirmed_in_a_dialog_that_shows_it(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    with current().on_behalf_of(CURSOR).entered(), anyio.fail_after(SECONDS):
        session = await helm.start("touch it", cwd=folder, full_auto=True)
        await session.wait()
        by = AnsweredBy("agent", "cursor", "tool")
        await helm.respond(session.id, session.questions[0].id, ["approve_always"], by=by)
        await session.wait(until="end")
    await page.click(".places a[href='#/rules']")
    await page.until_text(".rule-card", "Proposed by the model of cursor")
    await page.click(".rule-card .buttons button:nth-child(1)")
    await page.until_text("dialog", "touch made.txt")
    await page.press("Enter")
    await page.until("document.querySelector('dialog') === null")
    assert helm.rules.explain("touch made.txt", folder).effect == "ask"
    await page.click(".rule-card .buttons button:nth-child(1)")
    await a_moment(page, "document.querySelector('dialog')")
    await page.click("dialog [data-yes]")
    await page.until("document.querySelectorAll('.rule-card .buttons button').length === 1")
    assert helm.rules.explain("touch made.txt", folder).effect == "allow"


async def test_a_session_is_handed_to_a_client_and_taken_back(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    asking = await ask(helm, model, folder, "one")
    await page.click(".row")
    await page.until_text(".facts", "1 turn")
    await act(page, "hand")
    await page.write("cursor")
    await a_moment(page, "document.querySelector('dialog')")
    await page.click("dialog [data-yes]")
    await page.until_text(".facts", "answered by cursor")
    assert asking.opened_by == McpClient(HANDED, "cursor")
    await act(page, "hand")
    await page.until_text("dialog h2", "take it back from cursor")
    await a_moment(page, "document.querySelector('dialog')")
    await page.click("dialog [data-yes]")
    await page.until("!document.querySelector('.facts').textContent.includes('cursor')")
    assert (await helm.session(asking.id)).opened_by is None
    assert asking.status == "awaiting_approval"


async def test_of_two_tabs_the_second_learns_that_the_question_was_answered(
    page: Page,
    helm: HelmsmanService,
    model: ScriptedModel,
    folder: Path,
    chromium: Chromium,
    server: str,
    logins: Logins,
) -> None:
    asking = await ask(helm, model, folder, "one")
    later = await ask(helm, model, folder, "two")
    async with chromium.page() as other:
        await other.goto(server + logins.new_code().path)
        for tab in (page, other):
            await tab.until("document.querySelectorAll('.question').length === 2")
        await other.get("import('/live.js').then(({live}) => live.stop())")  # it does not receive the answer
        await a_moment(page)
        await page.click(".question [data-answer=deny]")
        await page.until("document.activeElement.matches('.question textarea')")
        await page.press("Enter")
        await done(asking)
        await a_moment(other)
        await other.click(".question [data-answer=approve]")
        await other.until_text(".toast", "answered already: denied by")
        assert later.status == "awaiting_approval"
    assert not (folder / "one").exists()


@pytest.mark.parametrize("since", ["replaced", "interrupted", "answered by the client it was handed to"])
async def test_a_stale_tab_is_notified_and_grants_nothing(
    page: Page,
    helm: HelmsmanService,
    model: ScriptedModel,
    folder: Path,
    chromium: Chromium,
    server: str,
    logins: Logins,
    since: str,
) -> None:
    first = run("touch one", escalate="it is needed")
    model.on("make two", first, run("touch two", escalate="it is needed, too"), say("All said."))
    session = await helm.start("make two", cwd=folder, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
    (stale,) = session.questions
    await page.until("document.querySelectorAll('.question').length === 1")
    async with chromium.page() as other:
        await other.goto(server + logins.new_code().path)
        await other.until("document.querySelectorAll('.question').length === 1")
        await other.get("import('/live.js').then(({live}) => live.stop())")  # it does not receive later events
        with anyio.fail_after(SECONDS):
            if since == "replaced":
                await helm.respond(session.id, stale.id, ["deny"])
                while not session.questions or session.questions[0].id == stale.id:
                    await session.feed.changed()
            elif since == "interrupted":
                await helm.interrupt(session.id)
            else:
                await helm.hand(session.id, "cursor")
                by = AnsweredBy("agent", "cursor", "tool")
                with current().on_behalf_of(McpClient("pipe", "cursor")).entered():
                    await helm.respond(session.id, stale.id, ["deny"], by=by)
                while not session.questions or session.questions[0].id == stale.id:
                    await session.feed.changed()
        await a_moment(other)
        await other.click(".question [data-answer=approve]")
        await other.until_text(
            ".toast", "is closed: withdrawn" if since == "interrupted" else "answered already: denied by"
        )
        if since != "interrupted":
            assert session.status == "awaiting_approval"  # what replaced it is still open
            await other.until_text(".question", "touch two")
    assert not (folder / "one").exists()
    assert not (folder / "two").exists()
