"""The scripted model with real Codex binaries: one script is to run on every version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.testing import (
    CodexHome,
    ScriptedModel,
    add,
    ask_user,
    call,
    call_tool,
    cut,
    delete,
    fail,
    hang,
    incomplete,
    move,
    patch,
    plan,
    question,
    rate_limit,
    request_permissions,
    response_failed,
    run,
    say,
    search,
    spawn_agent,
    think,
    update,
    usage,
    wait_agents,
)
from helmsman.testing.binaries import VersionNumbers
from tests.testing.conftest import Json, OpenAppServer, RawAppServer

pytestmark = [pytest.mark.anyio, pytest.mark.rare]

WORKSPACE = {"sandbox": "workspace-write", "approvalPolicy": "on-request"}
RETRIES = {"scripted": {"request_max_retries": 2, "stream_max_retries": 2}}


def code_mode_model(version: VersionNumbers) -> str | None:
    """A model that has the one tool `exec` in this Codex, if there is one."""
    if version < (0, 145, 0):
        return None
    return "gpt-5.6-sol" if version < (0, 160, 0) else "gpt-6.1-sol"


def tell_of_everything(model: ScriptedModel) -> None:
    """A script with all that every Codex can do."""
    change = patch(
        add("new.txt", "hi\n"),
        update("README.md", "# A repository", "# Changed"),
        delete("gone.txt"),
        move("old.txt", "moved.txt", keeping="kept"),
    )
    model.on(
        "Go",
        run("echo hello"),
        [think("hm", raw="hm"), change],
        run("env echo outside", escalate="May I?", prefix_rule=["env"]),
        [search("cats"), say("Let me ", "see.", phase="commentary"), call_tool("lab", "read", {"key": "k"})],
        lambda request: [say(" / ".join(output.strip() for output in request.tool_outputs)), usage(7, 5, 3, 1)],
    )


def files_in(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.is_file()}


async def check_that_everything_happened(app_server: OpenAppServer, folder: Path, model: ScriptedModel) -> None:
    (folder / "README.md").write_text("# A repository\n", encoding="utf-8")
    (folder / "gone.txt").write_text("bye\n", encoding="utf-8")
    (folder / "old.txt").write_text("kept\n", encoding="utf-8")
    with anyio.fail_after(60):
        async with app_server() as server:
            await server.start_thread(cwd=str(folder), **WORKSPACE)
            turn = await server.run("Go")

    assert turn["status"] == "completed", (turn, model.problems)
    commands = server.items("commandExecution")
    # Seen once, on 0.130: no output of the first command in its item, though the model was told it (checked below).
    first, second = (command["aggregatedOutput"] for command in commands)
    assert first in ("hello\n", None)
    assert second == "outside\n"
    (approval,) = server.params("item/commandExecution/requestApproval")
    assert approval["reason"] == "May I?"
    assert files_in(folder) == {"new.txt": "hi\n", "README.md": "# Changed\n", "moved.txt": "kept\n"}
    assert [change["status"] for change in server.items("fileChange")] == ["completed"]
    assert [item["summary"] for item in server.items("reasoning")] == [["hm"]]
    assert [item["query"] for item in server.items("webSearch")] == ["cats"]
    (tool_call,) = server.items("mcpToolCall")
    assert (tool_call["server"], tool_call["tool"], tool_call["status"]) == ("lab", "read", "completed")
    said = [message["text"] for message in server.items("agentMessage")]
    assert said[0] == "Let me see."
    assert said[1].startswith("hello / ")
    assert "no such note" in said[1].rpartition(" / ")[2]
    spent = server.params("thread/tokenUsage/updated")[-1]["tokenUsage"]["last"]
    assert (spent["inputTokens"], spent["cachedInputTokens"], spent["outputTokens"]) == (7, 5, 3)


@pytest.mark.matrix
async def test_one_script_runs_on_every_version(
    app_server: OpenAppServer,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    mcp_server_config: dict[str, Any],
) -> None:
    codex_home.configure(mcp_servers=mcp_server_config)
    tell_of_everything(model)

    await check_that_everything_happened(app_server, folder, model)


@pytest.mark.matrix(changed_in=["0.145.0"])
async def test_the_same_script_runs_in_code_mode(
    app_server: OpenAppServer,
    codex_home: CodexHome,
    codex_version: VersionNumbers,
    model: ScriptedModel,
    folder: Path,
    mcp_server_config: dict[str, Any],
) -> None:
    name = code_mode_model(codex_version)
    if name is None:
        pytest.skip("This Codex has no code mode.")
    codex_home.configure(model=name, mcp_servers=mcp_server_config)
    tell_of_everything(model)

    await check_that_everything_happened(app_server, folder, model)
    assert any(output["type"] == "custom_tool_call" and output["name"] == "exec" for output in model.requests[-1].input)


@pytest.mark.matrix(changed_in=[])
async def test_text_arrives_while_the_test_holds_the_stream(
    app_server: OpenAppServer, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("Go", [say("Hel", gate, "lo"), rate_limit(40, window_minutes=300)])

    with anyio.fail_after(30):
        async with app_server() as server:
            await server.start_thread(cwd=str(folder))
            await server.start_turn("Go")
            assert (await server.wait_for("item/agentMessage/delta"))["delta"] == "Hel"
            await gate.reached()
            gate.release()
            assert (await server.wait_for("item/agentMessage/delta"))["delta"] == "lo"
            await server.wait_for("turn/completed")
    assert server.params("account/rateLimits/updated")[-1]["rateLimits"]["primary"]["usedPercent"] == 40


@pytest.mark.matrix(changed_in=["0.115.0", "0.130.0"])
async def test_mcp_tools_write_and_ask(
    app_server: OpenAppServer,
    codex_home: CodexHome,
    codex_version: VersionNumbers,
    model: ScriptedModel,
    folder: Path,
    tmp_path: Path,
    mcp_server_config: dict[str, Any],
) -> None:
    asks = [call_tool("lab", "ask")] if codex_version >= (0, 115, 0) else []  # 0.93 does not know elicitation
    codex_home.configure(mcp_servers=mcp_server_config)
    model.on("Go", call_tool("lab", "write", {"key": "k", "text": "t"}), *asks, say("done"))

    def answer(request: Json) -> Json:
        if request["method"] == "item/tool/requestUserInput":  # how 0.115 asks for approval
            return {"answers": {asked["id"]: {"answers": ["Allow"]} for asked in request["params"]["questions"]}}
        wants_name = "name" in request["params"]["requestedSchema"]["properties"]
        return {"action": "accept", "content": {"name": "Ann"} if wants_name else {}}

    with anyio.fail_after(60):
        async with app_server() as server:
            server.answer = answer
            await server.start_thread(cwd=str(folder), **WORKSPACE)
            turn = await server.run("Go")

    assert turn["status"] == "completed", (turn, model.problems)
    assert json.loads((tmp_path / "notes.json").read_text(encoding="utf-8")) == {"k": "t"}
    assert "written" in model.requests[1].tool_output
    assert not asks or "accept Ann" in model.requests[2].tool_output


@pytest.mark.matrix(changed_in=["0.145.0"])
@pytest.mark.parametrize("code_mode", [False, True], ids=["classic", "code mode"])
async def test_a_sub_agent_follows_the_script_for_its_task(
    app_server: OpenAppServer,
    codex_home: CodexHome,
    codex_version: VersionNumbers,
    model: ScriptedModel,
    folder: Path,
    code_mode: bool,
) -> None:
    if code_mode:
        name = code_mode_model(codex_version)
        if name is None:
            pytest.skip("This Codex has no code mode.")
        codex_home.configure(model=name)
    if codex_version < (0, 115, 0):
        codex_home.configure(features={"collab": True})
    model.on("Go", spawn_agent("Look around"), wait_agents(), say("done"))
    model.on("Look around", run("echo sub"), say("seen"))

    with anyio.fail_after(60):
        async with app_server() as server:
            await server.start_thread(cwd=str(folder), **WORKSPACE)
            turn = await server.run("Go")

    assert turn["status"] == "completed", (turn, model.problems)
    children = [request for request in model.requests if request.thread_id != server.thread_id]
    assert [request.last_user_text for request in children] == ["Look around"] * 2
    assert children[1].tool_output == "sub\n"
    assert server.items("agentMessage")[-1]["text"] == "done"


@pytest.mark.matrix(changed_in=["0.155.0"])
async def test_a_plan_is_made_where_codex_offers_plans(
    app_server: OpenAppServer, codex_version: VersionNumbers, model: ScriptedModel, folder: Path
) -> None:
    model.on("Go", plan(("one", "completed"), ("two", "in_progress"), "three"), say("done"))

    with anyio.fail_after(30):
        async with app_server() as server:
            await server.start_thread(cwd=str(folder))
            turn = await server.run("Go")

    if codex_version < (0, 155, 0):
        (made,) = server.params("turn/plan/updated")
        assert [step["status"] for step in made["plan"]] == ["completed", "inProgress", "pending"]
    else:
        assert "The script needs the tool 'update_plan'" in turn["error"]["message"]
        assert len(model.problems) == 1
        model.problems.clear()


@pytest.mark.matrix(changed_in=["0.115.0", "0.130.0", "0.145.0"])
async def test_codex_asks_the_person_and_for_permissions_and_calls_the_tools_of_its_client(
    app_server: OpenAppServer, codex_home: CodexHome, codex_version: VersionNumbers, model: ScriptedModel, folder: Path
) -> None:
    lookup: Json = {"name": "lookup", "description": "Look up.", "inputSchema": {"type": "object", "properties": {}}}
    if codex_version >= (0, 145, 0):
        lookup["type"] = "function"
    codex_home.configure(features={"default_mode_request_user_input": True, "request_permissions_tool": True})
    asks = [
        ask_user(question("Which one?", "A", "B"), question("How?", "fast", "well", id="q2", header="HubConnector")),
        request_permissions("for the test", network=True, write=[str(folder)]),
    ]
    model.on("Go", *(asks if codex_version >= (0, 115, 0) else []), call("lookup", {"key": "k"}), say("done"))

    def answer(request: Json) -> Json:
        match request["method"]:
            case "item/tool/requestUserInput":
                return {"answers": {"q1": {"answers": ["B"]}, "q2": {"answers": ["well"]}}}
            case "item/permissions/requestApproval":
                return {"permissions": {"network": {"enabled": True}}, "scope": "turn"}
            case _:
                content = [{"type": "inputText", "text": "VALUE"}]
                return {"success": True, "contentItems": content, "output": "VALUE"}

    with anyio.fail_after(30):
        async with app_server() as server:
            server.answer = answer
            await server.start_thread(cwd=str(folder), dynamicTools=[lookup], **WORKSPACE)
            turn = await server.run("Go")

    assert turn["status"] == "completed", (turn, model.problems)
    outputs = model.requests[-1].tool_outputs
    assert outputs[-1] == "VALUE"
    if codex_version >= (0, 115, 0):
        assert json.loads(outputs[0])["answers"] == {"q1": {"answers": ["B"]}, "q2": {"answers": ["well"]}}
        assert json.loads(outputs[1])["permissions"]["network"] == {"enabled": True}
        assert "entries" in str(server.params("item/permissions/requestApproval")[0]) or codex_version < (0, 130, 0)


FAULTS: dict[str, Any] = {
    "503": fail(503),
    "cut": cut(),
    "cut in a message": say("Hel", cut()),
    "cut after a message": [say("Hello"), cut()],
    "failed": response_failed("server_error"),
}


@pytest.mark.matrix(changed_in=["0.163.0"])
async def test_a_fault_is_tried_again_and_gets_the_next_step(
    app_server: OpenAppServer, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    codex_home.configure(model_providers=RETRIES)
    for name, fault in FAULTS.items():
        model.on(f"Go: {name}", fault, say("Hello"))

    with anyio.fail_after(60):
        async with app_server() as server:
            for number, name in enumerate(FAULTS, 1):
                await server.start_thread(cwd=str(folder))
                turn = await server.run(f"Go: {name}")

                assert turn["status"] == "completed", (name, turn)
                assert server.items("agentMessage")[-1]["text"] == "Hello", name
                assert len(model.requests) == 2 * number, name


@pytest.mark.matrix(changed_in=["0.163.0"])
async def test_too_many_requests_are_tried_again_by_newer_versions(
    app_server: OpenAppServer, codex_home: CodexHome, codex_version: VersionNumbers, model: ScriptedModel, folder: Path
) -> None:
    codex_home.configure(model_providers=RETRIES)
    model.on("Go", fail(429, retry_after=0), say("Hello"))

    with anyio.fail_after(30):
        async with app_server() as server:
            await server.start_thread(cwd=str(folder))
            turn = await server.run("Go")

    tried_again = codex_version >= (0, 163, 0)
    assert turn["status"] == ("completed" if tried_again else "failed")
    assert len(model.requests) == (2 if tried_again else 1)


async def test_a_fault_ends_the_turn_when_nothing_is_tried_again(
    app_server: OpenAppServer, model: ScriptedModel, folder: Path
) -> None:
    faults = {
        "usage limit": (fail(429, error_type="usage_limit_reached", resets_at=1999999999), "usageLimitExceeded"),
        "nonsense": (fail(400, message="nonsense"), "other"),
        "too long": (response_failed("context_length_exceeded"), "contextWindowExceeded"),
        "incomplete": (incomplete(), "other"),
        "cut": (cut(), "other"),
    }
    for name, (fault, _) in faults.items():
        model.on(f"Go: {name}", fault)

    with anyio.fail_after(60):
        async with app_server() as server:
            for name, (_, info) in faults.items():
                await server.start_thread(cwd=str(folder))
                turn = await server.run(f"Go: {name}")

                assert (turn["status"], turn["error"]["codexErrorInfo"]) == ("failed", info), name


@pytest.mark.matrix(changed_in=[])
async def test_a_hanging_model_can_be_interrupted_and_the_thread_continues(
    app_server: OpenAppServer, model: ScriptedModel, folder: Path
) -> None:
    model.on("Go", hang())
    model.otherwise(say("ok"))

    with anyio.fail_after(30):
        async with app_server() as server:
            await server.start_thread(cwd=str(folder))
            turn_id = await server.start_turn("Go")
            await model.wait_for_request()
            await server.send(
                {"id": "stop", "method": "turn/interrupt", "params": {"threadId": server.thread_id, "turnId": turn_id}}
            )
            assert (await server.wait_for("turn/completed"))["turn"]["status"] == "interrupted"
            assert (await server.run("Again"))["status"] == "completed"
    assert model.requests[-1].user_texts == ("Go", "Again")
    assert server.items("agentMessage")[-1]["text"] == "ok"


@pytest.mark.matrix(changed_in=["0.115.0"])
async def test_a_steered_message_switches_the_script(
    app_server: OpenAppServer, codex_version: VersionNumbers, model: ScriptedModel, folder: Path
) -> None:
    if codex_version < (0, 115, 0):
        pytest.skip("This Codex cannot be steered.")
    gate = model.gate()
    model.on("Go", [say("working"), gate, run("true")], say("as planned"))
    model.on("Rather not", say("stopped"))

    with anyio.fail_after(30):
        async with app_server() as server:
            await server.start_thread(cwd=str(folder))
            turn_id = await server.start_turn("Go")
            await gate.reached()
            text = {"type": "text", "text": "Rather not"}
            params = {"threadId": server.thread_id, "expectedTurnId": turn_id, "input": [text]}
            await server.request("turn/steer", params)
            gate.release()
            await server.wait_for("turn/completed")
    assert server.items("agentMessage")[-1]["text"] == "stopped"


async def test_many_threads_share_one_script(app_server: OpenAppServer, model: ScriptedModel, folder: Path) -> None:
    gate = model.gate()
    model.on("Go", run("echo $$"), [gate, say("done")])

    with anyio.fail_after(60):
        async with app_server() as server:
            for _ in range(8):
                await server.start_thread(cwd=str(folder), **WORKSPACE)
                await server.start_turn("Go")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read_until_completed, server, 8)
                await gate.reached(8)
                gate.release()
    assert {turn["turn"]["status"] for turn in server.params("turn/completed")} == {"completed"}
    assert len(server.items("commandExecution")) == 8


async def read_until_completed(server: RawAppServer, turns: int) -> None:
    while len(server.params("turn/completed")) < turns:
        await server.receive()
