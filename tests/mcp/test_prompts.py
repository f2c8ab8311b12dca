"""Prompts for a user to pick, completion of the ids of sessions, and instructions that name only tools that are there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from helmsman import load_settings
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, say
from mcp import Client
from tests.shared_engine import on_shared_engine

pytestmark = pytest.mark.anyio


@on_shared_engine
async def test_prompts_are_filled_in_and_ids_of_sessions_completed(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("done"))
    session = await helm.start("Rewrite the parser", cwd=folder, sandbox="read-only")
    await session.wait()
    async with Client(build_server(helm)) as client:
        listed = {one.name: one for one in (await client.list_prompts()).prompts}
        assert set(listed) == {"delegate", "continue", "bring_home"}
        filled = await client.get_prompt("delegate", {"task": "Fix the {tool} test"})
        assert isinstance(filled.messages[0].content, types.TextContent)
        assert "codex_start" in filled.messages[0].content.text
        with pytest.raises(MCPError, match="needs sessionId"):
            await client.get_prompt("continue", {})
        with pytest.raises(MCPError, match="no prompt"):
            await client.get_prompt("nothing", {})
        prompt = types.PromptReference(type="ref/prompt", name="continue")
        template = types.ResourceTemplateReference(type="ref/resource", uri="codex://sessions/{id}")
        for where, name in ((prompt, "sessionId"), (template, "id")):
            for begins in (session.id[:6], "parser", ""):
                found = await client.complete(where, {"name": name, "value": begins})
                assert session.id in found.completion.values
            assert (await client.complete(where, {"name": name, "value": "zzz"})).completion.values == []
        assert (await client.complete(prompt, {"name": "task", "value": ""})).completion.values == []


@pytest.mark.parametrize(
    "toolsets", ["sessions", "agents", "extras", "capabilities", "router", "agents,capabilities", "sessions,router"]
)
async def test_instructions_name_only_tools_that_are_there(toolsets: str, tmp_path: Path) -> None:
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    settings = load_settings({"tools": toolsets}, env, tmp_path, user_file=tmp_path / "none.toml")
    async with HelmsmanService(settings, env=env) as helm, Client(build_server(helm)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        named = set(re.findall(r"\b(?:codex|agent)_[a-z]+\b", client.instructions or ""))
        assert named <= names
        prompts = [one.name for one in (await client.list_prompts()).prompts]
        assert bool(prompts) is bool({"sessions", "agents"} & set(toolsets.split(",")))
