"""Several agents through the API: which there are, whose sessions and usage, and a start that names one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helmsman import load_settings
from helmsman.agents.acp.agent import AcpAgent
from helmsman.agents.acp.profile import OwnAgent
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, say
from helmsman.testing.fake_acp_agent import FakeAcpAgent, says, updates
from tests.web.browser import Browser

pytestmark = pytest.mark.anyio


@pytest.fixture
async def helm(codex_binary: Path, codex_home: CodexHome, tmp_path: Path) -> AsyncIterator[HelmsmanService]:
    """With Codex, and an agent of the user's own that is the default one and tells what it costs."""
    fake = FakeAcpAgent(tmp_path / "mine")
    cost = {"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": {"amount": 0.25, "currency": "USD"}}
    fake.on("work", updates(cost), says("Done by me."))
    profile = OwnAgent(
        "mine", "My agent", mode="ask", runs_repository_files=False, writable=((tmp_path / "mine").resolve(),)
    )
    own = AcpAgent(profile, tuple(fake.command))
    given = {"codex_path": str(codex_binary), "default_agent": "mine", "detach": False}
    settings = load_settings(given, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env, agents=(own,)) as helm:
        yield helm


async def test_they_are_listed_the_default_one_first(browser: Browser) -> None:
    found = (await browser.get("/api/agents"))["agents"]
    agents = {agent["agent"]: agent for agent in found}
    assert (found[0]["agent"], found[0]["isDefault"], found[0]["installed"]) == ("mine", True, True)
    assert "steer" not in found[0]["can"]
    assert found[0]["lacks"]["steer"] == "take a message in the middle of a turn"
    assert found[0]["cannot"]["steer"].startswith(
        "Codex, Claude Code, OpenCode, Qwen and Kilo can. Wait for the turn to end"
    )
    assert agents["codex"]["installed"] is True
    assert agents["gemini"]["installed"] is False
    assert "npm install -g @google/gemini-cli" in agents["gemini"]["problem"]


async def test_a_start_goes_to_the_agent_it_names_and_what_it_tells_of_its_cost_counts(
    browser: Browser, model: ScriptedModel, folder: Path
) -> None:
    model.on("codex", say("Done by Codex."))
    place = {"workingDirectory": str(folder)}
    held = await browser.settled(await browser.start("work", **place))
    assert (held["agent"], held["enforced"]) == ("mine", True)
    mine = await browser.settled(await browser.start("work", unenforced=True, **place))
    assert (mine["agent"], mine["agentTitle"], mine["enforced"]) == ("mine", "My agent", False)
    assert (mine["costUsd"], mine["result"]) == (0.25, "Done by me.")
    codex = await browser.settled(await browser.start("codex", agent="codex", **place))
    assert (codex["agent"], codex["enforced"]) == ("codex", True)

    tasks = (await browser.get("/api/tasks"))["tasks"]
    assert {one["sessionId"] for one in tasks if one.get("enforced") is False} == {mine["sessionId"]}
    listed = (await browser.get("/api/sessions", agent="codex"))["sessions"]
    assert [one["sessionId"] for one in listed] == [codex["sessionId"]]
    told = await browser.get("/api/usage", by="agent")
    assert {row["key"]: row["turns"] for row in told["rows"]} == {"mine": 2, "codex": 1}
    (row,) = (await browser.get("/api/usage", by="agent", agent="mine"))["rows"]
    assert (row["costUsd"], row["unpricedTokens"]) == (0.5, 0)
    unknown = await browser.post("/api/sessions", 400, prompt="work", agent="codx", **place)
    assert "Did you mean codex?" in unknown["message"]
