"""Many tools are listed in part; the rest is found by a search, and is callable by both eras of clients."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.subscriptions import ToolsListChanged

from helmsman import load_settings
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from mcp import Client
from tests.mcp.test_token_limits import listed_tokens

pytestmark = pytest.mark.anyio


@pytest.fixture
async def many(tmp_path: Path) -> AsyncIterator[HelmsmanService]:
    """A server's Helmsman with more tools than are listed."""
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state"), "PATH": str(tmp_path)}
    flags = {"tools": "sessions,agents,extras,capabilities"}
    settings = load_settings(flags, env, tmp_path, user_file=tmp_path / "none.toml")
    async with HelmsmanService(settings, env=env) as helm:
        yield helm


def text_of(result: types.CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, types.TextContent))


async def names(client: Client) -> set[str]:
    tools = (await client.list_tools()).tools
    assert listed_tokens(tools) < 3_000
    return {tool.name for tool in tools}


async def test_a_tool_that_is_found_is_announced_listed_and_called_by_its_name(many: HelmsmanService) -> None:
    changed = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with Client(build_server(many), mode="legacy", message_handler=hear) as client:
        before = await names(client)
        assert "codex_rewind" not in before
        assert "codex_start" in before
        found = text_of(
            await client.call_tool("helmsman_find", {"query": "take files back to an earlier turn: rewind"})
        )
        assert '"name": "codex_rewind"' in found
        with anyio.fail_after(20):
            await changed.wait()
        assert "codex_rewind" in await names(client)
        answer = await client.call_tool("codex_rewind", {"sessionId": "none", "to": 1})
        assert text_of(answer).startswith("session_not_found")


async def test_a_listener_of_2026_hears_that_the_list_has_changed(many: HelmsmanService) -> None:
    async with Client(build_server(many)) as client:
        with anyio.fail_after(20):
            async with client.listen(tools_list_changed=True) as events:
                await client.call_tool("helmsman_find", {"query": "review"})
                async for event in events:
                    assert isinstance(event, ToolsListChanged)
                    break


async def test_a_client_that_does_not_list_again_calls_through_another_tool(many: HelmsmanService) -> None:
    async with Client(build_server(many)) as client:
        arguments = {"sessionId": "none", "to": 1}
        direct = await client.call_tool("codex_rewind", arguments)
        answer = await client.call_tool("helmsman_call", {"tool": "codex_rewind", "arguments": arguments})
        assert (answer.is_error, text_of(answer)) == (True, text_of(direct))
        wrongs: list[dict[str, Any]] = [
            {},
            {"tool": "helmsman_call", "arguments": {}},
            {"tool": "codex_list", "arguments": [1]},
        ]
        for wrong in wrongs:
            assert text_of(await client.call_tool("helmsman_call", wrong)).startswith("invalid_input")
        told = text_of(await client.call_tool("helmsman_find", {"query": "zebra"}))
        assert "codex_fork" in told
