"""Tests that programs of our agents cannot connect to the hub: a configured Helmsman, and any command."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.supervisor.records import read_records
from helmsman.hub.control import ask_hub
from helmsman.testing import CodexHome, ScriptedModel, run, say
from mcp import Client
from tests.claude import claude_binary, claude_environment
from tests.hub.conftest import Place
from tests.hub.test_admission import PROBE, written
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")]

SECONDS = 60


async def test_a_codex_that_is_configured_with_helmsman_gets_its_own_service(
    place: Place, model: ScriptedModel, codex_home: CodexHome, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    serve = f"exec {shlex.quote(sys.executable)} -m helmsman serve 2> {shlex.quote(str(said))}"
    codex_home.configure(
        mcp_servers={
            "steering": {
                "command": "/bin/sh",
                "args": ["-c", serve],
                "env": {name: place.env[name] for name in ("HELMSMAN_STATE_DIR", "HELMSMAN_DETACH", "HOME", "PATH")},
                "startup_timeout_sec": 30,
            }
        }
    )
    model.otherwise(say("done"))
    async with Client(place.on_stdio()) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="hello")
        assert (await codex.until_settled(started["sessionId"]))["status"] == "done"
        assert "without a hub: it was started by an agent of Helmsman's own" in await written(said)
        await place.kill_hub()
        await codex("codex_list")
        clients = (ask_hub(place.state_dir, "status") or {})["clients"]
        assert [client["kind"] for client in clients] == ["mcp"]


@pytest.mark.rare
async def test_a_claude_code_that_is_configured_with_helmsman_gets_its_own_service(
    place: Place, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    home, said = tmp_path / "claude", git_repo / "said"  # the only directory in which its processes may write
    env = {**place.env, **claude_environment(model, home)}
    serve = f"exec {shlex.quote(sys.executable)} -m helmsman serve 2> {shlex.quote(str(said))}"
    own = {name: place.env[name] for name in ("HELMSMAN_STATE_DIR", "HELMSMAN_DETACH", "HOME", "PATH")}
    servers = {"steering": {"type": "stdio", "command": "/bin/sh", "args": ["-c", serve], "env": own}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    model.otherwise(say("done"))
    settings = load_settings({"claude_path": str(claude_binary())}, env, tmp_path)
    async with Helmsman(settings, env=env) as helm:
        session = await helm.start("hello", cwd=git_repo, agent="claude", sandbox="workspace-write")
        with anyio.fail_after(SECONDS):
            await session.wait(until="end")
        assert session.status == "done"
        assert "without a hub" in await written(said)
        clients = (ask_hub(place.state_dir, "status") or {})["clients"]
        assert [client["kind"] for client in clients] == ["program"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["double-forked", pytest.param("supervisor-killed", marks=pytest.mark.rare)])
@pytest.mark.parametrize("sandbox", ["workspace-write", pytest.param("danger-full-access", marks=pytest.mark.rare)])
async def test_a_command_of_claude_code_is_refused(
    place: Place, model: ScriptedModel, git_repo: Path, tmp_path: Path, how: str, sandbox: str
) -> None:
    env = {**place.env, **claude_environment(model, tmp_path / "claude")}
    settings = load_settings({"claude_path": str(claude_binary())}, env, tmp_path)
    (git_repo / "probe.py").write_text(PROBE)
    probe = shlex.join([sys.executable, "probe.py", str(place.state_dir / "hub.sock"), str(git_repo)])
    helmsman = f"{shlex.quote(sys.executable)} -m helmsman"
    commands = (
        f"{helmsman} list --json",
        f"{helmsman} respond $(cat session) q_1 approve",
        f"{helmsman} interrupt $(cat session)",
    )
    tried = "; ".join(f"({command}) > said.{number} 2>&1" for number, command in enumerate(commands))
    model.on("probe", run(f"{probe}; {tried}; touch tried; sleep 100"), say("done"))
    options: Any = {"agent": "claude", "sandbox": sandbox, "approval_policy": "untrusted"}
    async with Helmsman(settings, env=env) as helm:
        session = await helm.start("probe", cwd=git_repo, **options)
        (git_repo / "session").write_text(session.id, encoding="utf-8")
        with anyio.fail_after(SECONDS):
            while not session.questions:
                await session.feed.changed()
        await session.respond(session.questions[0].id, "approve")
        await written(git_repo / "ready")
        if how == "supervisor-killed":
            (record,) = read_records(place.state_dir)
            os.kill(record.supervisor.pid, signal.SIGKILL)
        else:
            await written(git_repo / "tried")
            said = [(git_repo / f"said.{number}").read_text() for number in range(len(commands))]
            assert not any("Traceback" in words for words in said), said
            assert session.state.is_running, "nobody has stopped it"
            if sandbox == "danger-full-access":
                assert all("This process is not served" in words for words in said[1:]), said
        (git_repo / "go").touch()
        # A sandboxed agent does not even see the socket.
        hidden = "[Errno 2] No such file or directory"
        answer = await written(git_repo / "answer")
        assert answer == hidden if sandbox == "workspace-write" else '"code":"not_served"' in answer
        await helm.interrupt(session.id)
