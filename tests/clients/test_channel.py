"""The real Claude Code with a channel server: it falls back to the protocol that has channels, and uses the tools there.

Whether Claude Code takes what is pushed depends on a switch of the user's account, so nothing is pushed to it here.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import anyio
import pytest
from mcp_types import PROTOCOL_VERSION_META_KEY

from tests.claude import claude_binary
from tests.clients.claude_model import Story, claude_model
from tests.clients.server_process import Serving

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.testing import CodexHome

pytestmark = pytest.mark.anyio
SECONDS = 90


async def test_claude_code_falls_back_to_the_handshake_that_a_channel_needs_and_calls_tools(
    codex_home: CodexHome, codex_binary: Path, folder: Path, tmp_path: Path
) -> None:
    program = claude_binary()

    def story() -> Story:
        yield "mcp__helmsman__codex_list", {}
        return "done"

    serving = Serving.on(codex_home, codex_binary, folder, HELMSMAN_CHANNEL="1")
    said, home = tmp_path / "said.jsonl", tmp_path / "claude-home"
    home.mkdir()
    listening = ["-c", 'tee "$0" | "$@"', str(said), *serving.command()]
    servers = {"helmsman": {"command": "/bin/sh", "args": listening, "env": dict(serving.env)}}
    async with claude_model(story()) as address:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANTHROPIC_API_KEY": "dummy",
            "ANTHROPIC_BASE_URL": address,
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
        }
        flags = ["-p", "go", "--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": servers})]
        flags += ["--allowedTools", "mcp__helmsman__codex_list"]
        flags += ["--dangerously-load-development-channels", "server:helmsman"]
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                [str(program), *flags], env=env, cwd=folder, stdin=subprocess.DEVNULL, check=False
            )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in said.read_text(encoding="utf-8").splitlines()]
    (call,) = (line for line in lines if line.get("method") == "tools/call")
    assert PROTOCOL_VERSION_META_KEY not in call["params"].get("_meta", {}), "that protocol has no channels"
    assert "initialize" in {line.get("method") for line in lines}
