"""Several agents in the browser: chosen for a new session, told apart in lists, filtered, and offered only what they can."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.acp.agent import AcpAgent
from helmsman.agents.acp.profile import OwnAgent
from helmsman.sessions.session import Session
from helmsman.testing import CodexHome, ScriptedModel, run, say
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, says, waits
from tests.browser.chromium import SECONDS, Page
from tests.claude import claude_binary, claude_environment

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare]


@pytest.fixture
def mine(tmp_path: Path) -> FakeAcpAgent:
    return FakeAcpAgent(tmp_path / "mine")


@pytest.fixture
async def helm(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path, mine: FakeAcpAgent
) -> AsyncIterator[Helmsman]:
    """With Codex, Claude Code, and an agent of the user's own that cannot steer."""
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    given = {"codex_path": str(codex_binary), "claude_path": str(claude_binary()), "detach": False}
    own = AcpAgent(OwnAgent("mine", "My agent", mode="ask", runs_repository_files=False), tuple(mine.command))
    async with Helmsman(load_settings(given, env, tmp_path), env=env, agents=(own,), inside=True) as helm:
        yield helm


async def settled(session: Session) -> Session:
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def choose(page: Page, select: str, value: str) -> None:
    await page.get(
        f"((one) => {{ one.value = {json.dumps(value)}; one.dispatchEvent(new Event('change')); }})"
        f"(document.querySelector({json.dumps(select)}))"
    )


def rows() -> str:
    return "[...document.querySelectorAll('.row')].map((one) => one.querySelector('.agent')?.textContent)"


async def test_sessions_tasks_and_usage_are_distinguished_and_filtered(
    page: Page, helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("It is done."))
    await settled(await helm.start("work of codex", cwd=folder))
    claude = await settled(await helm.start("work of claude", cwd=folder, agent="claude", unenforced=True))
    await page.until(f"{rows()}.join() === 'Claude Code,Codex'")
    await choose(page, '[aria-label="Filter by agent"]', "codex")
    await page.until(f"{rows()}.join() === 'Codex'")

    await page.get(f"location.hash = '#/s/{claude.id}'")
    await page.until_text(".facts", "Claude Code")
    await page.until_text(".facts", "not enforced")
    await page.until_text(".facts", "< $0.01")  # as Claude Code tells it

    await page.get("location.hash = '#/tasks'")
    await page.until("document.querySelectorAll('.tasks > li').length === 2")
    await choose(page, ".page-head select", "claude")
    await page.until("document.querySelectorAll('.tasks > li').length === 1")
    assert "work of claude" in await page.text(".tasks")

    await page.get("location.hash = '#/usage'")
    await page.until("[...document.querySelectorAll('figure h2')].some((one) => one.textContent === 'By agent')")
    told = await page.get(
        "[...document.querySelectorAll('figure')].find((one) => one.querySelector('h2').textContent === 'By agent')"
        ".querySelector('tbody').textContent"
    )
    assert "Claude Code" in told
    assert "Codex" in told
    assert told.count("< $0.01") == 2  # as Claude Code tells it, and by the price of Codex's model


async def test_a_new_session_is_given_to_an_agent_and_its_question_names_it(
    page: Page, model: ScriptedModel, folder: Path
) -> None:
    model.on("make it", run("touch made.txt"), say("Made."))
    await page.click("#new")
    await page.until("document.querySelectorAll('dialog select[name=agent] option').length > 2")
    offered = await page.get(
        "[...document.querySelectorAll('dialog select[name=agent] option')].map((one) => [one.value, one.disabled])"
    )
    assert offered[0] == ["codex", False]
    assert ["claude", False] in offered
    assert ["gemini", True] in offered  # it is not installed
    assert await page.get("document.querySelector('input[name=unenforced]').checkVisibility()") is False
    await choose(page, "dialog select[name=agent]", "claude")
    assert await page.get("document.querySelector('input[name=unenforced]').checkVisibility()") is True
    assert "forget the last turns of a session: Codex can." in await page.get(
        "document.querySelector('.about-agent').textContent"
    )
    fill = {"prompt": "make it", "workingDirectory": str(folder)}
    for name, value in fill.items():
        await page.get(f"document.querySelector('dialog [name={name}]').value = {json.dumps(value)}")
    await page.click("input[name=unenforced]")
    await page.click("dialog button[type=submit]")
    await page.until_text(".question h2", "Claude Code")
    await page.until_text(".facts", "not enforced")


async def test_an_agent_without_steering_does_not_offer_it(
    page: Page, helm: Helmsman, mine: FakeAcpAgent, folder: Path
) -> None:
    mine.on("work", says("At it."), waits())
    mine.on("ask", asks("execute", "rm x", allowed=[says("gone")]))
    session = await helm.start("work", cwd=folder, agent="mine", unenforced=True)
    await page.get(f"location.hash = '#/s/{session.id}'")
    await page.until_text(".facts", "My agent")
    await page.until_text(".composer .primary", "After this turn")
    assert "Steer" not in await page.text(".composer")
    await session.interrupt()
