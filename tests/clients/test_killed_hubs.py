"""Tests of real clients whose hub is killed in the middle of a call.

On a pipe no client notices. Over HTTP the call fails with an error, and the next call of the same connection works.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.httpd.mcp_sessions import CUT
from helmsman.hub.control import ask_hub
from helmsman.testing import CodexHome, Gate, ScriptedModel, always, run, say
from helmsman.testing.hubs import hub_pid
from mcp import Client
from tests.clients.claude_model import claude_model
from tests.clients.node import CACHE, NodeClients
from tests.clients.proxy import with_token
from tests.clients.server_process import SECONDS, Serving
from tests.clients.story import check, tell
from tests.clients.test_codex_client import connect, delegated, delegation, on_pipe, outer_home, played
from tests.clients.test_inspector import Inspector
from tests.clients.test_typescript_client import over_http, over_pipes
from tests.mcp.caller import Caller

__all__ = ["outer_home"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no hub"),
]

PAUSE = 0.3
"""Nothing tells from outside that the hub is at work on a call."""
CLAUDE = CACHE / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude"


@dataclass
class Victim:
    """A hub that is killed while a client waits for the second turn of the story."""

    serving: Serving
    gate: Gate

    async def during(self, telling: Callable[[], Awaitable[Any]]) -> Any:
        """Story in the middle of which the hub is killed."""
        killed = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kill_in_a_call, killed)
            told = await telling()
            tasks.cancel_scope.cancel()
        assert killed.is_set()
        return told

    async def _kill_in_a_call(self, killed: anyio.Event) -> None:
        await self.gate.reached()
        with anyio.fail_after(SECONDS):
            while not (ask_hub(self.serving.state_dir, "status") or {}).get("clients"):
                await anyio.sleep(0.02)
        await anyio.sleep(PAUSE)
        await self.kill()
        killed.set()
        self.gate.release()

    async def kill(self) -> None:
        pid = hub_pid(self.serving.state_dir)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while hub_pid(self.serving.state_dir) == pid:
                await anyio.sleep(0.01)


class PatientCaller(Caller):
    """Waits again when a wait was cut."""

    cuts = 0

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        while True:
            result = await self.client.call_tool(tool, arguments)
            if not (result.is_error and CUT in str(result.content)):
                break
            self.cuts += 1
        assert not result.is_error, result
        return dict(result.structured_content or {})


@asynccontextmanager
async def served(serving: Serving, way: str) -> AsyncIterator[dict[str, Any]]:
    """The server, as Claude Code's configuration names it."""
    if way == "pipe":
        command, *arguments = serving.command()
        yield {"command": command, "args": arguments, "env": dict(serving.env)}
    else:
        async with serving.over_http() as server:
            yield {"type": "http", "url": server.url, "headers": server.headers}


@pytest.fixture
def victim(
    codex_home: CodexHome, codex_binary: Path, folder: Path, model: ScriptedModel, detached_engines: Path
) -> Victim:
    gate = model.gate()
    model.on("make it", run("touch made.txt", escalate="please"), say("It is made"))
    model.on("go on", say(gate, "As you say"))
    model.on("hang", say(model.gate(), "never"))
    state = {"HELMSMAN_DETACH": "1", "HELMSMAN_STATE_DIR": str(detached_engines)}
    return Victim(Serving.on(codex_home, codex_binary, folder, **state), gate)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_python_client_does_not_notice(victim: Victim, folder: Path, mode: Any) -> None:
    async with Client(victim.serving.on_stdio(), mode=mode) as client:
        check(await victim.during(lambda: tell(Caller(client), folder)), folder)


async def test_the_python_client_over_http_learns_that_the_call_was_cut_and_continues(
    victim: Victim, folder: Path
) -> None:
    async with victim.serving.over_http() as server, Client(server.transport(), mode="legacy") as client:
        caller = PatientCaller(client)
        check(await victim.during(lambda: tell(caller, folder)), folder)
        assert caller.cuts == 1


