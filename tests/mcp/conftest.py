"""What the tests of the MCP server share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def asks(folder: Path) -> dict[str, Any]:
    """The arguments of codex_start for work that may have to ask."""
    return {"workingDirectory": str(folder), "sandbox": "workspace-write", "approvalPolicy": "on-request"}
