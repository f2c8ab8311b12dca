"""A place for detached engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.agents.codex.binary import CodexBinary, find_codex
from helmsman.testing import CodexHome
from tests.live.detached import Place


@pytest.fixture
async def binary(codex_binary: Path, codex_home: CodexHome) -> CodexBinary:
    return await find_codex(explicit=codex_binary, env=codex_home.env)


@pytest.fixture
def place(binary: CodexBinary, codex_home: CodexHome, detached_engines: Path, git_repo: Path) -> Place:
    return Place(binary, codex_home, detached_engines, git_repo)
