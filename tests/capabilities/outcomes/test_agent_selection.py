"""Which agents can do a job: a usage limit counts until a turn of the same account shows that it is over."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.agent_selection import choose
from helmsman.capabilities.outcomes.request import Wanted
from helmsman.errors import AgentNotFound
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, fail, say

pytestmark = pytest.mark.anyio

SECONDS = 60


def wanted(directory: Path) -> Wanted:
    return Wanted(kind="debug", request="it does not work", directory=str(directory), more={})


async def waiting(helm: HelmsmanService, directory: Path) -> Session:
    session = await helm.start("too much", cwd=directory, on_limit="wait")
    with anyio.fail_after(SECONDS):
        while session.resumes_at is None:
            await anyio.sleep(0.02)
    return session


async def test_a_turn_that_succeeds_shows_that_the_usage_limit_is_over(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.on("too much", fail(429, error_type="usage_limit_reached", resets_at=4_000_000_000))
    model.on("hello", say("Hello."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        done = await helm.start("hello", cwd=git_repo)
        await done.wait(timeout=SECONDS)
        await waiting(helm, git_repo)
        with pytest.raises(AgentNotFound) as refused:
            await choose(helm, wanted(git_repo))
        first, *lines = str(refused.value.message).splitlines()
        assert first == "No agent is available:"
        assert lines[0].startswith("  codex: its usage limit is reached until 2096-")
        assert len(lines) == len(list(helm.agents)) + 1, "one line for each, and what to do"
        assert max(map(len, lines)) <= 120
        other = tmp_path / "other home"
        other.mkdir()
        async with HelmsmanService(replace(settings, codex_home=other), env=codex_home.env) as another_account:
            assert [one.agent for one in await choose(another_account, wanted(git_repo))] == ["codex"]
        again = await helm.start("hello", cwd=git_repo)
        await again.wait(timeout=SECONDS)
        assert [one.agent for one in await choose(helm, wanted(git_repo))] == ["codex"]
        await waiting(helm, git_repo)
        with pytest.raises(AgentNotFound, match="usage limit is reached"):
            await choose(helm, wanted(git_repo))
