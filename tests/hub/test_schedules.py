"""Schedules in a real hub, with a real Codex: what is due begins, once, with nobody there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from helmsman.testing import say
from helmsman.testing.hubs import hub_pid
from tests.hub.test_acknowledged import stored
from tests.hub.test_commands import done, whole

if TYPE_CHECKING:
    from helmsman.tasks.model import Task
    from helmsman.testing import ScriptedModel
    from tests.hub.conftest import Place

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


async def test_work_begins_by_itself_with_nobody_there_and_its_history_tells_of_it(
    place: Place, model: ScriptedModel
) -> None:
    model.on("look at it", say("all is well"))
    added = await told(place, "add", "--at", "in 1s", "look at it", "-s", "read-only", "-a", "never")
    (task,) = await ended(place, 1)
    assert (task.status, task.result, task.directory) == ("completed", "all is well", str(place.directory))
    shown = await told(place, "show", added["scheduleId"])
    assert shown["status"] == "over"
    assert [(run["taskId"], run["status"]) for run in shown["runs"]] == [(task.id, "completed")]


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
