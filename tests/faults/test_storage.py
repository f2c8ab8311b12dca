"""No room, or no right to write, where Helmsman keeps its state: work goes on, or is refused with what to do.

A real file system is full or read-only: a tiny one, mounted over the state directory for the server alone, in a
namespace of its own. Where the system does not allow that, these tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.clients.server_process import ServerProcess, Serving
from tests.mcp.test_stdio import Pipe

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'
READ_ONLY = "ro,mode=700"
FULL = "size=4k,nr_inodes=1,mode=700"
SMALL = "size=512k,mode=700"


@cache
def can_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        [*NAMESPACE, "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True, timeout=30, check=False
    )
    return tried.returncode == 0


pytestmark = [
    pytest.mark.usefixtures("snapshots"),
    pytest.mark.rare,
    pytest.mark.anyio,
    pytest.mark.skipif(not can_mount(), reason="This system does not let us mount a file system of our own."),
]


class ServingOn(Serving):
    """Run a server whose state directory is a separate file system, mounted with these options."""

    def command(self, *arguments: str) -> list[str]:
        mount = ["sh", "-c", MOUNT, "sh", self.env["MOUNT_OPTIONS"], str(self.state_dir)]
        return [*NAMESPACE, *mount, sys.executable, "-m", "helmsman", "serve", *arguments]


@pytest.fixture
def home(codex_home: CodexHome, detached_engines: Path) -> CodexHome:
    detached_engines.mkdir(mode=0o700)
    return codex_home


@pytest.fixture(params=[READ_ONLY, FULL], ids=["read-only", "full"])
def broken(request: pytest.FixtureRequest, home: CodexHome, codex_binary: Path, git_repo: Path) -> ServingOn:
    return ServingOn.on(home, codex_binary, git_repo, MOUNT_OPTIONS=request.param)


def fill_up(server: ServerProcess, serving: Serving) -> None:
    """Write into the server's file system until it is full."""
    inside = serving.state_dir.relative_to(serving.state_dir.anchor)
    with (Path(f"/proc/{server.process.pid}/root") / inside / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            return


async def ask_and_answer(pipe: Pipe, answer: str) -> dict[str, Any]:
    asks = {"prompt": "touch", "sandbox": "workspace-write", "approvalPolicy": "on-request"}
    session_id = (await pipe.call("codex_start", **asks))["sessionId"]
    status = await pipe.call("codex_wait", sessionId=session_id)
    question = status["pendingQuestion"]
    await pipe.call("codex_respond", sessionId=session_id, id=question["id"], answers=[answer])
    return await pipe.call("codex_wait", sessionId=session_id)


async def test_work_continues_without_a_place_for_state(broken: ServingOn, model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    async with broken.started(env={"LOG_LEVEL": "warning"}) as server:
        pipe = Pipe(server)
        await pipe.initialize()
        for _ in range(2):
            assert (await ask_and_answer(pipe, "deny"))["result"] == "made"
        assert len((await pipe.call("codex_list"))["sessions"]) == 2
        await pipe.close()
        await pipe.rest()
        assert await server.ended() == 0
    log = "".join(server.errors)
    assert "is not registered" in log
    assert "the audit log" in log
    assert "Traceback" not in log


async def test_without_a_place_for_a_hub_the_engine_is_the_servers_own(broken: ServingOn, model: ScriptedModel) -> None:
    model.on("work", say("done"))
    async with broken.started(env={"HELMSMAN_DETACH": "1"}) as server:
        pipe = Pipe(server)
        await pipe.initialize()
        session_id = (await pipe.call("codex_start", prompt="work"))["sessionId"]
        assert (await pipe.call("codex_wait", sessionId=session_id))["result"] == "done"
        await pipe.close()
        await pipe.rest()
        assert await server.ended() == 0
    assert "Traceback" not in "".join(server.errors)


async def test_a_rule_that_cannot_be_kept_is_refused_and_the_question_stays_open(
    broken: ServingOn, model: ScriptedModel
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    async with broken.started() as server:
        pipe = Pipe(server)
        await pipe.initialize()
        asks = {"prompt": "touch", "sandbox": "workspace-write", "approvalPolicy": "on-request"}
        session_id = (await pipe.call("codex_start", **asks))["sessionId"]
        question = (await pipe.call("codex_wait", sessionId=session_id))["pendingQuestion"]
        reply = {"sessionId": session_id, "id": question["id"]}
        always = {"name": "codex_respond", "arguments": {**reply, "answers": ["approve_always"]}}
        refused = await pipe.ask("tools/call", always)
        text = refused["content"][0]["text"]
        assert (refused["isError"], text.partition(":")[0], "Make room there" in text) == (
            True,
            "invalid_setting",
            True,
        )
        assert (await pipe.call("codex_status", sessionId=session_id))["pendingQuestion"]["id"] == question["id"]
        await pipe.call("codex_respond", **reply, answers=["approve"])
        assert (await pipe.call("codex_wait", sessionId=session_id))["result"] == "made"
        await pipe.close()
        await pipe.rest()
        await server.ended()
    assert "Traceback" not in "".join(server.errors)


async def test_an_http_server_without_a_place_for_its_token_does_not_start(broken: ServingOn) -> None:
    async with broken.started("--transport", "http") as server:
        assert await server.ended() != 0
    log = "".join(server.errors)
    assert "The token for clients cannot be kept" in log
    assert "Traceback" not in log


async def test_a_disk_that_fills_up_in_a_turn_stops_no_work(
    home: CodexHome, codex_binary: Path, git_repo: Path, model: ScriptedModel
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    serving = ServingOn.on(home, codex_binary, git_repo, MOUNT_OPTIONS=SMALL)
    async with serving.started() as server:
        pipe = Pipe(server)
        await pipe.initialize()
        assert (await ask_and_answer(pipe, "approve"))["result"] == "made"
        fill_up(server, serving)
        for _ in range(2):
            assert (await ask_and_answer(pipe, "approve"))["result"] == "made"
        await pipe.close()
        await pipe.rest()
        assert await server.ended() == 0
    assert "Traceback" not in "".join(server.errors)
