"""The whole story through the command line of the MCP Inspector, a new process for every call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.node import NodeClients
from tests.clients.server_process import HttpServer, Serving
from tests.clients.story import TOOLS, check, check_beginning

pytestmark = [pytest.mark.anyio, pytest.mark.long]


class Inspector:
    def __init__(self, clients: NodeClients, *target: str) -> None:
        self._clients = clients
        self._target = target

    async def __call__(self, method: str, *options: str) -> dict[str, Any]:
        launcher = self._clients.modules / "inspector" / "clients" / "launcher" / "build" / "index.js"
        arguments = ("--cli", *self._target, "--format", "json", "--method", method, *options)
        done = await self._clients.run(launcher, *arguments)
        assert done.exit_code == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)["result"]
        return result

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self("tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))
        assert not result.get("isError"), result
        structured: dict[str, Any] = result["structuredContent"]
        return structured

    async def until_settled(self, session_id: str) -> dict[str, Any]:
        while (status := await self.call("codex_wait", sessionId=session_id))["status"] == "active":
            pass
        return status


def over_http(clients: NodeClients, server: HttpServer, era: str) -> Inspector:
    header = f"Authorization: {server.headers['Authorization']}"
    return Inspector(clients, server.url, "--transport", "http", "--header", header, "--protocol-era", era)


@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.rare), "modern"])
async def test_the_whole_story(node_clients: NodeClients, serving: Serving, era: str) -> None:
    async with serving.over_http() as server:
        inspector = over_http(node_clients, server, era)
        told: dict[str, Any] = {"tools": [tool["name"] for tool in (await inspector("tools/list"))["tools"]]}
        options = {"sandbox": "workspace-write", "approvalPolicy": "on-request"}
        told["started"] = await inspector.call("codex_start", prompt="make it", **options)
        session_id = told["started"]["sessionId"]
        told["asked"] = await inspector.until_settled(session_id)
        question_id = told["asked"]["pendingQuestion"]["id"]
        answer = {"id": question_id, "answers": ["approve"]}
        told["responded"] = await inspector.call("codex_respond", sessionId=session_id, **answer)
        told["made"] = await inspector.until_settled(session_id)
        if era == "modern":  # the rest are calls like these, and every call is a process that takes half a second
            check_beginning(told, serving.directory)
            return
        told["said"] = await inspector.call("codex_say", sessionId=session_id, message="go on")
        told["continued"] = await inspector.until_settled(session_id)
        await inspector.call("codex_say", sessionId=session_id, message="hang")
        told["interrupted"] = await inspector.call("codex_interrupt", sessionId=session_id)
        told["listed"] = await inspector.call("codex_list")
    check(told, serving.directory)


async def test_the_schemas_of_the_tools_are_portable(node_clients: NodeClients, serving: Serving) -> None:
    command = serving.command()
    environment = [word for name, value in serving.env.items() for word in ("-e", f"{name}={value}")]
    inspector = Inspector(node_clients, *command, *environment)
    listed = await inspector("tools/list", "--strict")
    assert [tool["name"] for tool in listed["tools"]] == TOOLS
