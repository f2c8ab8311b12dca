"""An MCP server on a real Codex, and clients of both eras connected to it in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helmsman import Helmsman
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from helmsman.settings import Settings
    from helmsman.testing import CodexHome


@pytest.fixture
def settings(codex_binary: Path, codex_home: CodexHome, tmp_path: Path) -> Settings:
    return load_settings({"codex_path": str(codex_binary)}, codex_home.env, tmp_path)


@pytest.fixture
async def helm(settings: Settings, codex_home: CodexHome) -> AsyncIterator[Helmsman]:
    async with Helmsman(settings, env=codex_home.env) as helm:
        yield helm


@pytest.fixture
def asks(git_repo: Path) -> dict[str, Any]:
    """The arguments of codex_start for work that may have to ask."""
    return {"workingDirectory": str(git_repo), "sandbox": "workspace-write", "approvalPolicy": "on-request"}
