"""Many clients and many running sessions on one server: no call waits for another."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.testing import CodexHome, ScriptedModel, say
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.rare]

SESSIONS = 50
CLIENTS = 20
SECONDS = 100


async def test_twenty_clients_poll_fifty_running_sessions_and_none_is_held_up(
    model: ScriptedModel, codex_home: CodexHome, codex_binary: Path, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("almost", gate, " done"))
    flags = {"codex_path": str(codex_binary), "max_sessions": SESSIONS}
    settings = load_settings(flags, codex_home.env, folder)
    statuses: list[str] = []
    results: list[str] = []
    session_ids: list[str] = []

    async with HelmsmanService(settings, env=codex_home.env) as helm, AsyncExitStack() as connections:
        server = build_server(helm)
        modes: list[Any] = ["legacy", "2026-07-28"] * (CLIENTS // 2)
        clients = [Caller(await connections.enter_async_context(Client(server, mode=mode))) for mode in modes]

        async def start(number: int) -> None:
            started = await clients[number % CLIENTS]("codex_start", prompt="work", workingDirectory=str(folder))
            session_ids.append(started["sessionId"])

        async def wait(codex: Caller, session_id: str) -> None:
            results.append((await codex.until_settled(session_id))["result"])

        async def poll(codex: Caller) -> None:
            for session_id in session_ids:
                statuses.append((await codex("codex_status", sessionId=session_id))["status"])

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as starting:
                for number in range(SESSIONS):
                    starting.start_soon(start, number)
            await gate.reached(SESSIONS)
            async with anyio.create_task_group() as waiting:
                for codex, session_id in zip(clients, session_ids, strict=False):
                    waiting.start_soon(wait, codex, session_id)  # each client has a call open that does not end
                async with anyio.create_task_group() as polling:
                    for codex in clients:
                        polling.start_soon(poll, codex)
                assert statuses == ["active"] * (SESSIONS * CLIENTS)
                assert results == []
                refused = await clients[0].error("codex_start", prompt="work", workingDirectory=str(folder))
                assert refused["code"] == "too_many_sessions"
                gate.release()
        assert results == ["almost done"] * CLIENTS
