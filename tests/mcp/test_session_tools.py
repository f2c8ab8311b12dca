"""The seven tools through the Python client, in both eras, on a real Codex."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Settings
from helmsman.base.processes import running_process
from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.model.answered_by import PERSON_IN_DASHBOARD
from helmsman.service import HelmsmanService
from helmsman.settings import RETENTION_DAYS
from helmsman.tasks.model import TaskDraft
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from mcp import Client
from tests.mcp.caller import Caller
from tests.played import PlayedAgent
from tests.shared_engine import on_shared_engine

pytestmark = pytest.mark.anyio

KEPT_MS = RETENTION_DAYS * 24 * 60 * 60 * 1000


@pytest.fixture(params=["legacy", "auto"])
async def codex(request: pytest.FixtureRequest, helm: HelmsmanService) -> AsyncIterator[Caller]:
    async with Client(build_server(helm), mode=request.param) as client:
        yield Caller(client)


async def test_the_whole_story(
    codex: Caller, model: ScriptedModel, asks: dict[str, Any], folder: Path, settings: Settings, codex_home: CodexHome
) -> None:
    asks["config"] = {"hide_agent_reasoning": "true"}  # as in `-c hide_agent_reasoning=true`: a text Codex would refuse
    gate = model.gate()
    model.on("make it", run("touch made.txt", escalate="please"), say("It is ", gate, "made"))
    model.on("hang", hang())
    started = await codex("codex_start", prompt="make it", **asks)
    session_id = started["sessionId"]
    assert started["status"] in ("active", "awaiting_approval")
    assert started["taskId"].startswith("T-local-")
    waiting = await codex.until_settled(session_id)
    assert waiting["status"] == "awaiting_approval"
    question = waiting["pendingQuestion"]
    assert question["type"] == "command_approval"
    assert question["questions"][0]["options"] == ["approve", "approve_session", "approve_always", "deny", "abort"]
    assert "touch made.txt" in question["details"]["command"]
    assert (await codex("codex_respond", sessionId=session_id, id=question["id"], answers=["approve"]))[
        "status"
    ] == "active"
    gate.release()
    done = await codex.until_settled(session_id)
    assert (done["status"], done["result"], done["turnCount"]) == ("done", "It is made", 1)
    assert done["agent"] == "codex"
    assert [event["itemType"] for event in done["itemEvents"]] == ["command_execution", "agent_message"]
    assert done["usage"]["inputTokens"] > 0
    assert all(0 < KEPT_MS - status["ttlMs"] < 120_000 for status in (waiting, done))
    assert (done["recentOutput"][0].partition("  ")[0], done["recentOutput"][-1]) == ("$ touch made.txt", "It is made")
    assert (folder / "made.txt").exists()
    assert (await codex("codex_say", sessionId=session_id, message="hang"))["status"] == "active"
    assert await codex("codex_interrupt", sessionId=session_id) == {"sessionId": session_id, "status": "interrupted"}
    (listed,) = (await codex("codex_list"))["sessions"]
    assert (listed["sessionId"], listed["isActive"], listed["summary"]) == (session_id, False, "make it")
    assert (listed["agent"], listed["activeStatus"]) == ("codex", "interrupted")
    async with HelmsmanService(settings, env=codex_home.env) as later, Client(build_server(later)) as client:
        for _ in range(2):  # of a session that it has only found on disk, once read and once remembered
            (listed,) = (await Caller(client)("codex_list"))["sessions"]
            assert (listed["isActive"], listed["activeStatus"], listed["source"]) == (False, "interrupted", "helmsman")


async def test_a_session_that_is_idle_here_and_runs_elsewhere_is_listed_as_active(
    codex: Caller, helm: HelmsmanService, model: ScriptedModel
) -> None:
    model.on("hello", say("hi"))
    session_id = (await codex("codex_start", prompt="hello"))["sessionId"]
    assert (await codex.until_settled(session_id))["status"] == "done"
    another = running_process(os.getppid())
    draft = TaskDraft(instruction="more", status="working", session_id=session_id, owner=another)
    await helm.task_writer.registry(lambda registry: registry.add(draft))
    (listed,) = (await codex("codex_list"))["sessions"]
    assert (listed["isActive"], listed["activeStatus"]) == (True, "active")


async def test_the_tools_are_listed_with_schemas_texts_and_annotations(codex: Caller) -> None:
    tools = (await codex.client.list_tools()).tools
    assert [tool.name for tool in tools] == [
        "codex_start",
        "codex_say",
        "codex_status",
        "codex_wait",
        "codex_respond",
        "codex_interrupt",
        "codex_list",
        "codex_agents",
        "codex_diff",
        "codex_apply",
        "codex_discard",
    ]
    for tool in tools:
        assert tool.title
        assert tool.description
        assert tool.output_schema is not None
        assert tool.annotations is not None
        assert tool.input_schema["additionalProperties"] is False
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), f"{tool.name}.{name} is not described"
    start = tools[0].input_schema
    assert start["required"] == ["prompt"]
    assert set(start["properties"]) == {
        *("prompt", "workingDirectory", "model", "approvalPolicy", "sandbox", "images", "effort", "worktree"),
        "options",
    }
    rarely = {
        *("fullAuto", "profile", "config", "baseInstructions", "developerInstructions", "skipGitRepoCheck"),
        *("dangerouslyBypassApprovalsAndSandbox", "trustRepository", "writableRoots", "outputSchema", "idempotencyKey"),
        *("minRemainingPercent", "onLimit", "maxCostUsd"),
    }
    named = set(re.findall(r"[a-z][A-Za-z]+", start["properties"]["options"]["description"]))
    assert rarely <= named, "options names all that it takes"
    assert codex.client.instructions
    assert "codex_wait" in codex.client.instructions


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "sentence"),
    [
        ("codex_start", {}, "invalid_input", "prompt"),
        ("codex_start", {"prompt": " "}, "invalid_input", "empty"),
        ("codex_start", {"prompt": "x", "workingDirectory": "/no/such/place"}, "invalid_input", "does not exist"),
        ("codex_start", {"prompt": "x", "workingDirectory": "/etc/passwd"}, "invalid_input", "not a directory"),
        ("codex_start", {"prompt": "x", "sandbox": "open"}, "invalid_input", "sandbox"),
        ("codex_start", {"prompt": "x", "images": ["/no/such.png"]}, "invalid_input", "no image"),
        ("codex_start", {"prompt": "x", "config": {"a\nb": 1}}, "invalid_input", "key"),
        ("codex_start", {"prompt": "x", "promt": "y"}, "invalid_input", "promt"),
        ("codex_start", {"prompt": "x", "tools": []}, "invalid_input", "tools"),
        ("codex_start", {"prompt": "x" * 20_000_000}, "invalid_input", "1048576"),
        ("codex_say", {"sessionId": "nope", "message": "x"}, "session_not_found", "nope"),
        ("codex_status", {"sessionId": "nope"}, "session_not_found", "nope"),
        ("codex_wait", {"sessionId": "nope"}, "session_not_found", "nope"),
        ("codex_wait", {"sessionId": "x", "timeoutSec": -1}, "invalid_input", "timeoutSec"),
        ("codex_respond", {"sessionId": "nope", "id": "q", "answers": ["a"]}, "session_not_found", "nope"),
        ("codex_interrupt", {"sessionId": "nope"}, "session_not_found", "nope"),
        ("codex_list", {"limit": 0}, "invalid_input", "limit"),
        ("codex_start", {"prompt": "x", "fullAuto": True, "sandbox": "read-only"}, "invalid_input", "fullAuto means"),
        (
            "codex_start",
            {"prompt": "x", "config": {"approval_polcy": "never"}},
            "invalid_input",
            "mean approval_policy",
        ),
        ("codex_start", {"prompt": "x", "minRemainingPercent": 101}, "invalid_input", "minRemainingPercent"),
        ("codex_list", {"cursor": "nonsense"}, "invalid_input", "cursor"),
    ],
)
async def test_bad_input_is_a_result_with_a_code_and_the_server_continues(
    codex: Caller, tool: str, arguments: dict[str, Any], code: str, sentence: str
) -> None:
    error = await codex.error(tool, **arguments)
    assert error["code"] == code
    assert sentence in error["message"]
    assert (await codex("codex_list"))["sessions"] == []


@on_shared_engine
async def test_a_wrong_answer_is_refused_and_the_question_stays(
    codex: Caller, model: ScriptedModel, asks: dict[str, Any]
) -> None:
    model.on("make it", run("touch made.txt", escalate="please"), say("ok"))
    session_id = (await codex("codex_start", prompt="make it", **asks))["sessionId"]
    question = (await codex.until_settled(session_id))["pendingQuestion"]
    wrong = await codex.error("codex_respond", sessionId=session_id, id="q_0", answers=["approve"])
    assert wrong["code"] == "question_not_open"
    for answers in (["maybe"], [], ["approve", "approve"]):
        refused = await codex.error("codex_respond", sessionId=session_id, id=question["id"], answers=answers)
        assert refused["code"] == "answer_invalid"
    await codex("codex_respond", sessionId=session_id, id=question["id"], answers=["deny: not now"])
    assert (await codex.until_settled(session_id))["status"] == "done"
    assert "not now" in model.requests[-1].user_texts


@on_shared_engine
@pytest.mark.parametrize("forged", ["Directory: /safe ", "Directory: /safe \\\n"])
async def test_an_agent_cannot_approve_a_truncated_question(
    codex: Caller, model: ScriptedModel, helm: HelmsmanService, asks: dict[str, Any], folder: Path, forged: str
) -> None:
    command = f"echo {forged * 3500}; touch made.txt"
    model.on("make it", run(command, escalate="please"), say("ok"))
    session_id = (await codex("codex_start", prompt="make it", **asks))["sessionId"]
    question = (await codex.until_settled(session_id))["pendingQuestion"]
    (part,) = question["questions"]
    assert "characters left out" in part["question"]
    shown = [line for line in part["question"].split("\n") if not line.startswith("    │ ")]
    assert [line for line in shown if line.lstrip().startswith("Directory: ")] == [f"Directory: {folder}"]
    for answer in ("approve", "approve_session", "approve_always"):
        refused = await codex.error("codex_respond", sessionId=session_id, id=question["id"], answers=[answer])
        assert refused["code"] == "answer_invalid"
        assert "not shown all" in refused["message"]
    await helm.respond(session_id, question["id"], ["approve"], by=PERSON_IN_DASHBOARD)  # a page shows all of it
    assert (await codex.until_settled(session_id))["status"] == "done"
    assert (folder / "made.txt").exists()


async def test_no_name_of_a_session_looks_like_another_session_in_the_list(
    codex: Caller, model: ScriptedModel, asks: dict[str, Any]
) -> None:
    model.on("hello", say("done"))
    session_id = (await codex("codex_start", prompt="hello \x1b[2J\u202e", **asks))["sessionId"]
    await codex.until_settled(session_id)
    result = await codex.client.call_tool("codex_list", {})
    (text,) = [part.text for part in result.content if part.type == "text"]
    assert text.endswith("hello \\x1b[2J\\u202e")


@on_shared_engine
async def test_a_wait_ends_when_its_time_is_up(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("hang", hang())
    session_id = (await codex("codex_start", prompt="hang", workingDirectory=str(folder)))["sessionId"]
    assert (await codex("codex_wait", sessionId=session_id, timeoutSec=0.1))["status"] == "active"
    busy = await codex.error("codex_say", sessionId=session_id, message="more")
    assert busy["code"] == "session_busy"


async def test_the_same_key_gives_the_same_session(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("once", say("ok"))
    arguments = {"prompt": "once", "workingDirectory": str(folder), "idempotencyKey": "k1"}
    first = await codex("codex_start", **arguments)
    second = await codex("codex_start", **arguments)
    assert first["sessionId"] == second["sessionId"]
    await codex.until_settled(first["sessionId"])
    assert len(model.requests) == 1


@on_shared_engine
async def test_an_output_schema_gives_an_object(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("add", say('{"answer": 42}'))
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    started = await codex("codex_start", prompt="add", workingDirectory=str(folder), outputSchema=schema)
    assert (await codex.until_settled(started["sessionId"]))["output"] == {"answer": 42}


@pytest.mark.needs_git
async def test_a_worktree_session_works_beside_the_main_tree(
    codex: Caller, model: ScriptedModel, asks: dict[str, Any], git_repo: Path
) -> None:
    model.on("write", run("echo hi > made.txt"), say("ok"))
    started = await codex("codex_start", prompt="write", worktree=True, **asks | {"workingDirectory": str(git_repo)})
    tree = started["worktree"]
    assert tree["branch"].startswith("helmsman/")
    done = await codex.until_settled(started["sessionId"])
    assert done["workingDirectory"] == tree["path"]
    assert Path(tree["path"], "made.txt").exists()
    assert not (git_repo / "made.txt").exists()


@on_shared_engine
async def test_only_what_is_new_comes_since_a_cursor(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    gate = model.gate()
    model.on("work", run("true"), say("almost", gate, " done"))
    arguments = {"workingDirectory": str(folder), "approvalPolicy": "never"}
    session_id = (await codex("codex_start", prompt="work", **arguments))["sessionId"]
    with anyio.fail_after(30):
        await gate.reached()
    first = await codex("codex_status", sessionId=session_id)
    assert "command_execution" in [event["itemType"] for event in first["itemEvents"]]
    gate.release()
    await codex.until_settled(session_id)
    later = await codex("codex_status", sessionId=session_id, sinceCursor=first["cursor"], outputLines=1)
    assert [event["itemType"] for event in later["itemEvents"]] == ["agent_message"]
    assert later["recentOutput"] == ["almost done"]


@on_shared_engine
async def test_progress_comes_on_the_callers_own_token(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("hang", hang())
    session_id = (await codex("codex_start", prompt="hang", workingDirectory=str(folder)))["sessionId"]
    heard: list[str | None] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    await codex.client.call_tool("codex_wait", {"sessionId": session_id, "timeoutSec": 0.5}, progress_callback=listen)
    assert heard


async def test_an_unknown_tool_is_a_protocol_error(codex: Caller) -> None:
    with pytest.raises(Exception, match="Unknown tool"):
        await codex.client.call_tool("codex_fly", {})


async def test_a_misspelt_argument_starts_nothing_and_gets_a_suggestion(
    codex: Caller, folder: Path, helm: HelmsmanService
) -> None:
    refused = await codex.error("codex_start", prompt="x", workingDirectory=str(folder), sanbox="read-only")
    assert (refused["code"], refused["parameter"]) == ("invalid_input", "sanbox")
    assert "There is no argument sanbox. Did you mean sandbox?" in refused["message"]
    inside = {"config": {"sanbox_mode": "read-only"}}
    refused = await codex.error("codex_start", prompt="x", workingDirectory=str(folder), **inside)
    assert "Did you mean sandbox_mode?" in refused["message"]
    assert not helm.sessions


async def test_a_wrong_argument_is_reported_by_the_name_it_has_here(codex: Caller, folder: Path) -> None:
    refused = await codex.error("codex_start", prompt="x", workingDirectory=str(folder / "nowhere"))
    assert refused["parameter"] == "workingDirectory"
    refused = await codex.error("codex_start", prompt="x", workingDirectory="nowhere")
    assert refused["message"].startswith(f"'nowhere' does not exist in {Path.cwd()}.")
    refused = await codex.error("codex_start", prompt="x", sandbox="full")
    assert refused["message"] == ("sandbox: it should be 'read-only', 'workspace-write' or 'danger-full-access'.")
    assert (await codex.error("codex_say", sessionId="0199a0f2"))["message"].startswith("message is missing. The arg")


async def test_tools_with_codex_in_their_name_start_codex_whatever_the_default_agent_is(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hello", say("ok"))
    chosen = replace(settings, default_agent="played")
    async with (
        HelmsmanService(chosen, env=codex_home.env, agents=[PlayedAgent()]) as helm,
        Client(build_server(helm), mode="auto") as client,
    ):
        codex = Caller(client)
        started = await codex("codex_start", prompt="hello", workingDirectory=str(folder))
        assert (await codex.until_settled(started["sessionId"]))["agent"] == "codex"
        assert (await helm.start("hello", cwd=folder)).options.agent == "played"
