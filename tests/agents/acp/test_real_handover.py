"""Tests of each real agent with Codex: Codex continues its session from its files, and it reviews changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helmsman import Helmsman, Session, load_settings
from helmsman.testing import CodexHome, ScriptedModel, say
from tests.real_agents import NAMES, real_agent

pytestmark = [pytest.mark.anyio, pytest.mark.matrix(changed_in=[]), pytest.mark.timeout(400)]

SECONDS = 120


async def ended(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.status == "done", session.error
    return session


@pytest.mark.parametrize("name", NAMES)
async def test_codex_continues_and_the_other_reviews(
    name: str,
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
) -> None:
    agent = real_agent(name, tmp_path / "home", model)
    env = codex_home.env | agent.env
    file = tmp_path / "helmsman.toml"
    file.write_text(f"[agents.{name}]\ncommand = {json.dumps(agent.command)}\n", encoding="utf-8")
    flags = {"codex_path": str(codex_binary), "detach": False}
    settings = load_settings(flags, env, tmp_path, user_file=file)
    model.on("say hello", say("Hi there"))
    model.on("take it on", say("Taken."))
    found = {"title": "Wrong", "body": "It is.", "priority": 1, "confidence": 1, "file": "new.txt", "startLine": 1}
    model.on("Review the uncommitted changes.", say(json.dumps({"findings": [found], "verdict": "patch is incorrect"})))
    async with Helmsman(settings, env=env, inside=True) as helm:
        first = await ended(await helm.start("say hello", cwd=git_repo, agent=name, unenforced=True))
    async with Helmsman(settings, env=env, inside=True) as helm:
        other = await ended(await helm.say(first.id, "take it on", agent="codex", sandbox="read-only"))
        assert (other.options.agent, other.options.writes, other.result) == ("codex", "nothing", "Taken.")
        told = model.requests[-1].user_texts[-1]
        assert "Asked: say hello\nAnswered: Hi there" in told, told

        (git_repo / "new.txt").write_text("x\n", encoding="utf-8")
        begun = await helm.extras.reviews.start(cwd=git_repo, agent=name, unenforced=True)
        assert begun.session is not None
        report = await helm.extras.reviews.report((await ended(begun.session)).id)
        assert report is not None
        assert [(one.title, one.start_line) for one in report.findings] == [("Wrong", 1)]
