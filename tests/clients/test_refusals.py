"""Errors reach the callers of clients that check every result against the schema of its tool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.node import CACHE, NodeClients
from tests.clients.server_process import Serving

pytestmark = [pytest.mark.anyio, pytest.mark.long]

SDKS = ["@modelcontextprotocol/sdk", "sdk-1.22.0", "sdk-1.18.2"]
TOOLSETS = "sessions,agents,extras,capabilities,router"
NOBODY = "00000000-0000-0000-0000-000000000000"
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "session_not_found: ": ("codex_status", {"sessionId": NOBODY}),
    "invalid_input: prompt is missing.": ("codex_start", {"workingDirectory": "."}),
    "invalid_input: There is no argument sesionId.": ("agent_wait", {"sesionId": NOBODY}),
    "task_not_found: ": ("debug", {"taskId": "T-local-nothing"}),
    "invalid_input: ": ("codex_usage", {"groupBy": "moon"}),
    "task_not_found: There is no task T-local-nothing.": ("codex", {"request": "cancel T-local-nothing"}),
    "invalid_input: There is no argument": ("codex", {"request": "check", "hint": {}}),
}
"""Calls that fail, by the beginning of what the caller is to read."""


def assert_read(answers: list[dict[str, Any]]) -> None:
    for beginning, answer in zip(REFUSED, answers, strict=True):
        assert answer.get("isError") is True, answer
        assert answer["text"].startswith(beginning), answer


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_list_of_every_toolset_is_read_and_every_error_too(
    node_clients: NodeClients, serving: Serving, sdk: str
) -> None:
    if not (CACHE / "node_modules" / sdk).exists():
        pytest.skip(f"{sdk} is not there: run scripts/fetch_clients.py, which needs the npm registry.")
    command, *arguments = serving.command("--tools", TOOLSETS, "--expose-primitives")
    server = {"command": command, "args": arguments, "env": dict(serving.env), "cwd": str(serving.directory)}
    told = await node_clients.tell("refusals.mjs", sdk=sdk, server=server, calls=list(REFUSED.values()))
    assert {"codex_start", "helmsman_find", "helmsman_call"} <= set(told["tools"])
    assert_read(told["answers"])


async def test_the_inspector_shows_the_error(node_clients: NodeClients, serving: Serving) -> None:
    environment = [word for name, value in serving.env.items() for word in ("-e", f"{name}={value}")]
    launcher = node_clients.modules / "inspector" / "clients" / "launcher" / "build" / "index.js"
    called = (
        "--method",
        "tools/call",
        "--tool-name",
        "codex_status",
        "--tool-args-json",
        json.dumps({"sessionId": NOBODY}),
    )
    done = await node_clients.run(launcher, "--cli", *serving.command(), *environment, "--format", "json", *called)
    assert f"session_not_found: There is no session {NOBODY}" in done.stdout + done.stderr, done
