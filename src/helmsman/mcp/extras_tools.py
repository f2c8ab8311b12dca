"""The toolset `extras`: what Codex can do beyond start and say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helmsman.mcp.toolset import Offered, Tool


def extras_tools() -> list[Offered]:
    """All of them, in the order of the documentation."""
    from helmsman.mcp.account_tools import ACCOUNT_TOOLS
    from helmsman.mcp.change_tools import CHANGE_TOOLS
    from helmsman.mcp.plan_tools import PLAN_TOOLS
    from helmsman.mcp.review_tools import REVIEW_TOOLS
    from helmsman.mcp.upkeep_tools import UPKEEP_TOOLS
    from helmsman.mcp.usage_tools import USAGE_TOOLS

    tools: tuple[Tool[Any], ...] = (
        *UPKEEP_TOOLS,
        *ACCOUNT_TOOLS,
        *REVIEW_TOOLS,
        *PLAN_TOOLS,
        *CHANGE_TOOLS,
        *USAGE_TOOLS,
    )
    return [*tools]
