"""The tools for the upkeep of a session, called by a client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.mcp.server import build_server, toolset_tools
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, always, hang, rate_limit, run, say, usage
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio

UPKEEP = {
    "codex_fork", "codex_rollback", "codex_compact", "codex_rename", "codex_archive", "codex_unarchive", "codex_goal",
    "codex_models", "codex_account", "codex_skills",
}  # fmt: skip


@pytest.fixture
async def codex(codex_binary: Path, codex_home: CodexHome, tmp_path: Path) -> AsyncIterator[Caller]:
    flags = {"codex_path": str(codex_binary), "detach": False, "tools": "sessions,extras"}
    settings = load_settings(flags, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        yield Caller(client)


@pytest.fixture
async def session_id(codex: Caller, model: ScriptedModel, folder: Path) -> str:
    """A session with two turns."""
    model.on("alpha", say("first"))
    model.on("beta", say("second"))
    session_id: str = (await codex("codex_start", prompt="alpha", workingDirectory=str(folder)))["sessionId"]
    await codex.until_settled(session_id)
    await codex("codex_say", sessionId=session_id, message="beta")
    await codex.until_settled(session_id)
    return session_id


def test_the_tools_are_described() -> None:
    listed = {tool.name: tool.listed() for tool in toolset_tools("extras", ("extras",))}
    assert set(listed) >= UPKEEP
    for name in UPKEEP:
        tool = listed[name]
        assert tool.output_schema is not None
        assert tool.annotations is not None
        assert len(tool.description or "") > 40
        for parameter, schema in tool.input_schema.get("properties", {}).items():
            assert parameter == "sessionId" or "e.g." in schema["description"], name
    fork = listed["codex_fork"].input_schema
    assert (fork["required"], set(fork["properties"])) == (["sessionId"], {"sessionId", "message", "fromTurn"})


async def test_a_session_is_forked_from_a_turn(codex: Caller, model: ScriptedModel, session_id: str) -> None:
    gate = model.gate()
    model.on("other", say("another ", gate, "way"))
    fork = await codex("codex_fork", sessionId=session_id, message="other", fromTurn=1)
    assert (fork["forkedFrom"], fork["status"]) == (session_id, "active")
    assert fork["taskId"].startswith("T-local-")
    gate.release()
    assert (await codex.until_settled(fork["sessionId"]))["result"] == "another way"
    assert "beta" not in model.requests[-1].user_texts
    waiting = await codex("codex_fork", sessionId=session_id)
    assert waiting["status"] == "done"
    assert "taskId" not in waiting
    assert (await codex.error("codex_fork", sessionId=session_id, fromTurn=7))["code"] == "invalid_input"


async def test_turns_are_rolled_back(codex: Caller, session_id: str) -> None:
    assert (await codex("codex_rollback", sessionId=session_id))["status"] == "done"
    status = await codex("codex_status", sessionId=session_id)
    assert (status["result"], status["turnCount"]) == ("first", 1)
    too_many = await codex.error("codex_rollback", sessionId=session_id, turns=2)
    assert "has 1 turn," in too_many["message"]


async def test_a_session_is_compacted(codex: Caller, model: ScriptedModel, session_id: str) -> None:
    model.otherwise(say("a summary"))
    compacting = await codex("codex_compact", sessionId=session_id)
    assert compacting["taskId"].startswith("T-local-")
    done = await codex.until_settled(session_id)
    assert "context_compaction" in [event["itemType"] for event in done["itemEvents"]]


async def test_a_session_is_named_archived_and_brought_back(codex: Caller, session_id: str) -> None:
    assert (await codex("codex_rename", sessionId=session_id, name="Parser"))["name"] == "Parser"
    (listed,) = (await codex("codex_list"))["sessions"]
    assert listed["summary"] == "Parser"
    assert await codex("codex_archive", sessionId=session_id) == {"sessionId": session_id, "archived": True}
    assert (await codex("codex_list"))["sessions"] == []
    assert (await codex.error("codex_archive", sessionId=session_id))["code"] == "invalid_input"
    assert await codex("codex_unarchive", sessionId=session_id) == {"sessionId": session_id, "archived": False}
    assert len((await codex("codex_list"))["sessions"]) == 1


async def test_a_goal_is_set_read_and_cleared(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("alpha", say("first"), always(hang()))
    session_id = (await codex("codex_start", prompt="alpha", workingDirectory=str(folder)))["sessionId"]
    await codex.until_settled(session_id)
    assert "goal" not in await codex("codex_goal", sessionId=session_id)
    goal = await codex("codex_goal", sessionId=session_id, goal="All tests pass")
    assert (goal["goal"], goal["goalStatus"], goal["status"]) == ("All tests pass", "active", "active")
    assert (await codex.error("codex_goal", sessionId=session_id, goal="Another"))["code"] == "session_busy"
    assert (await codex("codex_goal", sessionId=session_id))["goal"] == "All tests pass"
    assert "goal" not in await codex("codex_goal", sessionId=session_id, goal="")
    assert (await codex("codex_interrupt", sessionId=session_id))["status"] == "interrupted"


async def test_models_the_account_and_skills_are_reported(codex: Caller, codex_home: CodexHome, git_repo: Path) -> None:
    for place in (codex_home.path / "skills" / "mine", git_repo / ".codex" / "skills" / "ours"):
        place.mkdir(parents=True)
        text = f"---\nname: {place.name}\ndescription: Is {place.name}.\n---\nDo it.\n"
        (place / "SKILL.md").write_text(text, encoding="utf-8")
    skills = {skill["name"]: skill for skill in (await codex("codex_skills", workingDirectory=str(git_repo)))["skills"]}
    assert {"description": "Is mine.", "scope": "user", "enabled": True}.items() <= skills["mine"].items()
    assert skills["ours"]["scope"] == "repo"
    assert (await codex.error("codex_skills", workingDirectory="/no/such/place"))["code"] == "invalid_input"
    models = (await codex("codex_models"))["models"]
    assert [model["isDefault"] for model in models].count(True) == 1
    assert all(model["efforts"] for model in models)
    account = await codex("codex_account")
    assert (account["limits"], account["largeTaskFits"]) == ([], "unknown")
    assert "needs no OpenAI login" in account["login"]


async def test_a_start_minds_what_is_left(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    resets_at = int(time.time()) + 3600
    limit = rate_limit(90, window_minutes=300, resets_at=resets_at)
    model.on("alpha", [say("first"), limit])
    start: dict[str, Any] = {"workingDirectory": str(folder), "minRemainingPercent": 30}
    first = await codex("codex_start", prompt="alpha", **start)
    assert "Nothing is known" in first["note"]
    await codex.until_settled(first["sessionId"])
    low = await codex.error("codex_start", prompt="beta", **start)
    assert (low["code"], low["remaining_percent"], low["retryable"]) == ("rate_limit_low", 10, True)
    assert low["resets_at"]
    account = await codex("codex_account")
    assert [window["remainingPercent"] for window in account["limits"]] == [10]
    assert account["largeTaskFits"] == "uncertain"
    assert (await codex.error("codex_start", prompt="x", minRemainingPercent=101))["code"] == "invalid_input"


async def test_a_start_is_stopped_at_its_cost_limit(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("spend", [run("true"), usage(2_000_000)], hang())
    start: dict[str, Any] = {"workingDirectory": str(folder), "options": {"maxCostUsd": 0.5}}
    session_id = (await codex("codex_start", prompt="spend", **start))["sessionId"]
    assert (await codex.until_settled(session_id))["status"] == "interrupted"
    assert (await codex.error("codex_start", prompt="x", maxCostUsd=0))["code"] == "invalid_input"


async def test_a_busy_session_is_left_alone(codex: Caller, model: ScriptedModel, session_id: str) -> None:
    model.on("wait", hang())
    fork = await codex("codex_fork", sessionId=session_id, message="wait")
    for tool in ("codex_compact", "codex_rollback", "codex_archive"):
        assert (await codex.error(tool, sessionId=fork["sessionId"]))["code"] == "session_busy"
    with anyio.fail_after(30):
        await codex("codex_interrupt", sessionId=fork["sessionId"])
