"""Rules over HTTP: listed by file, explained, and taken back where an answer made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, run, say
from tests.web.browser import Browser

pytestmark = pytest.mark.anyio

PROJECT_RULES = """
[[rules]]
effect = "deny"
command = ["git", "push"]
reason = "\u202ereversed"

[[rules]]
effect = "allow"
command = ["make", "test"]
"""


async def answered_always(browser: Browser, asks: dict[str, Any], model: ScriptedModel) -> dict[str, Any]:
    """The question to which the answer was "always"."""
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("done"))
    session_id = await browser.start("touch it", **asks)
    question = await browser.question()
    await browser.post(f"/api/sessions/{session_id}/questions/{question['id']}", answers=["approve_always"])
    await browser.settled(session_id)
    return question


async def test_the_rule_that_always_makes_is_shown_before_and_listed_afterwards(
    browser: Browser, model: ScriptedModel, helm: HelmsmanService, asks: dict[str, Any]
) -> None:
    assert await browser.get("/api/rules") == {"rules": [], "ownFile": str(helm.rules.permanent_path)}
    question = await answered_always(browser, asks, model)
    assert "touch made.txt" in question["alwaysRule"]
    (rule,) = (await browser.get("/api/rules"))["rules"]
    assert rule["toml"].strip() == question["alwaysRule"].strip()
    assert (rule["effect"], rule["file"], rule["removable"]) == ("allow", str(helm.rules.permanent_path), True)


async def test_rules_of_a_project_are_listed_where_they_count_with_nothing_hidden(
    browser: Browser, folder: Path
) -> None:
    (folder / "helmsman.toml").write_text(PROJECT_RULES, encoding="utf-8")
    assert (await browser.get("/api/rules"))["rules"] == []
    deny, allow = (await browser.get("/api/rules", directory=str(folder)))["rules"]
    assert (deny["effect"], deny["line"], "removable" in deny) == ("deny", 2, False)
    assert "trusted_projects" in allow["ignored"]
    assert "\\u202ereversed" in deny["toml"]
    (folder / "helmsman.toml").write_text("rules = 1", encoding="utf-8")
    assert "helmsman.toml" in (await browser.get("/api/rules", directory=str(folder)))["problem"]


async def test_a_command_is_explained(
    browser: Browser, model: ScriptedModel, folder: Path, asks: dict[str, Any]
) -> None:
    where: dict[str, Any] = {"directory": str(folder)}
    asked = await browser.post("/api/rules/explain", command="touch made.txt", **where)
    assert (asked["effect"], "rule" in asked) == ("ask", False)
    await answered_always(browser, asks, model)
    allowed = await browser.post("/api/rules/explain", command="touch made.txt", **where)
    (rule,) = (await browser.get("/api/rules"))["rules"]
    assert (allowed["effect"], allowed["rule"]) == ("allow", rule)
    longer = await browser.post("/api/rules/explain", command="touch made.txt more", inside=True, **where)
    assert longer["effect"] == "ask"
    assert (await browser.post("/api/rules/explain", 400, command="ls", directory="here"))["code"] == "invalid_input"
    assert (await browser.post("/api/rules/explain", 400, command="", **where))["code"] == "invalid_input"


async def test_a_rule_that_an_answer_made_is_taken_back_and_no_other(
    browser: Browser, model: ScriptedModel, folder: Path, asks: dict[str, Any]
) -> None:
    await answered_always(browser, asks, model)
    (folder / "helmsman.toml").write_text(PROJECT_RULES, encoding="utf-8")
    own, written, _ = (await browser.get("/api/rules", directory=str(folder)))["rules"]
    assert (await browser.post(f"/api/rules/{written['id']}/remove", 400))["code"] == "invalid_input"
    assert (await browser.post(f"/api/rules/{own['id']}/remove"))["removed"] == own
    assert (await browser.get("/api/rules"))["rules"] == []
    assert (await browser.post(f"/api/rules/{own['id']}/remove", 400))["code"] == "invalid_input"
    again = await browser.post("/api/rules/explain", command="touch made.txt", directory=str(folder))
    assert again["effect"] == "ask"
