"""The MCP servers that Codex itself uses, and how they are: `mcpServerStatus/list`, as each version answers it.

To answer, Codex starts every server that is configured and waits for each up to its own time limit. Which of them have
failed is said in as many ways as there are versions: newer ones give the error, those before leave out what the server said
of itself, and the oldest show nothing but a server without tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import optional_text, rows

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One server. `answers` is None where this Codex does not say; `error` is why it does not answer, where known."""

    name: str
    answers: bool | None
    tools: int
    error: str | None = None
    needs_login: bool = False


def read_mcp_servers(answer: Mapping[str, Any]) -> tuple[McpServer, ...]:
    """The servers in an answer of Codex, in its order."""
    return tuple(server for server in map(_server, rows(answer.get("data"))) if server.name)


def _server(row: Mapping[str, Any]) -> McpServer:
    tools, error = row.get("tools"), optional_text(row.get("toolsError")) or None
    count = len(tools) if isinstance(tools, dict | list) else 0
    answers: bool | None = True
    if error is not None:
        answers = False
    elif not count and not row.get("serverInfo"):
        answers = False if "serverInfo" in row else None
    return McpServer(
        name=str(row.get("name") or ""),
        answers=answers,
        tools=count,
        error=error,
        needs_login=row.get("authStatus") == "notLoggedIn",
    )
