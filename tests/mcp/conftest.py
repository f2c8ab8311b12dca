"""What the tests of the MCP server share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def asks(folder: Path) -> dict[str, Any]:
    """The arguments of codex_start for work that may have to ask."""
    return {"workingDirectory": str(folder), "sandbox": "workspace-write", "approvalPolicy": "on-request"}
