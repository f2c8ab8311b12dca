"""The whole story through the Python client: over pipes and over HTTP, in both eras of the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp import Client
from tests.clients.server_process import Serving
from tests.clients.story import check, tell
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio


ERAS: list[tuple[Any, str]] = [("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28")]


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
async def test_the_whole_story_over_pipes(serving: Serving, folder: Path, mode: Any, protocol: str) -> None:
    async with Client(serving.on_stdio(), mode=mode) as client:
        check(await tell(Caller(client), folder), folder)
        assert client.protocol_version == protocol


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
async def test_the_whole_story_over_http(serving: Serving, folder: Path, mode: Any, protocol: str) -> None:
    async with serving.over_http() as server, Client(server.transport(), mode=mode) as client:
        check(await tell(Caller(client), folder), folder)
        assert client.protocol_version == protocol
