"""A client that looks at structured content, as agents do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types

if TYPE_CHECKING:
    from mcp import Client


class Caller:
    """A client that looks at structured content, as agents do."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        with anyio.fail_after(60):
            result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, types.CallToolResult)
        assert not result.is_error, result.structured_content
        assert result.structured_content is not None
        assert isinstance(result.content[0], types.TextContent)
        structured: dict[str, Any] = result.structured_content
        return structured

    async def error(self, tool: str, **arguments: Any) -> dict[str, Any]:
        with anyio.fail_after(60):
            result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, types.CallToolResult)
        assert result.is_error
        assert result.structured_content is not None
        structured: dict[str, Any] = result.structured_content
        return structured

    async def until_settled(self, session_id: str) -> dict[str, Any]:
        while True:
            status = await self("codex_wait", sessionId=session_id)
            if status["status"] != "active":
                return status
