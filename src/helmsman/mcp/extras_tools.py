"""The toolset `extras`: what Codex can do beyond start and say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helmsman.mcp.toolset import Offered, Tool


def extras_tools() -> list[Offered]:
    """All of them, in the order of the documentation."""
    from helmsman.mcp.change_tools import CHANGE_TOOLS
    from helmsman.mcp.usage_tools import USAGE_TOOLS

    tools: tuple[Tool[Any], ...] = (*CHANGE_TOOLS, *USAGE_TOOLS)
    return [*tools]
