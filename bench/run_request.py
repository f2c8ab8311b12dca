"""How long a client waits for the answer to a request that starts work, while other tasks are running.

A real MCP client over pipes to `helmsman serve --tools router` with a detached engine, a real Codex on the scripted model.
Twenty tasks are in the middle of their turns while request after request starts one more, which says a sentence and ends
before the next. A 99th percentile of at most 100 ms is the goal. What the same client waits for a list of the tools is shown
beside it: no answer can be faster than that, and on a busy machine it is slow as well.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from tests.clients.server_process import Serving

from bench.figures import Row, Sample
from bench.place import MEMORY, NothingToMeasure
from helmsman.agents.supervisor.records import read_records
from helmsman.testing import ScriptedModel, always, say
from helmsman.testing.binaries import codex_version, installed_codex
from helmsman.testing.home import HomeTemplates
from helmsman.testing.hubs import end_hub
from helmsman.testing.repository import make_repository
from mcp import Client

GOAL_SECONDS = 0.1
RUNNING = 20
REQUESTS = 200
_SECONDS = 300


async def measure(requests: int = REQUESTS) -> list[Row]:
    binary = installed_codex()
    if binary is None:
        raise NothingToMeasure("There is no Codex here: set HELMSMAN_TEST_CODEX or install openai-codex-cli-bin.")
    async with ScriptedModel() as model:
        gate = model.gate()
        model.on("hang", say("Almost ", gate, "done."))
        model.on("quick", always(say("One sentence, and that is all.")))
        with tempfile.TemporaryDirectory(prefix="helmsman-bench-", dir=MEMORY) as folder:
            home = HomeTemplates(Path(folder) / "template").new_home(binary, Path(folder) / "home")
            home.use_model(model.base_url, codex_version(binary))
            repository = make_repository(Path(folder) / "repository")
            limits = {"HELMSMAN_DETACH": "1", "MAX_SESSIONS": str(RUNNING + requests)}
            serving = Serving.on(home, binary, repository, **limits)
            try:
                with anyio.fail_after(_SECONDS):
                    async with Client(serving.on_stdio("--tools", "router")) as client:
                        for number in range(RUNNING):
                            await _run(client, f"hang in task {number}", repository)
                        await gate.reached(RUNNING)
                        times = [
                            await _round(client, f"add quick line {n} to a.txt", repository) for n in range(requests)
                        ]
            finally:
                end_hub(serving.state_dir)
                for record in read_records(serving.state_dir):
                    record.stop()
    ran, listed = (Sample(tuple(column)) for column in zip(*times, strict=True))
    slowest = ran.percentile(99)
    return [
        Row(
            what=f"a request in plain words that starts work, beside {RUNNING} tasks, 99th percentile",
            goal=f"at most {GOAL_SECONDS * 1000:g} ms",
            helmsman=f"{slowest * 1000:.1f} ms",
            beside=f"median {ran.median * 1000:.1f} ms of {requests}; a list of tools {listed.percentile(99) * 1000:.1f} ms",
            met=slowest <= GOAL_SECONDS,
        )
    ]


async def _round(client: Client, request: str, directory: Path) -> tuple[float, float]:
    """Return the seconds until a new task's id arrives, and until the list of tools arrives."""
    began = time.perf_counter()
    task_id = await _run(client, request, directory)
    ran = time.perf_counter()
    await client.session.list_tools()
    listed = time.perf_counter()
    await client.call_tool("codex", {"request": "wait", "hints": {"operation": "wait", "taskId": task_id}})
    return ran - began, listed - ran


async def _run(client: Client, request: str, directory: Path) -> str:
    """Start a task, and return its id."""
    arguments: dict[str, Any] = {"request": request, "context": {"working_dir": str(directory)}}
    answer = (await client.call_tool("codex", arguments)).structured_content
    assert answer is not None
    assert answer["action"] == "run", answer
    task_id: str = answer["task"]["id"]
    return task_id
