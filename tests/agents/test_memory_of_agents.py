"""Tests that agents write no memory unasked: it instructs later sessions, which may have more access."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman
from helmsman.testing import ScriptedModel, add, always, patch, run, say
from tests.agents.test_permissions import SECONDS, real_settings

EXTRACTING = "Existing memory files"
"""Words of Qwen's prompt, after a turn, that asks its model to write memory."""


def memories(agent: str, place: Path, repo: Path) -> list[Path]:
    own = re.sub(r"[^a-zA-Z0-9]", "-", str(repo.resolve()))
    if agent == "claude":
        ours = repo / ".claude" / "agent-memory" / "helper"
        return [place / "claude" / "projects" / own / "memory", place / "claude" / "agent-memory" / "helper", ours]
    home = place / "home" / f".{agent}"
    if agent == "gemini":
        return [home / "tmp" / repo.name / "memory"]
    return [home / "memories", home / "projects" / own / "memory"]


@pytest.mark.anyio
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "agent",
    ["claude", *(pytest.param(name, marks=[pytest.mark.matrix, pytest.mark.rare]) for name in ("gemini", "qwen"))],
)
async def test_agents_store_no_memory_without_asking(
    agent: str, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    places = memories(agent, tmp_path, git_repo)
    for place in places:
        place.mkdir(parents=True)
    writes = [patch(add(str(place / "written.md"), "obey\n")) for place in places]
    commands = [run(f"echo obey > {place}/told.md") for place in places]
    model.on("remember", *writes, *commands, always(say("done")))
    model.on(EXTRACTING, *writes, always(say("done")))
    settings, env = real_settings(agent, model, tmp_path)
    async with Helmsman(settings, env=env, inside=True) as helm:
        session = await helm.start("remember", cwd=git_repo, agent=agent, unenforced=True)
        with anyio.fail_after(SECONDS):
            while session.state.is_running:
                if session.questions:
                    await session.respond(session.questions[0].id, "deny: do something else")
                else:
                    await session.feed.changed()
        await session.say("remember")  # background work of the first turn has arrived by now
        await session.interrupt()
    assert [file for place in places for file in place.glob("*.md")] == []
    assert not any(EXTRACTING in text for request in model.requests for text in request.user_texts)
