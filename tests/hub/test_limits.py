"""A usage limit reached at night, with a real Codex: the task goes on, once, whatever is killed until then."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.tasks.model import Task
from helmsman.testing import ModelRequest, ScriptedModel, fail, say
from helmsman.testing.script import Fail
from mcp import Client
from tests.hub.commands import done, whole
from tests.hub.conftest import Place
from tests.hub.test_acknowledged import until
from tests.hub.test_schedules import ended
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


async def test_a_task_continues_once_after_its_limit_though_client_and_hub_are_gone(
    place: Place, model: ScriptedModel
) -> None:
    resets_at = int(time.time()) + 7200
    reached = fail(429, error_type="usage_limit_reached", resets_at=resets_at)

    def while_the_hub_hears_nothing(_: ModelRequest) -> Fail:
        place.stop_hub()
        return reached

    model.on("work", while_the_hub_hears_nothing, say("done after all"))
    begun: dict[str, Any] = {}

    async def start() -> None:
        begun.update(
            await Caller(client)(
                "codex_start", prompt="work", workingDirectory=str(place.directory), sandbox="read-only", onLimit="ask"
            )
        )

    async with Client(place.on_stdio()) as client, anyio.create_task_group() as starting:
        starting.start_soon(start)
        with anyio.fail_after(60):
            while not any(
                "usage_limit" in path.read_text() for path in Path(place.env["CODEX_HOME"]).rglob("rollout-*.jsonl")
            ):
                await anyio.sleep(0.05)
        await place.kill_hub()
    task = await once(place, lambda one: one.input_required)
    status = json.loads((await done(whole("status", begun["sessionId"], "--json"), place)).stdout)
    question = status["pendingQuestion"]["id"]
    answered = await done(whole("respond", begun["sessionId"], question, "wait"), place)
    assert answered.code == 0, answered.stderr
    task = await once(place, lambda one: one.waiting_for is not None)
    assert task.resumes_at is not None
    assert 0 <= task.resumes_at.timestamp() - resets_at <= 60, "Codex names the minute"
    await place.kill_hub()
    shown = await done(whole("tasks", "show", task.id), place)
    assert "waits for the usage limit" in shown.stdout
    (listed,) = json.loads((await done(whole("list", "--json"), place)).stdout)["sessions"]
    assert (listed["status"], listed["resumesAt"]) == ("error", task.resumes_at.isoformat(timespec="seconds"))
    await place.kill_hub()
    resumed = await done(whole("tasks", "resume", task.id, "--json"), place)
    assert resumed.code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["taskId"] == task.id
    (finished,) = await ended(place, 1)
    assert (finished.status, finished.result) == ("completed", "done after all")
    assert finished.session_id == begun["sessionId"]
    assert len(model.requests) == 2, "once before and once after"


async def once(place: Place, is_so: Callable[[Task], bool]) -> Task:
    """The only task, once it works and is so."""
    with anyio.fail_after(60):
        while True:
            (task,) = await until(place, "working")
            if is_so(task):
                return task
            await anyio.sleep(0.05)
