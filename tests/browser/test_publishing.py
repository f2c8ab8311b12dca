"""From a session to a commit and a pull request in the browser, and saved prompts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, patch, say
from tests.browser.chromium import Page
from tests.browser.test_appearance import AXE, findings
from tests.browser.test_sessions import settled
from tests.forge import Forge

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long, pytest.mark.needs_git]

ADDRESS = "https://github.com/acme/widgets.git"


def git(directory: Path, *words: str) -> str:
    done = subprocess.run(("git", *words), cwd=directory, capture_output=True, encoding="utf-8", check=True)
    return done.stdout.strip()


async def test_changes_are_committed_and_published_after_one_permission(
    page: Page,
    helm: HelmsmanService,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare, settings = tmp_path / "remote.git", tmp_path / "gitconfig"
    git(tmp_path, "clone", "--quiet", "--bare", str(git_repo), str(bare))
    git(git_repo, "remote", "add", "origin", ADDRESS)
    settings.write_text(f'[url "{bare}"]\n\tinsteadOf = {ADDRESS}\n', encoding="utf-8")
    prompts = tmp_path / "config" / "helmsman" / "prompts"
    prompts.mkdir(parents=True)
    (prompts / "greet.md").write_text("Greet $ARGUMENTS politely.", encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    model.on("Greet", patch(add("hello.txt", "hello\n")), say("The greeting is there."))
    model.on("politely", say("Good day."))
    session = await settled(await helm.start("Greet", cwd=git_repo, full_auto=True, worktree=True))
    with Forge() as forge:
        for name, value in forge.env.items():
            monkeypatch.setenv(name, value)
        await page.click(".row")
        await page.click("[role=tab]:nth-child(2)")
        await page.until_text(".lines .add", "hello")
        await page.click("[data-commit]")
        await page.until("document.querySelector('dialog textarea')?.value.startsWith('Greet')")
        if AXE.exists():
            assert await findings(page) == []
        await page.click("dialog [data-yes]")
        await page.until_text("#toasts", "Committed ")
        await page.click("[data-pull]")
        await page.until_text("dialog .note", f"You allow: This session may push to {ADDRESS}")
        assert forge.said == []
        await page.click("dialog [data-yes]")
        await page.until_text("#toasts", "Pull request: https://github.com/acme/widgets/pull/7")
        assert forge.said[0][2]["title"] == "Greet"
        assert session.state.publication.allowed == (ADDRESS,)
        assert git(bare, "show", "--format=%s", "--name-only", forge.said[0][2]["head"]) == "Greet\n\nhello.txt"

    # A saved prompt is offered, completed, and sent as its text.
    await page.click("[role=tab]:nth-child(1)")
    await page.click(".composer textarea")
    await page.write("/gr")
    await page.until_text(".composer .offered", "/greet")
    await page.press("Tab")
    await page.write("Ada")
    await page.press("Enter")
    await page.until_text(".transcript", "Greet Ada politely.")
    await page.until_text(".transcript", "Good day.")
