"""`helmsman acp` under acpx, a command-line client of the Agent Client Protocol, on a real Codex."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests import warm
from tests.clients.node import CACHE, NodeClients, node_binary, why_not

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.mark.parametrize(
    ("switch", "is_made"), [pytest.param("--approve-all", True, marks=pytest.mark.rare), ("--deny-all", False)]
)
async def test_acpx_prompts_and_decides_on_the_command(
    switch: str, is_made: bool, codex_home: CodexHome, codex_binary: Path, folder: Path, model: ScriptedModel
) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    node = node_binary()
    assert node is not None
    model.on("make it", run("touch made.txt", escalate="please"), say("It is over"))
    env = {**codex_home.env, "CODEX_CLI_PATH": str(codex_binary)}
    client = NodeClients(node, env, folder)
    agent = shlex.join(warm.command("acp"))
    script = CACHE / "node_modules" / "acpx" / "dist" / "cli.js"
    ended = await client.run(script, "--agent", agent, switch, "--format", "json", "exec", "make it")
    messages: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]
    stops = [message["result"]["stopReason"] for message in messages if "stopReason" in message.get("result", {})]
    assert stops == ["end_turn"], ended
    assert (folder / "made.txt").exists() == is_made
