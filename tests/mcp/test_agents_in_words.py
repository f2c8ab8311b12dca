"""Every agent that is here has the tool of plain words: on an agent that does what a test says, and on Claude Code."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from helmsman import load_settings
from helmsman.agents.registry import Agents
from helmsman.mcp.router_tool import router_tools
from helmsman.mcp.server import build_server
from helmsman.mcp.toolset import Tool
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, add, patch, say
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, says, waits
from mcp import Client
from tests.claude import claude_binary, claude_environment
from tests.listings import count
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio

OWN = "command = {}\ntitle = 'My Agent'\nmode = 'ask'\nruns_repository_files = false\n"
FREELY: dict[str, Any] = {"safety": {"unenforced": True}}


@pytest.fixture
def fake(tmp_path: Path) -> FakeAcpAgent:
    return FakeAcpAgent(tmp_path / "fake")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """What is on the PATH."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def installed(name: str, programs: Path) -> None:
    """A program that was never meant to be started."""
    (programs / name).write_text('#!/bin/sh\ntouch "$0.was-started"\nexit 1\n')
    (programs / name).chmod(0o755)


@pytest.fixture
async def helm(fake: FakeAcpAgent, programs: Path, tmp_path: Path) -> AsyncIterator[HelmsmanService]:
    file = tmp_path / "helmsman.toml"
    agents = {"mine": fake.command, "other": fake.command, "codex_start": fake.command}
    file.write_text("".join(f"[agents.{name}]\n{OWN.format(command)}" for name, command in agents.items()))
    kept = {name: os.environ[name] for name in ("HOME", "HELMSMAN_TEST_ID") if name in os.environ}
    env = {**kept, "PATH": str(programs), "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    given = {"tools": "sessions,router", "expose_primitives": True, "codex_path": "codex"}
    settings = load_settings(given, env, tmp_path / "fake", user_file=file)
    async with HelmsmanService(settings, env=env) as helm:
        yield helm


@pytest.fixture
async def client(helm: HelmsmanService) -> AsyncIterator[Client]:
    async with Client(build_server(helm)) as client:
        yield client


@pytest.fixture
def ask(client: Client) -> Caller:
    return Caller(client)


async def listed(client: Client) -> dict[str, types.Tool]:
    return {tool.name: tool for tool in (await client.list_tools()).tools if not tool.name.startswith("codex_")}


async def offered(client: Client) -> set[str]:
    """The names of all tools: those that are listed, and those that a search finds."""
    tools = await listed(client)
    about = tools["helmsman_find"].description or ""
    return {*tools, *about.partition("There are also: ")[2].removesuffix(".").split(", ")}


# --- how they are offered --------------------------------------------------------------------------------------------


async def test_the_agents_that_are_installed_have_tools_found_anew_and_without_starting_one(
    client: Client, ask: Caller, programs: Path
) -> None:
    names = await offered(client)
    assert {"mine", "other", "_mine_local_run", "_mine_local_results"} <= names
    assert not {"codex", "claude", "gemini", "_claude_local_run", "_mine_cloud_submit"} & names
    for program in ("codex", "claude", "gemini"):
        installed(program, programs)
    assert {"codex", "claude", "gemini", "_codex_cloud_submit", "_gemini_local_run"} <= await offered(client)
    assert not [*programs.glob("*.was-started")]
    for spelt in ("claude", "claude-code", "claude_code"):
        assert (await ask(spelt, request="help"))["action"] == "none"
    for spelt in ("_claude_local_status", "_claude_code_local_status", "claude_code_local_status"):
        assert (await ask.error(spelt, task_id="T-local-000000000000"))["code"] == "task_not_found"
    (programs / "gemini").unlink()
    assert "gemini" not in await offered(client)
    begun = await ask("gemini", request="fix the parser", **FREELY)
    over = await ask("gemini", request=f"wait for {begun['task']['id']}")
    assert "Gemini is not installed" in over["userMessage"]


async def test_an_agent_with_the_name_of_a_tool_does_not_take_its_place(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert "prompt" in tools["codex_start"].input_schema["properties"]


def test_a_further_agent_costs_few_tokens_and_no_text_of_it_says_codex() -> None:
    agents = {agent.name: agent.title for agent in Agents()}
    tools = {tool.name: tool for tool in router_tools(agents, expose_primitives=True) if isinstance(tool, Tool)}
    whole = tools["claude"].listed().model_dump(by_alias=True, exclude_none=True, mode="json")
    assert "cloud" not in json.dumps([whole["description"], whole["inputSchema"]["properties"]["request"]])
    beside = tools["claude"].listed_like("codex").model_dump(by_alias=True, exclude_none=True, mode="json")
    assert count(beside) < 0.06 * count(whole)
    assert beside["inputSchema"]["properties"].keys() == whole["inputSchema"]["properties"].keys()
    for name, tool in tools.items():
        if "codex" not in name:
            assert "codex" not in json.dumps(tool.listed().model_dump(mode="json")).lower(), name


# --- what they do ----------------------------------------------------------------------------------------------------


async def test_run_check_wait_answer_results_and_cancel(ask: Caller, fake: FakeAcpAgent, git_repo: Path) -> None:
    here = {"context": {"working_dir": str(git_repo)}, **FREELY}
    fake.on("parser", asks("execute", "make", allowed=[says("made")], refused=[says("left")]))
    fake.on("more", says("and more"))
    fake.on("stay", waits())
    planned = await ask("mine", request="fix the parser", dryRun=True, explain=True, **here)
    assert ("Nothing was done" in planned["userMessage"], bool(planned["decisionTrace"])) == (True, True)
    confirm = {"unenforced": True, "require_confirmation": True}
    asked = await ask("mine", request="fix the parser", context=here["context"], safety=confirm)
    token = {"unenforced": True, "confirmation_token": asked["confirmation"]["token"]}
    elsewhere = await ask.error("other", request="fix the parser", context=here["context"], safety=token)
    assert elsewhere["code"] == "invalid_input", "what was agreed to is for the agent it was shown for"
    begun = (await ask("mine", request="fix the parser", context=here["context"], safety=token))["task"]
    assert (begun["agent"], begun["mode"]) == ("mine", "local")
    assert (await ask("mine", request="is my agent done?"))["task"]["id"] == begun["id"]
    waits_for_answer = await ask("mine", request="wait for it")
    assert waits_for_answer["pendingQuestion"]["questions"][0]["question"].startswith("My Agent asks")
    assert (await ask("mine", request="approve it"))["answered"]["answers"] == ["approve"]
    done = await ask("mine", request="wait for it")
    assert (done["task"]["status"], done["resultSummary"]["text"]) == ("completed", "made")
    again = await ask("mine", request="continue with the last task: more")
    assert (await ask("mine", request=f"wait for {again['task']['id']}"))["resultSummary"]["text"] == "and more"
    stays = (await ask("mine", request="stay here", **here))["task"]
    stopped = await ask("mine", request=f"cancel {stays['id']}")
    assert (stopped["task"]["status"], "Stopped My Agent's turn" in stopped["userMessage"]) == ("canceled", True)


async def test_a_tool_knows_its_own_agents_tasks_and_says_whose_another_is(
    ask: Caller, fake: FakeAcpAgent, git_repo: Path
) -> None:
    here = {"context": {"working_dir": str(git_repo)}, **FREELY}
    fake.on("parser", says("fixed"))
    theirs = (await ask("other", request="fix the parser", **here))["task"]
    for request in (
        f"check {theirs['id']}",
        f"retry {theirs['id']}",
        "how is it going?",
        "cancel it",
        f"is {theirs['alias']} done?",
        "check all",
    ):
        error = (await ask.error("mine", request=request))["error"]
        assert error["code"] == "task_not_found"
        assert f"{theirs['id']} ({theirs['alias']}) is a task of My Agent: ask the tool other." in error["message"]
    own = (await ask("mine", request="fix the parser", **here))["task"]
    assert (await ask("mine", request="check my task"))["task"]["id"] == own["id"]
    assert [one["id"] for one in (await ask("mine", request="check all"))["tasks"]] == [own["id"]]
    waited = await ask("_other_local_wait", task_id=theirs["id"])
    assert (waited["status"], waited["next_actions"][0]) == (
        "completed",
        f"Read all: _other_local_results with task_id {theirs['id']}",
    )
    refused = await ask.error("_mine_local_status", task_id=theirs["id"])
    assert "Use the tools named _other_local_…" in refused["message"]
    refused = await ask.error("_mine_local_resume", thread_id=waited["thread_id"], task="parser")
    assert "Use the tools named _other_local_…" in refused["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"request": "in the cloud: fix it"},
        {"request": "list cloud environments"},
        {"request": "list cloud tasks"},
        {"request": "set up GitHub"},
        {"request": "fix the parser", "hints": {"mode": "cloud"}},
    ],
    ids=str,
)
async def test_the_cloud_is_codexs_alone(ask: Caller, arguments: dict[str, Any]) -> None:
    error = (await ask.error("mine", **arguments))["error"]
    assert error["code"] == "unsupported"
    assert "The cloud is Codex's: My Agent works here." in error["message"]
    assert (await ask.error("mine", request="fix the parser", hints={"branch": "main"}))["parameter"] == "hints.branch"


async def test_a_missing_capability_is_refused_with_its_name(ask: Caller, fake: FakeAcpAgent, git_repo: Path) -> None:
    here = {"working_dir": str(git_repo)}
    for safety, why in (
        ({"sandbox": "read-only"}, "Install one with `pip install openai-codex-cli-bin`"),
        ({"unenforced": True, "max_cost_usd": 1}, "My Agent cannot tell what it has used. Codex, Claude Code, "),
    ):
        begun = await ask("mine", request="fix the parser", context=here, safety=safety)
        over = await ask("mine", request=f"wait for {begun['task']['id']}")
        assert over["resultSummary"]["error"]["code"] == "unsupported"
        assert why in over["userMessage"]
    assert fake.asked_for("session/prompt") == []


# --- a real one ------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_claude_code_does_what_its_tool_is_reported(
    codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    given = {"claude_path": str(claude_binary()), "detach": False, "tools": "router"}
    model.on("answer", patch(add("answer.txt", "42\n")), say("It is 42."))
    safety = {"sandbox": "workspace-write", "approval_policy": "on-request", "max_cost_usd": 5}
    async with (
        HelmsmanService(load_settings(given, env, tmp_path), env=env) as helm,
        Client(build_server(helm)) as client,
    ):
        ask = Caller(client)
        request = "write answer.txt"
        begun = (await ask("claude-code", request=request, context={"working_dir": str(git_repo)}, safety=safety))[
            "task"
        ]
        told = await ask("claude", request="wait for it")
        while told["nextAction"] == "answer":
            assert "Claude Code asks" in told["userMessage"]
            await ask("claude", request=f"approve {begun['id']}")
            told = await ask("claude", request=f"wait for {begun['id']}")
        assert (told["task"]["status"], told["resultSummary"]["text"]) == ("completed", "It is 42.")
        assert [one["path"] for one in told["resultSummary"]["filesChanged"]] == ["answer.txt"]
    assert (git_repo / "answer.txt").read_text() == "42\n"
