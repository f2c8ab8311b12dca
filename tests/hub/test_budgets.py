"""A budget that is passed in the middle of a turn, with a real Codex: asked about, and gone on with once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from helmsman.tasks.model import Task
from helmsman.testing import ScriptedModel, hang, run, say, usage
from mcp import Client
from tests.hub.commands import done, whole
from tests.hub.conftest import Place
from tests.hub.test_acknowledged import stored
from tests.hub.test_schedules import ended
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


async def until(place: Place, is_so: Callable[[Task], bool]) -> Task:
    """The only task, once it is so."""
    with anyio.fail_after(60):
        while not is_so(task := (await anyio.to_thread.run_sync(stored, place))[0]):
            await anyio.sleep(0.05)
    return task


@pytest.mark.long
async def test_a_task_continues_once_beyond_its_budget_though_client_and_hubs_are_gone(
    place: Place, model: ScriptedModel
) -> None:
    own = Path(place.env["HOME"]) / ".config" / "helmsman" / "helmsman.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    told = place.directory / "told"
    command = ["/bin/sh", "-c", f"cat >> {told}"]
    notify = (
        f'[notify]\nevents = ["question"]\nunanswered_sec = 0\n[[notify.to]]\nway = "command"\ncommand = {command}\n'
    )
    own.write_text(f"[budget]\nday_tokens = 100_000\n{notify}")
    gate = model.gate()
    model.on("work", [run("true"), usage(200_000)], hang())
    model.on("more has been granted", say(gate, "done after all"))
    async with Client(place.on_stdio()) as client:
        begun = await Caller(client)(
            "codex_start", prompt="work", workingDirectory=str(place.directory), sandbox="read-only"
        )
        await until(place, lambda task: task.input_required)
        status = await Caller(client)("codex_status", sessionId=begun["sessionId"])
        assert (status["status"], status["waitingFor"]) == ("awaiting_approval", "budget")
        with anyio.fail_after(60):
            while not told.exists() or status["pendingQuestion"]["id"] not in told.read_text():
                await anyio.sleep(0.05)
    await place.kill_hub()
    asked = await done(whole("status", begun["sessionId"], "--json"), place)  # the next hub asks again
    with anyio.fail_after(60):
        while "pendingQuestion" not in (shown := json.loads(asked.stdout)):
            asked = await done(whole("status", begun["sessionId"], "--json"), place)
    (part,) = shown["pendingQuestion"]["questions"]
    assert part["question"].startswith("All work has used 200,")
    before = len(model.requests)

    answered = await done(whole("respond", begun["sessionId"], shown["pendingQuestion"]["id"], "approve"), place)
    assert answered.code == 0, answered.stderr
    await gate.reached()
    await place.kill_hub()
    gate.release()
    (finished,) = await ended(place, 1)
    assert (finished.status, finished.result) == ("completed", "done after all")
    assert finished.session_id == begun["sessionId"]
    assert len(model.requests) == before + 1, "once after it was granted"

    shown = json.loads((await done(whole("usage", "--json"), place)).stdout)
    (budget,) = shown["budgets"]
    assert (budget["key"], budget["budget"]) == ("day_tokens", 100_000)
    assert finished.usage is not None
    assert finished.usage.input_tokens >= 200_000, "of both turns"
    assert budget["used"] == shown["total"]["inputTokens"] + shown["total"]["outputTokens"], "each turn once"
    assert budget["granted"] > budget["used"]
