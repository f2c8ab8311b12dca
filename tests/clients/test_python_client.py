"""The whole story through the Python client: over pipes and over HTTP, in both eras of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcp import Client
from tests.clients.story import tell
from tests.mcp.caller import Caller

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.server_process import Serving

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["legacy", "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_the_whole_story_over_pipes(serving: Serving, git_repo: Path, mode: Any) -> None:
    async with Client(serving.on_stdio(), mode=mode) as client:
        await tell(Caller(client), git_repo)


async def test_the_whole_story_over_http(serving: Serving, git_repo: Path, mode: Any) -> None:
    async with serving.over_http() as server, Client(server.transport(), mode=mode) as client:
        await tell(Caller(client), git_repo)
