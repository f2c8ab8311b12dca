"""Who runs what, and when: order in a session, priorities, delays, labels, hosts, deadlines, cancels, names of machines."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from typing import Any

import anyio
import pytest

from helmsman.errors import FleetNotReady, FleetRefused, InvalidInput
from helmsman.fleet.client import FleetClient
from helmsman.fleet.database import FleetDatabase
from helmsman.fleet.setup import init_fleet
from helmsman.fleet.upkeep import drop_expired
from helmsman.testing import ScriptedModel, run, say
from tests.fleet.conftest import Fleet
from tests.fleet.test_faults import FULL, Journal, journal

pytestmark = pytest.mark.anyio

__all__ = ["journal"]


@pytest.mark.rare
async def test_turns_of_a_session_run_one_at_a_time_in_order_and_the_rest_by_priority(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    model.on("first", run(journal.command("one", 0.5)), say("session"))
    for number in (1, 2, 3):
        model.on(f"turn {number}", run(journal.command(f"turn{number}", 0.3)), say(f"said {number}"))
    for name in ("urgent", "late", "usual"):
        model.on(name, run(journal.command(name, 0.2)), say(name))
    await fleet.worker("one", "--capacity", "2")
    first = await fleet.ended(await fleet.start("first", options=FULL))
    assert first.status == "completed", fleet.logs()
    turns = [await fleet.start(f"turn {number}", session_id=first.session_id, options=FULL) for number in (1, 2, 3)]
    ended = [await fleet.ended(turn) for turn in turns]
    assert [(turn.result, turn.session_id) for turn in ended] == [
        (f"said {number}", first.session_id) for number in (1, 2, 3)
    ], fleet.logs()
    spans = [one for number in (1, 2, 3) for one in journal.runs(f"turn{number}").values()]
    assert spans == sorted(spans)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(spans))

    await fleet.client.drain("one")
    assert await fleet.workers["one"].ended() == 0
    late = await fleet.start("late", options=FULL, priority=900)
    usual = await fleet.start("usual", options=FULL)
    urgent = await fleet.start("urgent", options=FULL, priority=1)
    await fleet.worker("two", "--capacity", "1")
    began = {
        name: next(iter(journal.runs(name).values()))[0]
        for name, task in {
            "late": await fleet.ended(late),
            "usual": await fleet.ended(usual),
            "urgent": await fleet.ended(urgent),
        }.items()
        if task.status == "completed"
    }
    assert sorted(began, key=lambda name: began[name]) == ["urgent", "usual", "late"], fleet.logs()


@pytest.mark.rare
async def test_labels_hosts_delays_deadlines_and_cancels(fleet: Fleet, model: ScriptedModel, journal: Journal) -> None:
    model.on("anywhere", say("plain"))
    model.on("long work", run(journal.command("long", 60)), say("never"))
    await fleet.worker("plain", "--capacity", "1")
    await fleet.worker("other", "--capacity", "2", "--label", "gpu")
    with pytest.raises(FleetRefused, match="label"):
        await fleet.start("x", labels=("tpu",))
    with pytest.raises(FleetRefused, match="other, plain"):
        await fleet.start("x", machine="nowhere")
    with pytest.raises(InvalidInput, match="priority"):
        await fleet.start("x", priority=0)

    labelled, hosted, delayed = (
        await fleet.start("anywhere", labels=("gpu",)),
        await fleet.start("anywhere", machine="plain"),
        await fleet.start("anywhere", delay=1.5),
    )
    assert (await fleet.ended(labelled)).placement["machine"] == "other", fleet.logs()
    assert (await fleet.ended(hosted)).placement["machine"] == "plain"
    ended = await fleet.ended(delayed)
    assert ended.completed_at is not None
    assert (ended.completed_at - ended.created_at).total_seconds() > 1.5

    running = await fleet.start("long work", machine="plain", options=FULL)
    await journal.begun("long")
    waiting = await fleet.start("anywhere", machine="plain")
    assert (await fleet.client.cancel(waiting.id, "not needed")).status == "canceled"
    stopped = await fleet.client.cancel(running.id, "enough")
    assert (stopped.status, stopped.note) == ("canceled", "It was cancelled: enough"), fleet.logs()
    beats = journal.path.read_text(encoding="ascii")
    late = await fleet.ended(await fleet.start("long work", machine="plain", options=FULL, deadline=2.0))
    assert (late.status, late.note) == ("canceled", "Its deadline has passed."), fleet.logs()
    assert journal.path.read_text(encoding="ascii").startswith(beats)
    assert len(journal.runs("long")) == 2

    # The results go when they have expired.
    async with FleetDatabase(fleet.url) as database:
        await database.all("update helmsman_store.tasks set expires_at = helmsman.now() - 1000000 returning 1")
        assert await drop_expired(database) == 6
        assert await database.all("select 1 from helmsman_store.events") == []


@pytest.mark.rare
async def test_a_name_is_one_machines_alone(fleet: Fleet) -> None:
    """Another machine that calls itself the same is refused while the first lives; nothing is taken away from that."""
    await fleet.worker("one", lease=2)
    first = fleet.workers.pop("one")
    fleet.folder = fleet.folder / "elsewhere"
    fleet.folder.mkdir()
    second = fleet.begin_worker("one", lease=2)
    fleet.workers["first"] = first
    assert await second.ended() == 1
    assert "lives already" in second.log.read_text(encoding="utf-8")
    assert first.process.poll() is None
    again = await anyio.run_process(
        [sys.executable, "-m", "helmsman", "fleet", "worker", "--name", "two"],
        env={**first.home.env, "HELMSMAN_FLEET_URL": fleet.url, "CODEX_CLI_PATH": str(fleet.binary)},
        check=False,
    )
    assert b"runs already" in again.stderr


@pytest.mark.rare
async def test_a_database_is_set_up_once_however_many_do_so_at_once(empty_database: str) -> None:
    with pytest.raises(FleetNotReady, match="fleet init"):
        async with FleetClient(empty_database):
            pass
    results: list[Any] = await asyncio.gather(*(init_fleet(empty_database) for _ in range(8)))
    assert all(check.verdict == "ok" for checks in results for check in checks), results
    async with FleetClient(empty_database) as client:
        assert await client.machines() == []
