"""A real agent that was told not to ask, in its own terminal or by a message, asks when Helmsman has its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helmsman import Helmsman
from helmsman.testing import run, say
from tests.agents.test_permissions import real_settings
from tests.agents.test_stories import ended, question_of

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.testing import ScriptedModel


@pytest.mark.anyio
@pytest.mark.matrix
@pytest.mark.rare
@pytest.mark.timeout(400)
@pytest.mark.parametrize("command", ["/allow-all", "/autopilot"])
async def test_copilot_asks_whatever_its_session_was_told(
    command: str, model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("begin", say("begun"))
    model.on("make it", run("touch made.txt"), say("made"))
    settings, env = real_settings("copilot", model, tmp_path)
    async with Helmsman(settings, env=env, inside=True) as helm:
        session = await helm.start("begin", cwd=git_repo, agent="copilot", unenforced=True)
        await ended(session)
        with monkeypatch.context() as patched:
            patched.setattr("helmsman.agents.acp.asked.as_words", str)  # as its own terminal takes it
            await session.say(command)
            await ended(session)
        for _ in range(2):
            await session.say("make it")
            await session.respond((await question_of(session)).id, "deny")
            await ended(session)
        # What it was told is kept with the session, and another process finds it there.
        with monkeypatch.context() as patched:
            patched.setattr("helmsman.agents.acp.asked.as_words", str)
            await session.say(command)
            await ended(session)
    async with Helmsman(settings, env=env, inside=True) as helm:
        session = await helm.say(session.id, "make it")
        await session.respond((await question_of(session)).id, "deny")
        await ended(session)
    assert not (git_repo / "made.txt").exists()
