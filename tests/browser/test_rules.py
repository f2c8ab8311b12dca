"""The page of rules: seen by file, asked which one decides, taken back."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import ScriptedModel, run, say
from tests.browser.chromium import SECONDS, Page

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

WRITTEN = """
[[rules]]
effect = "allow"
command = ["npm", "test"]
"""


@pytest.fixture
async def approved(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> Session:
    """A session whose question was answered with "always"."""
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    session = await helm.start("touch it", cwd=folder, full_auto=True)
    with anyio.fail_after(SECONDS):
        await session.wait()
        await helm.respond(session.id, session.questions[0].id, ["approve_always"])
        await session.wait(until="end")
    return session


async def test_rules_are_seen_explained_and_taken_back(
    page: Page, helm: HelmsmanService, approved: Session, folder: Path
) -> None:
    await page.click(".places a[href='#/rules']")
    await page.until_text(".rules-file h3", "rules.toml")
    await page.until_text(".rule-card", "touch made.txt")
    await page.until_text(".rule-card", "allow")
    await page.until("document.querySelector('.explain [name=place]').value !== ''")
    assert await page.get("document.querySelector('.explain [name=place]').value") == str(folder)
    await page.click(".explain [name=command]")
    await page.write("touch made.txt")
    await page.press("Enter")
    await page.until_text(".decision [data-effect=allow]", "Allowed")
    await page.until_text(".decision pre", "touch made.txt")
    await page.get("document.querySelector('.explain [name=command]').select()")
    await page.write("npm publish")
    await page.press("Enter")
    await page.until_text(".decision [data-effect=ask]", "You are asked")
    await page.click("[data-add=deny]")
    await page.until_text("dialog .rule", 'effect = "deny"')
    await page.click("dialog [data-yes]")
    await page.until("document.querySelectorAll('.rule-card').length === 2")
    await page.get("document.querySelector('.explain [type=submit]').click()")
    await page.until_text(".decision [data-effect=deny]", "Denied")
    denied = next(one for one in helm.rules.listed(None) if one.rule.effect == "deny")
    assert denied.rule.command == ("npm", "publish")
    helm.rules.remove(denied.id)
    await page.click(".rule-card[aria-label*='touch'] .danger")
    await page.until_text("dialog", "touch made.txt")
    await page.press("Escape")
    await page.until("document.querySelector('dialog') === null")
    assert len(helm.rules.listed(None)) == 1
    await page.click(".rule-card[aria-label*='touch'] .danger")
    await page.click("dialog [data-yes]")
    await page.until_text(".rules", "No rules.")
    assert helm.rules.listed(None) == []


async def test_a_directory_adds_the_rules_of_its_project(page: Page, helm: HelmsmanService, folder: Path) -> None:
    helm.rules.permanent_path.parent.mkdir(parents=True, exist_ok=True)
    helm.rules.permanent_path.write_text(WRITTEN, encoding="utf-8")
    helm.rules.permanent_path.chmod(0o600)
    (folder / "helmsman.toml").write_text('[[rules]]\neffect = "deny"\ncommand = ["git", "push"]\n', encoding="utf-8")
    await page.get("location.hash = '#/rules'")
    await page.until("document.querySelectorAll('.rule-card').length === 1")
    await page.get(f"document.querySelector('.ask-rules input').value = {json.dumps(str(folder))}")
    await page.click(".ask-rules button")
    await page.until("document.querySelectorAll('.rule-card').length === 2")
    await page.until_text(".rules-file h3", str(folder / "helmsman.toml"))
    await page.until_text(".rule-card", "git")
