"""A client with allowed roots does not learn where sessions outside them work, whatever id or key it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, say
from mcp import Client

pytestmark = pytest.mark.anyio


async def test_an_id_or_a_key_does_not_reveal_a_directory_outside(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, tmp_path: Path
) -> None:
    model.on("hello", say("hi"))
    secret = tmp_path / "customer-merger-plans"
    secret.mkdir()
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=secret, sandbox="read-only", idempotency_key="known-key")
        assert await session.wait(until="end", timeout=30)
    tools = ("sessions", "extras", "router", "agents")
    bounded = replace(settings, allowed_roots=(folder.resolve(),), tools=tools, expose_primitives=True)
    named = {"sessionId": session.id}
    inside = {"workingDirectory": str(folder), "prompt": "hello", "sandbox": "read-only"}
    async with HelmsmanService(bounded, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("codex_start", {**inside, "idempotencyKey": "known-key"}),
            ("codex_status", named),
            ("codex_wait", named),
            ("codex_say", {**named, "message": "hello"}),
            ("agent_say", {**named, "message": "hello", "agent": "claude"}),
            ("codex_interrupt", named),
            ("codex_fork", named),
            ("codex_diff", named),
            ("codex_apply", named),
            ("codex_discard", named),
            ("codex_rewind", named),
            ("codex_rename", {**named, "name": "x"}),
            ("codex_review", named),
            ("codex_list", {}),
            ("codex_list", {"search": "hello"}),
            ("codex_usage", {"groupBy": "directory"}),
            ("_codex_local_status", {"task_id": session.task_id}),
            ("_codex_local_results", {"task_id": session.task_id}),
            ("_codex_local_resume", {"thread_id": session.id, "task": "hello"}),
            ("codex", {"request": f"check {session.task_id}"}),
            ("codex", {"request": "list my tasks"}),
        ]
        for _ in (1, 2):  # once from the disk, and once more
            for tool, arguments in calls:
                told = await client.call_tool(tool, arguments)
                assert secret.name not in told.model_dump_json(), tool
        for uri in ("codex://sessions", f"codex://sessions/{session.id}", f"codex://tasks/{session.task_id}"):
            try:
                read = (await client.read_resource(uri)).model_dump_json()
            except Exception as error:  # noqa: BLE001 - however it is refused
                read = str(error)
            assert secret.name not in read, uri
