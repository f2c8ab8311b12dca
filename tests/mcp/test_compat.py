"""The toolset `compat` on a real Codex: approvals in both eras, rules, progress, and calls that share a turn.

What it has in common with the removed server, and where it is better, is tested against that server in `tests/compat`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, ask_user, hang, question, run, say
from mcp import Client
from tests.live.test_question_broker import with_rules
from tests.mcp.caller import Caller
from tests.mcp.test_elicitation import Person

pytestmark = pytest.mark.anyio


@pytest.fixture
async def helm(settings: Settings, codex_home: CodexHome) -> AsyncIterator[HelmsmanService]:
    async with HelmsmanService(replace(settings, tools=("compat",)), env=codex_home.env) as helm:
        yield helm


@pytest.fixture
def writes(folder: Path) -> dict[str, Any]:
    return {"cwd": str(folder), "sandbox": "workspace-write", "approval-policy": "on-request"}


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(
    ("mode", "person", "made"),
    [
        ("legacy", Person(decision="approved"), True),
        ("legacy", Person(), True),
        ("legacy", Person("decline"), False),
        ("auto", Person(decision="approve"), True),
        ("auto", Person("decline"), False),
    ],
)
async def test_a_person_decides_in_both_eras(
    helm: HelmsmanService,
    model: ScriptedModel,
    writes: dict[str, Any],
    folder: Path,
    mode: Any,
    person: Person,
    made: bool,
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with Client(build_server(helm), mode=mode, elicitation_callback=person) as client:
        answer = await Caller(client)("codex", prompt="touch", **writes)
    assert answer["content"] == "done"
    assert set(answer) == {"threadId", "content"}
    assert (folder / "made.txt").exists() is made
    assert len(person.forms) == 1


async def test_a_rule_decides_before_anyone_is_asked(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    writes: dict[str, Any],
    folder: Path,
    tmp_path: Path,
) -> None:
    rules = '[[rules]]\neffect = "allow"\ncommand = ["touch"]\noutside = true\nprefix = true\n'
    settings = replace(with_rules(codex_binary, codex_home, tmp_path, rules), tools=("compat",))
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    person = Person("decline")
    async with (
        HelmsmanService(settings, env=codex_home.env) as helm,
        Client(build_server(helm), mode="legacy", elicitation_callback=person) as client,
    ):
        await Caller(client)("codex", prompt="touch", **writes)
    assert (folder / "made.txt").exists()
    assert person.forms == []


async def test_a_question_of_the_model_is_put_to_the_person(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any], mode: Any
) -> None:
    model.on("choose", ask_user(question("Which one?", "A", "B")), say("thanks"))
    person = Person(q1="B")
    config = {"features": {"default_mode_request_user_input": True}}
    async with Client(build_server(helm), mode=mode, elicitation_callback=person) as client:
        answer = await Caller(client)("codex", prompt="choose", config=config, **writes)
    assert answer["content"] == "thanks"
    assert "B" in model.requests[-1].tool_output
    assert [form.message for form in person.forms] == ["Codex asks you\nQuestion: Which one?"]


async def test_a_waiting_caller_receives_progress(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    gate = model.gate()
    model.on("go", run("true"), say("almost ", gate, "done"))
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        gate.release()

    async with Client(build_server(helm), mode="legacy") as client:
        with anyio.fail_after(60):
            await client.call_tool("codex", {"prompt": "go", **writes}, progress_callback=hear)
    assert heard


async def test_a_turn_ends_only_when_its_last_caller_leaves(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("work", hang())
    model.on("hurry", hang())
    async with Client(build_server(helm), mode="legacy") as client, anyio.create_task_group() as tasks:
        first, second = anyio.CancelScope(), anyio.CancelScope()

        async def call(scope: anyio.CancelScope, tool: str, arguments: dict[str, Any]) -> None:
            with scope:
                await client.call_tool(tool, arguments)

        tasks.start_soon(call, first, "codex", {"prompt": "work", **writes})
        with anyio.fail_after(30):
            await model.wait_for_request(1)
            while not helm.sessions:
                await anyio.sleep(0.01)
            (session,) = helm.sessions.values()
            tasks.start_soon(call, second, "codex-reply", {"prompt": "hurry", "threadId": session.id})
            engine: Any = await helm.engine()
            steered = anyio.Event()
            steer = engine.steer

            async def steer_and_tell(*arguments: Any) -> None:
                await steer(*arguments)
                steered.set()

            engine.steer = steer_and_tell
            await steered.wait()
            first.cancel()
            await anyio.wait_all_tasks_blocked()
            assert session.state.is_running
            second.cancel()
            assert await session.wait(until="end", timeout=30)
        assert session.status == "interrupted"


async def test_sessions_and_compat_are_served_together(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("go", say("done"))
    both = replace(settings, tools=("sessions", "compat"))
    async with HelmsmanService(both, env=codex_home.env) as helm, Client(build_server(helm), mode="legacy") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"codex", "codex-reply", "codex_start", "codex_wait"} <= names
        codex = Caller(client)
        thread = (await codex("codex", prompt="go", **writes))["threadId"]
        assert (await codex("codex_status", sessionId=thread))["result"] == "done"


async def test_the_text_is_the_answer_and_remarks_come_after_it(
    helm: HelmsmanService, model: ScriptedModel, writes: dict[str, Any]
) -> None:
    model.on("go", say("done"))
    async with Client(build_server(helm), mode="legacy") as client:
        with anyio.fail_after(60):
            result = await client.call_tool("codex", {"prompt": "go", **writes, "approval-policy": "on-failure"})
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    assert texts[0] == "done"
    assert "on-request is used instead" in texts[1]


async def test_a_refused_reply_gets_no_questions_of_the_session(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hello", say("hi"))
    session = await helm.start("hello", cwd=folder, sandbox="danger-full-access", approval_policy="never")
    await session.wait(until="end", timeout=30)
    async with Client(build_server(helm), mode="legacy", elicitation_callback=Person()) as client:
        refused = await client.call_tool("codex-reply", {"threadId": session.id, "prompt": "hello"})
        assert isinstance(refused, types.CallToolResult)
        assert refused.is_error
        assert "was opened by a person" in refused.content[0].text  # type: ignore[union-attr]
        assert session.on_question is None
