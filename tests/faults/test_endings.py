"""`helmsman serve` is ended by a signal or by its client, at any stage: it goes quietly, and leaves the truth behind.

A bound engine goes with it, and so does all that ran in it; where its client ended it, it says what became of the work, and
nothing else. With detached engines it is a pipe to the hub, which holds nothing: it just leaves, a signal ends it as it ends
any program, and all that runs goes on, also when the hub is then killed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import pytest

from helmsman.testing import always, hang, run, say
from helmsman.testing.hubs import end_hub
from tests.clients.server_process import ServerProcess, Serving
from tests.faults.scene import SECONDS, Scene, engines, needs_proc
from tests.mcp.test_stdio import Pipe

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    needs_proc,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by"),
]


async def not_yet_initialized(pipe: Pipe) -> None:
    await pipe.send("ping", id=0)
    await pipe.receive()


async def idle(pipe: Pipe) -> None:
    await pipe.initialize()


async def starting(pipe: Pipe) -> None:
    await pipe.initialize()
    await pipe.send("tools/call", {"name": "codex_start", "arguments": {"prompt": "work"}}, id=99)


async def in_a_turn(pipe: Pipe) -> None:
    await pipe.initialize()
    session_id = (await pipe.call("codex_start", prompt="work"))["sessionId"]
    with anyio.fail_after(SECONDS):
        while not (await pipe.call("codex_status", sessionId=session_id))["itemEvents"]:
            await pipe.call("codex_wait", sessionId=session_id, until="change", timeoutSec=1)
    await pipe.send("tools/call", {"name": "codex_wait", "arguments": {"sessionId": session_id}}, id=99)


async def at_a_question(pipe: Pipe) -> None:
    await pipe.initialize()
    asks = {"prompt": "touch", "sandbox": "workspace-write", "approvalPolicy": "on-request"}
    session_id = (await pipe.call("codex_start", **asks))["sessionId"]
    assert (await pipe.call("codex_wait", sessionId=session_id))["status"] == "awaiting_approval"


@dataclass(frozen=True)
class Ending:
    """A way to end a server, and the exit code it has then."""

    number: signal.Signals | None
    exit_code: int

    async def end(self, server: ServerProcess, pipe: Pipe) -> int:
        if self.number is not None:
            return await server.end_by(self.number)
        await pipe.close()
        return await server.ended()


ENDINGS = (
    Ending(signal.SIGTERM, 143),
    Ending(signal.SIGINT, 130),
    Ending(signal.SIGHUP, 143),
    Ending(None, 0),
)


@pytest.mark.parametrize("stage", [not_yet_initialized, idle, starting, in_a_turn, at_a_question])
async def test_a_server_that_is_ended_leaves_the_truth_behind(
    scene: Scene, serving: Serving, stage: Callable[[Pipe], Awaitable[None]]
) -> None:
    scene.model.on("work", run("sleep 1000"), always(hang()))
    scene.model.on("touch", always(run("touch made.txt", escalate="please")))

    async def serve_and_end(ending: Ending) -> None:
        async with serving.started(env={"HELMSMAN_DETACH": str(int(scene.settings.detach))}) as server:
            pipe = Pipe(server)
            await stage(pipe)
            code = await ending.end(server, pipe)
        if scene.settings.detach:
            assert code == (0 if ending.number is None else -ending.number)
            assert [line.split()[:2] for line in server.errors] == [["helmsman:", "hub"]]
        else:
            assert code == ending.exit_code
            assert all(ending.number is None and line.startswith("T-local-") for line in server.errors), server.errors

    async with anyio.create_task_group() as tasks:
        for ending in ENDINGS:
            tasks.start_soon(serve_and_end, ending)
    if not scene.settings.detach:
        assert engines() == []
    end_hub(scene.settings.state_dir)
    await all_is_true(scene)


async def all_is_true(scene: Scene) -> None:
    """Nothing is called running that does not run; what runs can be found, followed and stopped."""
    async with scene.helmsman() as helm:
        found, _ = await helm.tasks.list()
        for known in found:
            task = known
            with anyio.fail_after(SECONDS):
                while task.is_running and task.session_id is None and not task.is_waiting:  # it may be starting
                    await anyio.sleep(0.2)
                    task = await helm.tasks.get(task.id)
            if task.is_waiting:
                assert scene.settings.detach, "what was acknowledged waits for the next hub"
                continue
            if scene.settings.detach and task.is_running:
                session = await helm.session(task.session_id or "")
                assert session.state.is_running
                with anyio.fail_after(SECONDS):  # the agent may be asking its question again just now
                    while bool(session.questions) != (await helm.tasks.get(task.id)).input_required:
                        await anyio.sleep(0.1)
                stopped, _ = await helm.tasks.cancel(task)
                assert stopped.status == "canceled"
            else:
                # The state of one that a hub was just starting is unknown.
                assert task.has_ended or (scene.settings.detach and task.status == "unknown"), task
        scene.model.on("Still there?", say("Yes."))
        await scene.next_session_works(helm)
