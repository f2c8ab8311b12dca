"""Schedules in a real hub, with a real Codex: what is due begins, once, with nobody there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
import pytest

from helmsman.base.structs import replace
from helmsman.tasks.model import Task
from helmsman.testing import FakeAcpAgent, ScriptedModel, say
from helmsman.testing.fake_acp_agent import says
from helmsman.testing.hubs import hub_pid
from mcp import Client
from tests.hub.commands import done, whole
from tests.hub.conftest import Place
from tests.hub.test_acknowledged import stored
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

SECONDS = 60
_KILLS = 6


async def told(place: Place, *words: str) -> dict[str, Any]:
    """What a command says to a program."""
    finished = await done(whole("schedule", *words, "--json"), place)
    assert finished.code == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


async def ended(place: Place, number: int) -> list[Task]:
    """All tasks, once so many have ended."""
    with anyio.fail_after(SECONDS):
        while True:
            tasks = await anyio.to_thread.run_sync(stored, place)
            if sum(task.has_ended for task in tasks) >= number:
                return tasks
            await anyio.sleep(0.05)


async def test_scheduled_work_begins_without_a_client_and_is_in_the_history(place: Place, model: ScriptedModel) -> None:
    model.on("look at it", say("all is well"))
    added = await told(place, "add", "--at", "in 1s", "look at it", "-s", "read-only", "-a", "never")
    (task,) = await ended(place, 1)
    assert (task.status, task.result, task.directory) == ("completed", "all is well", str(place.directory))
    shown = await told(place, "show", added["scheduleId"])
    assert shown["status"] == "over"
    assert [(run["taskId"], run["status"]) for run in shown["runs"]] == [(task.id, "completed")]


async def test_another_agent_does_it(place: Place, fake_acp_agent: FakeAcpAgent) -> None:
    own = Path(place.env["HOME"]) / ".config" / "helmsman" / "helmsman.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(f"[agents.mine]\ncommand = {json.dumps(fake_acp_agent.command)}\n", encoding="utf-8")
    fake_acp_agent.on("look at it", says("all is well"))
    given = ("--agent", "mine", "--unenforced", "--trust-repository")
    added = await told(place, "add", "--at", "in 1s", "look at it", *given)
    assert (added["agent"], added["enforced"]) == ("mine", False)
    (task,) = await ended(place, 1)
    assert (task.agent, task.status, task.result) == ("mine", "completed", "all is well"), task.error


@pytest.mark.rare
async def test_a_hub_that_is_killed_around_the_time_runs_it_once_all_the_same(
    place: Place, model: ScriptedModel
) -> None:
    model.on("once", say("done"))
    kept = await told(place, "add", "--cron", "0 7 * * *", "later")
    runs = 0
    for number in range(_KILLS):
        await told(place, "add", "--at", "in 1s", f"once {number}", "-s", "read-only", "-a", "never")
        runs += 1
        before = hub_pid(place.state_dir)
        with anyio.move_on_after(0.8 + number * 0.1):  # a little before, at, and a little after
            await anyio.sleep_forever()
        assert hub_pid(place.state_dir) == before
        await place.kill_hub()
        assert kept["scheduleId"] in {one["scheduleId"] for one in (await told(place, "list"))["schedules"]}
    tasks = await ended(place, runs)
    assert sorted(task.instruction for task in tasks) == [f"once {number}" for number in range(_KILLS)]
    assert {task.status for task in tasks} == {"completed"}
    assert len(model.requests) == _KILLS


async def test_a_hub_stays_while_something_will_be_due_and_ends_by_itself_when_nothing_will(place: Place) -> None:
    added = await told(place, "add", "--every", "1d", "work")
    hub = await done(whole("hub", "--json"), place)
    assert json.loads(hub.stdout)["hub"]["nextScheduleAt"].startswith(added["nextAt"].rstrip("Z"))
    assert (await told(place, "remove", added["scheduleId"]))["scheduleId"] == added["scheduleId"]
    hub = await done(whole("hub", "--json"), place)
    assert json.loads(hub.stdout)["hub"]["nextScheduleAt"] is None


async def test_a_kept_hub_is_restarted_until_it_is_stopped(bare_place: Place) -> None:
    place = replace(bare_place, env={**bare_place.env, "HELMSMAN_HUB_IDLE_MS": "1"})
    async with await anyio.open_process(whole("hub", "run"), env=place.env, cwd=place.directory) as running:
        try:
            with anyio.fail_after(SECONDS):
                while (first := hub_pid(place.state_dir)) is None:
                    await anyio.sleep(0.02)
                while not json.loads((await done(whole("hub", "--json"), place)).stdout)["hub"]["clients"]:
                    await anyio.sleep(0.02)
                await place.kill_hub()
                while hub_pid(place.state_dir) in (None, first):
                    await anyio.sleep(0.02)
                while not json.loads((await done(whole("hub", "--json"), place)).stdout)["hub"]["clients"]:
                    await anyio.sleep(0.02)
                assert (await done(whole("hub", "stop", "--yes"), place)).code == 0
                assert await running.wait() == 0
        finally:
            if running.returncode is None:
                running.kill()  # or what has failed would be waited for


async def test_an_agent_proposes_a_schedule_and_a_person_confirms_it(place: Place, model: ScriptedModel) -> None:
    model.on("look at it", say("all is well"))
    named = types.Implementation(name="claude-code", version="2")
    async with Client(place.on_stdio("--tools", "sessions,extras"), client_info=named) as client:
        call = Caller(client)
        directory = str(place.directory)
        full = {"sandbox": "danger-full-access", "approvalPolicy": "never", "workingDirectory": directory}
        added = await call("codex_schedule", action="add", prompt="look at it", every="1m", **full)
        (schedule,) = added["schedules"]
        which = schedule["scheduleId"]
        assert (schedule["status"], schedule["cwd"], schedule["everySec"]) == ("proposed", directory, 60)
        assert (schedule["proposedBy"], schedule.get("nextAt")) == ("claude-code", None)
        assert await call("codex_schedule", action="list") == {"schedules": [schedule]}
        for action in ("resume", "run_now"):
            assert (await call.error("codex_schedule", action=action, scheduleId=which))["code"] == "not_yours"
        told = await done(whole("config", "notify", "log", "--json"), place)
        assert told.code == 0
        listed = json.loads((await done(whole("schedule", "--json"), place)).stdout)["schedules"]
        assert [one["status"] for one in listed] == ["proposed"]
        for unseen in ("resume", "run-now"):
            assert f"schedule confirm {which}" in (await done(whole("schedule", unseen, which), place)).stderr
        unasked = await done(whole("schedule", "confirm", which), place)
        assert unasked.code == 2
        assert "Sandbox: danger-full-access\nAsks: never\n" in unasked.stderr
        (still,) = (await call("codex_schedule", action="list"))["schedules"]
        assert still == schedule
        assert (await done(whole("schedule", "confirm", which, "--yes"), place)).code == 0
        (confirmed,) = (await call("codex_schedule", action="list"))["schedules"]
        assert (confirmed["status"], "proposedBy" in confirmed) == ("active", False)
        assert (await done(whole("schedule", "run-now", which), place)).code == 0
        await ended(place, 1)
        shown = await call("codex_schedule", action="show", scheduleId=which)
        assert len(shown["runs"]) == 1
        assert (await call.error("codex_schedule", action="remove", scheduleId=which))["code"] == "not_yours"
        paused = await call("codex_schedule", action="pause", scheduleId=which)
        assert paused["schedules"][0]["status"] == "paused"
        assert (await done(whole("schedule", "remove", which), place)).code == 0
        refused = await call.error("codex_schedule", action="show", scheduleId=which)
        assert refused["code"] == "schedule_not_found", refused
