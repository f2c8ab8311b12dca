"""Tests of a fleet's schedules: each run happens once, whichever worker is first or dies, and any client can manage
them.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest

from helmsman import Helmsman
from helmsman.fleet.schedules import FleetSchedules
from helmsman.schedules import store as stored_schedules
from helmsman.settings import load_settings
from helmsman.store.connection import StoreConnection
from helmsman.testing import ScriptedModel, say
from tests.fleet.conftest import Fleet
from tests.fleet.test_clients import client_env, helmsman

pytestmark = [pytest.mark.anyio, pytest.mark.rare]
SECONDS = 60


def make_due(fleet: Fleet, ago: str = "1 second") -> None:
    """Every schedule is due since a while: its intervals count from earlier, too."""
    with psycopg.connect(fleet.url, autocommit=True) as connection:
        connection.execute(
            "update helmsman_store.schedules set "
            "next_at = (extract(epoch from clock_timestamp() - %(ago)s::interval) * 1000000)::bigint, "
            "content = jsonb_set(content::jsonb, '{when,since}', "
            "to_jsonb((content::jsonb #>> '{when,since}')::timestamptz - %(ago)s::interval - interval '1 h'))::text",
            {"ago": ago},
        )


def rows(fleet: Fleet, sql: Any) -> list[Any]:
    with psycopg.connect(fleet.url) as connection:
        return connection.execute(sql).fetchall()


async def test_a_run_that_is_due_is_entered_once_by_the_first_hub_and_not_lost_with_who_dies(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without machines: what workers do when something is due, several at once, and one cut off in the middle."""
    env = client_env(fleet)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        schedules = helm.extras.schedules
        added = await schedules.add("look", every="1h", cwd=fleet.directory, max_cost_usd=0.5)
        assert added.id.startswith("S-fleet-")
        make_due(fleet)
        store = FleetSchedules(fleet.client.database.store)

        def dies(connection: StoreConnection, *_: Any) -> None:
            connection.execute("select pg_terminate_backend(pg_backend_pid())")

        with monkeypatch.context() as cut:
            cut.setattr(stored_schedules, "_enter", dies)
            await store.begin_due()
        assert rows(fleet, "select count(*) from helmsman_store.tasks") == [(0,)]
        async with anyio.create_task_group() as several:
            for _ in range(8):
                several.start_soon(FleetSchedules(fleet.client.database.store).begin_due)
        assert rows(fleet, "select count(*) from helmsman_store.tasks") == [(1,)]
        assert rows(fleet, "select status, queue from helmsman_store.tasks") == [("pending", "codex")]
        [run] = await schedules.runs(added.id)
        task = await helm.tasks.get(str(run.task_id))
        assert (task.instruction, task.schedule, task.max_cost_usd) == ("look", added.id, 0.5)

        make_due(fleet, "90 minutes")  # and the run before still waits
        await store.begin_due()
        runs = await schedules.runs(added.id)
        assert [one.note for one in runs] == ["The run before was still at work.", None]


async def test_each_run_is_begun_once_though_one_of_two_machines_is_killed(fleet: Fleet, model: ScriptedModel) -> None:
    one, _ = await fleet.worker("one"), await fleet.worker("two")
    model.on("look", say("seen"))
    where = ("-C", str(fleet.directory), "-s", "read-only", "--overlap", "--json")
    await helmsman(client_env(fleet), "schedule", "add", "--every", "1h", "look", *where)
    for number in range(4):
        make_due(fleet, "7 minutes")
        if number == 1:
            one.kill()
        with anyio.fail_after(SECONDS):
            while len(rows(fleet, "select due_at from helmsman_store.schedule_runs")) <= number:
                await anyio.sleep(0.05)
    begun = [task for (task,) in rows(fleet, "select task_id from helmsman_store.schedule_runs")]
    for task in begun:
        ended = await fleet.ended(await fleet.client.get(task))
        assert (ended.status, ended.result) == ("completed", "seen"), fleet.logs()
    assert sorted(begun) == sorted(task for (task,) in rows(fleet, "select id from helmsman_store.tasks"))


async def test_a_schedule_of_a_fleet_is_seen_to_from_any_client_beside_those_of_the_machine(
    fleet: Fleet, model: ScriptedModel
) -> None:
    await fleet.worker("one")
    model.on("look", say("seen"))
    env, other = client_env(fleet), client_env(fleet, "desktop")
    added = json.loads(
        await helmsman(env, "schedule", "add", "--every", "1h", "look", "-C", str(fleet.directory), "--json")
    )
    alone = {name: value for name, value in other.items() if name != "HELMSMAN_FLEET_URL"}
    own = json.loads(
        await helmsman(alone, "schedule", "add", "--every", "1h", "own", "-C", str(fleet.directory), "--json")
    )
    listed = json.loads(await helmsman(other, "schedule", "--json"))["schedules"]
    assert [one["scheduleId"] for one in listed] == [own["scheduleId"], added["scheduleId"]]
    assert listed[1] == added
    paused = json.loads(await helmsman(other, "schedule", "pause", added["scheduleId"], "--json"))
    assert paused["status"] == "paused"
    await helmsman(env, "schedule", "resume", added["scheduleId"])
    task = json.loads(await helmsman(other, "schedule", "run-now", added["scheduleId"], "--json"))
    ended = await fleet.ended(await fleet.client.get(task["taskId"]))
    assert (ended.status, ended.result) == ("completed", "seen"), fleet.logs()

    make_due(fleet)
    with anyio.fail_after(SECONDS):
        while rows(fleet, "select count(*) from helmsman_store.tasks") != [(2,)]:
            await anyio.sleep(0.05)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        shown = await helm.extras.schedules.get(added["scheduleId"])
        assert shown.last is not None
        assert shown.next_at is not None
        ended = await fleet.ended(await fleet.client.get(str(shown.last.task_id)))
        assert ended.status == "completed", fleet.logs()
    await helmsman(other, "schedule", "remove", added["scheduleId"])
    assert json.loads(await helmsman(env, "schedule", "--json"))["schedules"] == []
    await helmsman(alone, "schedule", "remove", own["scheduleId"])
