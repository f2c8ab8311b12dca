"""The toolset `extras`: what Codex can do beyond start and say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helmsman.mcp.toolset import Offered, Tool


def extras_tools() -> list[Offered]:
    """All of them, in the order of the documentation."""
    tools: tuple[Tool[Any], ...] = ()
    return [*tools]
