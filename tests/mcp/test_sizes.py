"""However much a model or a command writes, what an agent is handed has a size, on a real Codex."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helmsman.base.structs import replace
from helmsman.base.truncate import ANSWER_CHARS, KEPT_CHARS, TEXT_CHARS
from helmsman.mcp.server import build_server
from helmsman.model.events import CommandExecution
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.rare]

MESSAGE = "begin " + "x" * 6_000_000 + " end"
"""Longer than all that is kept of a message anywhere but in Codex's own file, and in a program that uses the library."""


@pytest.fixture
async def helm(settings: Settings, codex_home: CodexHome) -> AsyncIterator[HelmsmanService]:
    async with HelmsmanService(replace(settings, tools=("sessions", "extras")), env=codex_home.env) as helm:
        yield helm


@pytest.fixture
async def codex(helm: HelmsmanService) -> AsyncIterator[Caller]:
    async with Client(build_server(helm)) as client:
        yield Caller(client)


async def started(codex: Caller, prompt: str, folder: Path, **more: Any) -> str:
    place = {"workingDirectory": str(folder), "approvalPolicy": "never", "sandbox": "workspace-write"}
    session_id: str = (await codex("codex_start", prompt=prompt, **place, **more))["sessionId"]
    assert (await codex.until_settled(session_id))["status"] == "done"
    return session_id


async def test_a_line_of_30_mb_is_a_few_thousand_characters(
    codex: Caller, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("print", run("head -c 30000000 /dev/zero | tr '\\0' x", yield_ms=30_000), say("printed"))
    session_id = await started(codex, "print", folder)
    for tool in ("codex_status", "codex_wait"):
        status = await codex(tool, sessionId=session_id)
        assert len(json.dumps(status)) < 40_000
        assert any("characters left out" in line for line in status["recentOutput"])
        assert status["recentOutput"][-1] == "printed"
    (command,) = [item for item in helm.sessions[session_id].items if isinstance(item, CommandExecution)]
    assert len(command.output) <= KEPT_CHARS + 100
    (resource,) = (await codex.client.read_resource(f"codex://sessions/{session_id}")).contents
    assert len(getattr(resource, "text")) < ANSWER_CHARS  # noqa: B009 - a union of texts and blobs


async def test_a_message_of_6_mb_is_cut_and_says_where_the_whole_is(
    codex: Caller, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("talk", say(MESSAGE))
    session_id = await started(codex, "talk", folder)
    result = await codex.client.call_tool("codex_status", {"sessionId": session_id})
    assert len(result.model_dump_json()) < 3 * TEXT_CHARS
    status = await codex("codex_status", sessionId=session_id)
    assert status["result"].startswith("begin ")
    assert status["result"].endswith(" end")
    assert f"rollout-…-{session_id}.jsonl" in status["result"]
    (file,) = helm.settings.codex_home.rglob(f"rollout-*-{session_id}.jsonl")
    assert file.stat().st_size > len(MESSAGE), "it is where the answer says"
    assert helm.sessions[session_id].result == MESSAGE, "a program that uses the library gets all of it"
    (resource,) = (await codex.client.read_resource(f"codex://sessions/{session_id}")).contents
    assert len(getattr(resource, "text")) < ANSWER_CHARS  # noqa: B009 - a union of texts and blobs
    tasks = await helm.tasks.list(limit=1)
    assert len(tasks[0][0].result or "") <= 1_000_001


async def test_a_large_diff_is_cut_with_all_its_files_named(
    codex: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("write", run("head -c 3000000 /dev/zero | tr '\\0' x > long.txt; touch a b c"), say("done"))
    session_id = await started(codex, "write", git_repo, worktree=True)
    diff = await codex("codex_diff", sessionId=session_id)
    assert len(json.dumps(diff)) < 2 * TEXT_CHARS
    assert {file["path"] for file in diff["files"]} == {"long.txt", "a", "b", "c"}
    assert f"helmsman diff {session_id}" in diff["diff"]
    assert (await codex.error("codex_apply", sessionId=session_id))["code"] == "confirmation_needed"
