"""A usage limit reached at night, with a real Codex: the task goes on, once, whatever is killed until then."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from helmsman.testing import fail, say
from mcp import Client
from tests.hub.test_acknowledged import until
from tests.hub.test_commands import done, whole
from tests.hub.test_schedules import ended
from tests.mcp.caller import Caller

if TYPE_CHECKING:
    from helmsman.testing import ScriptedModel
    from tests.hub.conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


async def test_a_task_goes_on_once_after_its_limit_though_client_and_hub_are_gone(
    place: Place, model: ScriptedModel
) -> None:
    resets_at = int(time.time()) + 7200
    model.on("work", fail(429, error_type="usage_limit_reached", resets_at=resets_at), say("done after all"))
    async with Client(place.on_stdio()) as client:
        begun = await Caller(client)(
            "codex_start", prompt="work", workingDirectory=str(place.directory), sandbox="read-only", onLimit="wait"
        )
    (task,) = await until(place, "working")
    with anyio.fail_after(60):
        while task.waiting_for is None:
            (task,) = await until(place, "working")
            await anyio.sleep(0.05)
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
