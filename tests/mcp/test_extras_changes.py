"""codex_diff, codex_apply, codex_discard and codex_usage through the Python client."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server, toolset_tools
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say, usage
from helmsman.testing.repository import git
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

TOOLS = {"codex_diff", "codex_apply", "codex_discard", "codex_usage"}


@pytest.fixture
async def codex(settings: Settings, codex_home: CodexHome) -> AsyncIterator[Caller]:
    settings = replace(settings, tools=("sessions", "extras"))
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        yield Caller(client)


@pytest.fixture
def works(git_repo: Path) -> dict[str, Any]:
    arguments = {"workingDirectory": str(git_repo), "sandbox": "workspace-write", "approvalPolicy": "never"}
    return {**arguments, "worktree": True}


def test_the_tools_are_listed_with_schemas_texts_and_annotations() -> None:
    offered = (*toolset_tools("sessions", ("sessions",)), *toolset_tools("extras", ("extras",)))
    tools = {tool.name: tool.listed() for tool in offered}
    assert set(tools) >= TOOLS
    for name in TOOLS:
        tool = tools[name]
        assert tool.title
        assert tool.description
        assert tool.output_schema is not None
        assert tool.input_schema["additionalProperties"] is False
        for parameter, schema in tool.input_schema["properties"].items():
            assert schema["description"], f"{name}.{parameter} is not described"
    for name, reads in {"codex_diff": True, "codex_usage": True, "codex_apply": False, "codex_discard": False}.items():
        annotations = tools[name].annotations
        assert annotations is not None
        assert annotations.read_only_hint is reads
        assert annotations.idempotent_hint is True
    assert set(tools["codex_apply"].input_schema["properties"]) == {"sessionId", "allowDirty", "digest"}
    assert set(tools["codex_usage"].input_schema["properties"]) == {"since", "groupBy", "agent"}


async def test_look_apply_discard_and_what_it_cost(
    codex: Caller, model: ScriptedModel, works: dict[str, Any], git_repo: Path
) -> None:
    model.on("write", run("echo new > made.txt"), [say("done"), usage(1000, 100, 10, 1)])
    session_id = (await codex("codex_start", prompt="write", **works))["sessionId"]
    await codex.until_settled(session_id)
    diff = await codex("codex_diff", sessionId=session_id)
    assert (diff["scope"], diff["files"]) == (
        "worktree",
        [{"path": "made.txt", "kind": "added", "added": 1, "removed": 0}],
    )
    assert "+new" in diff["diff"]
    applied = await codex("codex_apply", sessionId=session_id)
    assert (applied["repository"], applied["how"]) == (str(git_repo), "clean")
    discarded = await codex("codex_discard", sessionId=session_id)
    assert [file["path"] for file in discarded["files"]] == ["made.txt"]
    assert (await codex.error("codex_discard", sessionId=session_id))["code"] == "invalid_input"
    assert git(git_repo, "status", "--porcelain") == "?? made.txt\n"
    spent = await codex("codex_usage", groupBy="directory", since="1d")
    (group,) = spent["groups"]
    assert (group["key"], group["inputTokens"]) == (str(git_repo), spent["total"]["inputTokens"])
    assert spent["total"]["inputTokens"] == 1100
    assert "others" not in spent


async def test_a_client_applies_what_it_was_shown_or_learns_what_differs(
    codex: Caller, model: ScriptedModel, works: dict[str, Any], git_repo: Path
) -> None:
    model.on("write", run("echo new > made.txt"), say("done"))
    model.on("once more", run("echo evil > made.txt"), say("done"))
    started = await codex("codex_start", prompt="write", **works)
    session_id = started["sessionId"]
    await codex.until_settled(session_id)
    shown = await codex("codex_diff", sessionId=session_id)
    await codex("codex_say", sessionId=session_id, message="once more")
    await codex.until_settled(session_id)
    refused: dict[str, Any] = {}
    for digest in ({}, {"digest": shown["digest"]}):
        refused = await codex.error("codex_apply", sessionId=session_id, **digest)
        assert (refused["code"], refused["shown"]) == ("diff_changed", shown["digest"])
        assert refused["files"] == [{"path": "made.txt", "change": "changed"}]
        assert "+evil" in refused["diff"]
    assert git(git_repo, "status", "--porcelain") == ""
    applied = await codex("codex_apply", sessionId=session_id, digest=refused["digest"])
    assert applied["digest"] == refused["digest"]
    assert "made.txt" in applied["stat"]


async def test_a_client_that_looked_at_nothing_applies_nothing(
    codex: Caller, model: ScriptedModel, works: dict[str, Any], git_repo: Path
) -> None:
    model.on("write", run("echo new > made.txt"), say("done"))
    session_id = (await codex("codex_start", prompt="write", **works))["sessionId"]
    await codex.until_settled(session_id)
    refused = await codex.error("codex_apply", sessionId=session_id)
    assert refused["code"] == "confirmation_needed"
    assert git(git_repo, "status", "--porcelain") == ""
    shown = await codex("codex_diff", sessionId=session_id)
    assert (await codex("codex_apply", sessionId=session_id))["digest"] == shown["digest"]


async def test_a_client_applies_a_long_diff_only_after_it_has_read_its_end(
    codex: Caller, model: ScriptedModel, works: dict[str, Any], git_repo: Path
) -> None:
    lines = "for i in $(seq 20000); do echo line number $i; done > long.txt; echo hidden > middle.txt"
    model.on("write", run(lines), say("done"))
    model.on("again", run("echo other > middle.txt"), say("done"))
    session_id = (await codex("codex_start", prompt="write", **works))["sessionId"]
    await codex.until_settled(session_id)
    first = await codex("codex_diff", sessionId=session_id)
    assert "helmsman diff" in first["diff"]
    for given in ({}, {"digest": first["digest"]}):
        refused = await codex.error("codex_apply", sessionId=session_id, **given)
        assert (refused["code"], "digest" in refused) == ("confirmation_needed", False)
    forged = f"{10**6}-{first['digest'].partition('-')[2]}"
    assert (await codex.error("codex_diff", sessionId=session_id, cursor=forged))["parameter"] == "cursor"
    part, whole = first, ""
    while "-" in part["digest"]:
        whole += part["diff"].rpartition("[…")[0]
        part = await codex("codex_diff", sessionId=session_id, cursor=part["digest"])
    whole += part["diff"]
    assert hashlib.sha256(whole.encode()).hexdigest() == part["digest"]
    assert "+hidden" in whole
    await codex("codex_say", sessionId=session_id, message="again")
    await codex.until_settled(session_id)
    assert (await codex.error("codex_diff", sessionId=session_id, cursor=first["digest"]))["parameter"] == "cursor"
    changed = await codex.error("codex_apply", sessionId=session_id)
    assert (changed["code"], "+other" in changed["diff"]) == ("diff_changed", True)
    assert git(git_repo, "status", "--porcelain") == ""
    applied = await codex("codex_apply", sessionId=session_id, digest=changed["digest"])
    assert {file["path"] for file in applied["files"]} == {"long.txt", "middle.txt"}


async def test_conflicts_are_reported_with_files_and_code(
    codex: Caller, model: ScriptedModel, works: dict[str, Any], git_repo: Path
) -> None:
    model.on("write", run("echo theirs > README.md"), say("done"))
    model.on("hang", hang())
    session_id = (await codex("codex_start", prompt="write", **works))["sessionId"]
    await codex.until_settled(session_id)
    (git_repo / "README.md").write_text("mine\n", encoding="utf-8")
    await codex("codex_diff", sessionId=session_id)
    dirty = await codex.error("codex_apply", sessionId=session_id)
    assert (dirty["code"], dirty["files"]) == ("dirty_tree", ["README.md"])
    conflict = await codex.error("codex_apply", sessionId=session_id, allowDirty=True)
    assert (conflict["code"], conflict["conflicts"]) == ("apply_conflict", ["README.md"])
    await codex("codex_say", sessionId=session_id, message="hang")
    for tool in ("codex_apply", "codex_discard"):
        busy = await codex.error(tool, sessionId=session_id)
        assert (busy["code"], busy["running"]) == ("session_busy", [session_id])
    await codex("codex_interrupt", sessionId=session_id)
    assert (git_repo / "README.md").read_text(encoding="utf-8") == "mine\n"


async def test_bad_input_is_an_error_that_says_what_to_do(codex: Caller) -> None:
    assert (await codex.error("codex_usage", since="lately"))["parameter"] == "since"
    assert (await codex.error("codex_usage", groupBy="colour"))["code"] == "invalid_input"
    assert (await codex.error("codex_diff"))["code"] == "invalid_input"
    assert (await codex.error("codex_diff", sessionId="nobody"))["code"] == "session_not_found"


async def test_nothing_spent_is_an_answer(codex: Caller) -> None:
    spent = await codex("codex_usage")
    assert (spent["groups"], spent["total"]["turns"]) == ([], 0)
