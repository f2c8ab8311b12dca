"""The whole story through real clients while their hub is killed, and the next one too: no client notices."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from helmsman.agents.codex.detached.records import read_records
from helmsman.testing import run, say
from helmsman.testing.hubs import hub_pid
from mcp import Client
from tests.clients.server_process import Serving
from tests.clients.story import check, tell
from tests.clients.test_typescript_client import over_pipes
from tests.mcp.caller import Caller

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.testing import CodexHome, ScriptedModel
    from tests.clients.node import NodeClients

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no hub"),
]

PAUSE = 0.7
_HUBS = 2


@pytest.fixture
def detached(
    codex_home: CodexHome, codex_binary: Path, git_repo: Path, model: ScriptedModel, detached_engines: Path
) -> Serving:
    model.on("make it", run("touch made.txt", escalate="please"), say("It is made"))
    model.on("go on", say("As you say"))
    gate = model.gate()
    model.on("hang", say(gate, "never"))
    return Serving.on(codex_home, codex_binary, git_repo, HELMSMAN_DETACH="1", HELMSMAN_STATE_DIR=str(detached_engines))


async def kill_hubs(serving: Serving, killed: list[int]) -> None:
    """Kill two hubs, each a moment after it has come up and an engine is there. A third might end the same call as both."""
    while not read_records(serving.state_dir):
        await anyio.sleep(0.01)
    while len(killed) < _HUBS:
        pid = hub_pid(serving.state_dir)
        if pid is not None and pid not in killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
        await anyio.sleep(PAUSE)


async def told_while_hubs_die(serving: Serving, telling: Any) -> dict[str, Any]:
    killed: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill_hubs, serving, killed)
        told: dict[str, Any] = await telling()
        tasks.cancel_scope.cancel()
    assert killed
    return told


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_python_client_does_not_notice(detached: Serving, git_repo: Path, mode: Any) -> None:
    async with Client(detached.on_stdio(), mode=mode) as client:
        check(await told_while_hubs_die(detached, lambda: tell(Caller(client), git_repo)), git_repo)


@pytest.mark.parametrize(
    ("script", "era"),
    [("typescript_1.mjs", "legacy"), ("typescript_2.mjs", "legacy"), ("typescript_2.mjs", "2026-07-28")],
)
async def test_the_typescript_clients_do_not_notice(
    node_clients: NodeClients, detached: Serving, script: str, era: str
) -> None:
    told = await told_while_hubs_die(detached, lambda: over_pipes(node_clients, detached, script, era=era))
    check(told, detached.directory)
