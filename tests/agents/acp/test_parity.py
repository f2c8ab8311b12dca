"""Agents that Helmsman steers in a better way, through their adapters to the protocol: the engine holds for these too."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.acp.profile import AgentHome, Profile
from helmsman.agents.process_engine import ProcessEngine
from helmsman.agents.protocol import Trust
from helmsman.base.json_values import optional_text
from helmsman.base.processes import with_variable
from helmsman.base.structs import replace
from helmsman.model.events import AgentMessage
from helmsman.model.options import SessionOptions
from helmsman.model.questions import Choice
from helmsman.testing import ScriptedModel, always, run, say
from tests.agents.acp.test_acp_engine import begin
from tests.agents.acp.test_real_agents import SECONDS, Story, _until
from tests.real_agents import adapter
from tests.sandboxes import acp_engine

pytestmark = [pytest.mark.anyio, pytest.mark.matrix, pytest.mark.timeout(400)]


class Adapter(Profile):
    """Adapter, which has no sandbox here."""

    trust = Trust(
        asking_mode=None,
        reading_mode=None,
        asking_options={},
        acts_unasked=True,
        memory=(),
        runs_repository_files=False,
        variables=(),
        shared=(),
    )

    def dangerous_files(self, directory: Path) -> list[Path]:
        return []

    def home(self, env: Mapping[str, str]) -> AgentHome | None:
        return None


class ClaudeAdapter(Adapter):
    name = "claude-agent-acp"
    title = "Claude"
    trust = replace(Adapter.trust, asking_mode="default")
    counting = "turn"

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = optional_text(fields.get("rawOutput"))
        code = re.match(r"Exit code (\d+)", output or "")
        return output, int(code[1]) if code else None


class CodexAdapter(Adapter):
    name = "codex-acp"
    title = "Codex"
    trust = replace(Adapter.trust, asking_mode="read-only")

    def is_remark(self, text: str) -> bool:
        return text.startswith("Warning: ")


def environment(profile: Profile, model: ScriptedModel, home: Path) -> dict[str, str]:
    """Return the settings with which the agent behind the adapter needs no account and no other model."""
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    if profile.name == "claude-agent-acp":
        quiet = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        key = {"ANTHROPIC_BASE_URL": model.address, "ANTHROPIC_API_KEY": "dummy"}
        return {**env, **quiet, **key, "CLAUDE_CONFIG_DIR": str(home / ".claude")}
    provider = f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{model.base_url}"\nwire_api = "responses"\n'
    (home / "config.toml").write_text(f'model = "scripted"\nmodel_provider = "scripted"\n{provider}')
    return {**env, "CODEX_HOME": str(home)}


@asynccontextmanager
async def opened(profile: Profile, model: ScriptedModel, tmp_path: Path) -> AsyncIterator[ProcessEngine]:
    env = environment(profile, model, tmp_path / "adapter")
    async with acp_engine(profile, adapter(profile.name), env, tmp_path / "state") as engine:
        yield engine


@pytest.mark.parametrize("profile", [ClaudeAdapter(), CodexAdapter()], ids=lambda profile: profile.name)
async def test_an_adapter_is_an_agent_like_any_other(
    profile: Profile,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)
    mark = f"{profile.name}-{os.getpid()}"
    model.on("say hello", say("Hi there"))
    for text in ("try to make it", "now make it"):  # Claude Code may ask once more for a turn that was refused
        model.on(text, run("touch made.txt", escalate="to see"), always(say("made")))
    model.on("run long", run(f"HELMSMAN_STORY={mark} sleep 300", escalate="to see"), say("never said"))
    options = SessionOptions(agent=profile.name, cwd=git_repo, unenforced=True)
    async with opened(profile, model, tmp_path) as engine:
        story = Story(engine, await begin(engine, options, "say hello"), options)
        end, items = await story.ended()
        assert end.outcome == "completed"
        assert [item.text for item in items if isinstance(item, AgentMessage)] == ["Hi there"]
        for text, answer in (("try to make it", "deny"), ("now make it", "approve")):
            await story.turn(text)
            question = await story.asked()
            assert "touch made.txt" in question.details["command"]
            await engine.answer(question, (Choice(answer),))
            await story.ended()
            assert (git_repo / "made.txt").exists() == (answer == "approve")
        await story.turn("run long")
        await engine.answer(await story.asked(), (Choice("approve"),))
        await _until(lambda: bool(with_variable("HELMSMAN_STORY", mark)))
        await engine.interrupt(story.followed.session_id)
        assert not with_variable("HELMSMAN_STORY", mark)
        assert (await story.ended())[0].outcome == "interrupted"
