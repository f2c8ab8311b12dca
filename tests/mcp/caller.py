"""A client that looks at structured content, as agents do."""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as types

from helmsman.mcp.toolset import ERROR_META
from mcp import Client


class Caller:
    """A client that looks at structured content, as agents do."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        with anyio.fail_after(60):
            result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, types.CallToolResult)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        assert isinstance(result.content[0], types.TextContent)
        structured: dict[str, Any] = result.structured_content
        return structured

    async def error(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that fails; the error as data. What the router understood and could not do is an answer of its own."""
        with anyio.fail_after(60):
            result = await self.client.call_tool(tool, arguments)
        return error_of(result)

    async def until_settled(self, session_id: str) -> dict[str, Any]:
        while True:
            status = await self("codex_wait", sessionId=session_id)
            if status["status"] != "active":
                return status


def error_of(result: object) -> dict[str, Any]:
    """The error that a failed result carries."""
    assert isinstance(result, types.CallToolResult)
    assert result.is_error
    if result.structured_content is not None:
        answer: dict[str, Any] = result.structured_content
        return answer
    told: dict[str, Any] = (result.meta or {})[ERROR_META]
    assert isinstance(result.content[0], types.TextContent)
    assert result.content[0].text.startswith(f"{told['code']}: ")
    return told
