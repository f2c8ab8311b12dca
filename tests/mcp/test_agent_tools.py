"""The toolset for any agent: the tools for Codex under another name, and what becomes of what an agent cannot do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from helmsman import load_settings
from helmsman.base.structs import replace
from helmsman.mcp.server import build_server, toolset_tools
from helmsman.mcp.toolset import Tool
from helmsman.service import HelmsmanService
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, says, waits
from mcp import Client
from tests.listings import count
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio

SESSION_TOOLS = toolset_tools("sessions", ("sessions",))
AGENT_TOOLS = toolset_tools("agents", ("agents",))


def tokens(tools: Iterable[Tool]) -> int:
    return sum(count(tool.listed().model_dump(by_alias=True, exclude_none=True, mode="json")) for tool in tools)


def test_they_are_listed_in_few_words_that_name_no_agent() -> None:
    names = [tool.name for tool in AGENT_TOOLS]
    assert [name.replace("agent_", "codex_") for name in names[: len(SESSION_TOOLS)]] == [
        tool.name for tool in SESSION_TOOLS
    ]
    assert names[len(SESSION_TOOLS) :] == ["agent_review"]
    assert tokens(AGENT_TOOLS[: len(SESSION_TOOLS)]) <= 1.1 * tokens(SESSION_TOOLS)
    told = json.dumps([tool.listed().model_dump(mode="json") for tool in AGENT_TOOLS])
    assert "codex_" not in told


@pytest.fixture
def fake(tmp_path: Path) -> FakeAcpAgent:
    return FakeAcpAgent(tmp_path / "fake")


@pytest.fixture
async def agent(fake: FakeAcpAgent, tmp_path: Path) -> AsyncIterator[Caller]:
    """A client of a server whose default agent is one that can do little."""
    file = tmp_path / "helmsman.toml"
    file.write_text(f"[agents.mine]\ncommand = {fake.command}\nmode = 'ask'\nruns_repository_files = false\n")
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state"), "HELMSMAN_DEFAULT_AGENT": "mine"}
    settings = load_settings({"tools": "agents,extras"}, env, tmp_path / "fake", user_file=file)
    async with HelmsmanService(settings, env=env) as helm, Client(build_server(helm)) as client:
        yield Caller(client)


async def test_a_missing_capability_is_refused_with_its_name(agent: Caller, fake: FakeAcpAgent, git_repo: Path) -> None:
    fake.on("hello", says("Hi"))
    fake.on("stay", waits())
    here = {"workingDirectory": str(git_repo), "unenforced": True}

    async def refused(tool: str, **arguments: Any) -> str:
        error = await agent.error(tool, **arguments)
        assert error["code"] == "unsupported", error
        message: str = error["message"]
        return message

    for arguments, cannot in (
        ({"outputSchema": {"type": "object"}}, "keep to an output schema. Codex and Claude Code can."),
        ({"config": {"x": 1}}, "take a profile or a configuration for one session. Codex can."),
        ({"model": "m"}, "be told which model to use. Choose it in its own configuration."),
        (
            {"developerInstructions": "be kind"},
            "take instructions besides the prompt. Codex and Claude Code can. Put what matters into the prompt.",
        ),
    ):
        assert await refused("agent_start", prompt="hello", **arguments, **here) == f"Mine cannot {cannot}"
    session_id = (await agent("agent_start", prompt="hello", **here))["sessionId"]
    while (status := await agent("agent_wait", sessionId=session_id))["status"] == "active":
        pass
    assert (status["agent"], status["result"]) == ("mine", "Hi")
    for tool, arguments, cannot, who in (
        ("codex_fork", {}, "fork a session", "Codex and Claude Code"),
        ("codex_rollback", {}, "forget the last turns of a session", "Codex"),
        ("codex_compact", {}, "compact a session", "Codex and Claude Code"),
        ("codex_rename", {"name": "x"}, "name a session", "Codex and Claude Code"),
        ("codex_archive", {}, "archive a session", "Codex"),
        ("codex_goal", {"goal": "x"}, "keep a goal for a session", "Codex"),
    ):
        assert await refused(tool, sessionId=session_id, **arguments) == f"Mine cannot {cannot}. {who} can."
    await agent("agent_say", sessionId=session_id, message="stay")
    said = await refused("agent_say", sessionId=session_id, message="more", whenBusy="steer")
    assert said == (
        "Mine cannot take a message in the middle of a turn. Codex, Claude Code, OpenCode, Qwen and Kilo can. Wait for the "
        "turn to end, or interrupt it and send the message then."
    )
    assert (await agent.error("agent_say", sessionId=session_id, message="x", agent="codex"))["code"] == "session_busy"
    await agent("agent_interrupt", sessionId=session_id)
    unknown = await agent.error("agent_start", prompt="hello", agent="zzz")
    assert "There is no agent 'zzz'. Use one of: claude, codex" in unknown["message"]


async def test_a_question_names_the_agent_that_asks(agent: Caller, fake: FakeAcpAgent, git_repo: Path) -> None:
    fake.on("make it", asks("execute", "make", allowed=[says("made")]))
    here = {"workingDirectory": str(git_repo), "unenforced": True}
    session_id = (await agent("agent_start", prompt="make it", **here))["sessionId"]
    while "pendingQuestion" not in (status := await agent("agent_wait", sessionId=session_id)):
        assert status["status"] == "active", status
    question = status["pendingQuestion"]
    assert question["questions"][0]["question"].startswith("Mine asks to run")
    await agent("agent_respond", sessionId=session_id, id=question["id"], answers=["approve"])
    while (status := await agent("agent_wait", sessionId=session_id))["status"] == "active":
        pass
    assert status["result"] == "made"


async def test_the_server_tells_the_loop_in_the_names_of_the_tools_that_it_has(helm: HelmsmanService) -> None:
    said: dict[str, str] = {}
    for tools in ("agents", "sessions", "sessions,agents"):
        helm.settings = replace(helm.settings, tools=tuple(tools.split(",")))
        async with Client(build_server(helm)) as client:
            said[tools] = client.instructions or ""
    assert "1. agent_start" in said["agents"]
    assert "codex_" not in said["agents"]
    assert "agent_" not in said["sessions"]
    assert "1. codex_start" in said["sessions,agents"]
    assert "agent_review" in said["sessions,agents"]


TOOLSETS = ("sessions", "agents", "extras", "capabilities", "router", "compat")
TOOL_NAME = re.compile(r"\b(?:codex|agent)_[a-z_]+")


def described(schema: Any) -> Iterator[str]:
    """All descriptions in a schema."""
    if isinstance(schema, dict):
        yield from [part for key, part in schema.items() if key == "description" and isinstance(part, str)]
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from described(part)


@pytest.mark.parametrize("many", [1, 2, 3])
async def test_every_text_names_only_tools_that_are_listed_with_it(helm: HelmsmanService, many: int) -> None:
    for toolsets in combinations(TOOLSETS, many):
        if {"router", "compat"} <= set(toolsets):
            continue
        helm.settings = replace(helm.settings, tools=toolsets)
        async with Client(build_server(helm)) as client:
            tools = (await client.list_tools()).tools
            texts = [client.instructions or ""]
        for tool in tools:
            texts += [tool.description or "", *described(tool.input_schema), *described(tool.output_schema)]
        named = {name for text in texts for name in TOOL_NAME.findall(text)}
        listed = {tool.name: tool.description or "" for tool in tools}
        found = set(TOOL_NAME.findall(listed.get("helmsman_find", "")))  # a search finds those
        assert named <= listed.keys() | found | {"agent_"}, toolsets  # agent_* is how they are called together
        assert all(tool.description for tool in tools), toolsets
