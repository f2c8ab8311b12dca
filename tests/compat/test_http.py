"""The toolset `compat` over streamable HTTP, with the Python client: results, events, approvals, cancellation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.extension import ClientExtension, NotificationBinding
from pydantic import BaseModel

from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from mcp import Client
from tests.clients.server_process import SECONDS, Serving
from tests.mcp.caller import Caller
from tests.mcp.test_elicitation import Person

pytestmark = [
    pytest.mark.rare,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by"),
]

ERAS: list[Any] = ["legacy", "2026-07-28"]
WRITES = {"sandbox": "workspace-write", "approval-policy": "on-request"}


class _Params(BaseModel):
    msg: dict[str, Any]


class Listener(ClientExtension):
    """Keeps the messages of the `codex/event` notifications."""

    identifier = "org.example/codex-events"

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self._news = anyio.Event()

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return (NotificationBinding(method="codex/event", params_type=_Params, handler=self._hear),)

    async def _hear(self, params: _Params) -> None:
        self.heard.append(params.msg)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, kind: str) -> dict[str, Any]:
        with anyio.fail_after(SECONDS):
            while True:
                for message in self.heard:
                    if message["type"] == kind:
                        return message
                await self._news.wait()


@pytest.fixture
def serving(codex_home: CodexHome, codex_binary: Path, git_repo: Path) -> Serving:
    return Serving.on(codex_home, codex_binary, git_repo)


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_returns_its_result_and_tells_what_happens(
    serving: Serving, model: ScriptedModel, era: Any
) -> None:
    model.on("go", run("cat README.md"), say("done"))
    listener = Listener()
    async with (
        serving.over_http("--tools", "compat") as server,
        Client(server.transport(), mode=era, extensions=[listener]) as client,
    ):
        answer = await Caller(client)("codex", prompt="go", **WRITES)
        assert answer["content"] == "done"
        assert (await listener.until("session_configured"))["thread_id"] == answer["threadId"]
        assert (await listener.until("task_complete"))["last_agent_message"] == "done"
        command = await listener.until("exec_command_end")
        assert command["parsed_cmd"] == [
            {"type": "read", "cmd": "cat README.md", "name": "README.md", "path": "README.md"}
        ]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_person_is_asked_on_the_stream_of_the_call(
    serving: Serving, model: ScriptedModel, git_repo: Path, era: Any, action: str
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    form = {} if action == "decline" or era == "legacy" else {"decision": "approve"}
    person = Person(action, **form)
    async with (
        serving.over_http("--tools", "compat") as server,
        Client(server.transport(), mode=era, elicitation_callback=person) as client,
    ):
        assert (await Caller(client)("codex", prompt="touch", **WRITES))["content"] == "done"
    assert len(person.forms) == 1
    assert (git_repo / "made.txt").exists() is (action == "accept")


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_stops_its_turn(serving: Serving, model: ScriptedModel, era: Any) -> None:
    model.on("work", hang())
    model.on("again", say("back"))
    listener = Listener()
    async with (
        serving.over_http("--tools", "compat,sessions") as server,
        Client(server.transport(), mode=era, extensions=[listener]) as client,
    ):
        codex = Caller(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "codex", {"prompt": "work", **WRITES})
            thread = (await listener.until("session_configured"))["thread_id"]
            await listener.until("user_message")
            tasks.cancel_scope.cancel()
        assert (await codex.until_settled(thread))["status"] == "interrupted"
        assert (await codex("codex-reply", prompt="again", threadId=thread))["content"] == "back"
