"""The toolset `extras`: what Codex can do beyond start and say."""

from __future__ import annotations

from typing import Final

from helmsman.mcp import (
    account_tools,
    change_tools,
    plan_tools,
    review_tools,
    rewind_tools,
    schedule_tools,
    upkeep_tools,
    usage_tools,
)
from helmsman.mcp.toolset import tools_in

_MODULES: Final = (
    upkeep_tools,
    account_tools,
    review_tools,
    plan_tools,
    change_tools,
    rewind_tools,
    usage_tools,
    schedule_tools,
)

EXTRAS_TOOLS: Final = tuple(tool for module in _MODULES for tool in tools_in(vars(module)))
"""All of them, in the order of the documentation."""