async def test_a_client_of_2026_07_28_over_http_loses_the_call_and_nothing_else(victim: Victim) -> None:
    async with victim.serving.over_http() as server, Client(server.transport(), mode="2026-07-28") as client:
        session = {"sessionId": (await Caller(client)("codex_start", prompt="go on"))["sessionId"]}

        async def wait() -> None:
            cut = await client.call_tool("codex_wait", session)
            assert cut.is_error
            assert CUT in str(cut.content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await victim.gate.reached()
            await anyio.sleep(2)  # by then it has been told that an answer is to come
            await victim.kill()
        victim.gate.release()
        waited = await Caller(client)("codex_wait", **session)
        assert (waited["status"], waited["result"]) == ("done", "As you say")


@pytest.mark.parametrize(
    ("script", "era"),
    [("typescript_1.mjs", "legacy"), ("typescript_2.mjs", "legacy"), ("typescript_2.mjs", "2026-07-28")],
)
async def test_the_typescript_clients_do_not_notice(
    node_clients: NodeClients, victim: Victim, script: str, era: str
) -> None:
    told = await victim.during(lambda: over_pipes(node_clients, victim.serving, script, era=era))
    check(told, victim.serving.directory)
    assert told["cuts"] == 0


@pytest.mark.parametrize("script", ["typescript_1.mjs", "typescript_2.mjs"])
async def test_the_typescript_clients_over_http_learn_that_the_call_was_cut_and_continue(
    node_clients: NodeClients, victim: Victim, script: str
) -> None:
    told = await victim.during(lambda: over_http(node_clients, victim.serving, script, era="legacy"))
    check(told, victim.serving.directory)
    assert told["cuts"] == 1


@pytest.mark.rare
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_does_not_notice(node_clients: NodeClients, victim: Victim, era: str) -> None:
    async with Client(victim.serving.on_stdio()) as client:
        started = await Caller(client)("codex_start", prompt="go on")
    environment = [word for name, value in victim.serving.env.items() for word in ("-e", f"{name}={value}")]
    inspector = Inspector(node_clients, *victim.serving.command(), *environment, "--protocol-era", era)
    waited = await victim.during(lambda: inspector.call("codex_wait", sessionId=started["sessionId"]))
    assert (waited["status"], waited["result"]) == ("done", "As you say")


@pytest.mark.rare
async def test_codex_as_a_client_does_not_notice(
    victim: Victim, model: ScriptedModel, outer_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    told: dict[str, Any] = {}
    model.on("delegate", always(played(delegation(told, victim.serving.directory, asks_person=False))))
    connect(outer_home, **on_pipe(victim.serving))
    assert await victim.during(lambda: delegated(outer_home, codex_binary, tmp_path)) == "All is told"
    check(told, victim.serving.directory)


@pytest.mark.rare
async def test_codex_as_a_client_over_http_learns_that_the_call_was_cut_and_continues(
    victim: Victim, model: ScriptedModel, outer_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    told: dict[str, Any] = {}
    cuts: list[str] = []
    model.on("delegate", always(played(delegation(told, victim.serving.directory, asks_person=False), cuts)))
    async with victim.serving.over_http() as server:
        connect(outer_home, url=server.url, bearer_token_env_var="HELMSMAN_TOKEN")
        telling = partial(delegated, outer_home, codex_binary, tmp_path, HELMSMAN_TOKEN=server.token)
        assert await victim.during(telling) == "All is told"
    check(told, victim.serving.directory)
    assert len(cuts) == 1


@pytest.mark.skipif(not CLAUDE.exists(), reason="Claude Code is not there: run scripts/fetch_clients.py")
@pytest.mark.parametrize("way", ["pipe", "http"])
async def test_claude_code_continues(victim: Victim, codex_home: CodexHome, tmp_path: Path, way: str) -> None:
    heard: list[dict[str, Any]] = []
    cuts: list[str] = []

    def story() -> Generator[tuple[str, dict[str, Any]], str, str]:
        heard.append(json.loads((yield "mcp__helmsman__codex_start", {"prompt": "go on"})))
        waited = yield "mcp__helmsman__codex_wait", {"sessionId": heard[0]["sessionId"]}
        while CUT in waited:
            cuts.append(waited)
            waited = yield "mcp__helmsman__codex_wait", {"sessionId": heard[0]["sessionId"]}
        heard.append(json.loads(waited))
        return "All is told"

    configured = tmp_path / "mcp.json"
    tools = ["--strict-mcp-config", "--mcp-config", str(configured), "--allowedTools", "mcp__helmsman"]

    async with claude_model(story()) as address, served(victim.serving, way) as server:
        configured.write_text(json.dumps({"mcpServers": {"helmsman": server}}))
        env = {
            **codex_home.env,
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
        }

        async def delegate() -> Any:
            with anyio.fail_after(SECONDS):
                return await anyio.run_process(
                    [CLAUDE, "-p", "delegate", "--bare", "--output-format", "json", *tools],
                    env=env,
                    cwd=victim.serving.directory,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )

        done = await victim.during(delegate)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["result"] == "All is told"
    assert (heard[1]["status"], heard[1].get("result")) == ("done", "As you say"), heard
    assert len(cuts) <= (way == "http"), "Claude Code may repeat the call by itself"


@pytest.mark.rare
@pytest.mark.parametrize(("version", "scenario"), [("2025-11-25", "server-initialize"), ("2026-07-28", "tools-list")])
async def test_the_conformance_suite_passes_after_the_hub_was_killed(
    node_clients: NodeClients, victim: Victim, version: str, scenario: str
) -> None:
    suite = node_clients.modules / "conformance" / "dist" / "index.js"
    options = ("--scenario", scenario, "--spec-version", version)
    async with victim.serving.over_http() as server, with_token(server) as url:
        for _ in range(2):
            done = await node_clients.run(suite, "server", "--url", url, *options)
            assert done.exit_code == 0, done.stdout[-5000:] + done.stderr
            await victim.kill()
