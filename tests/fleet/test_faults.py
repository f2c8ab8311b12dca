"""Tests of machines, engines and databases that die: no work is lost or done twice concurrently.

A journal outside of the database is the evidence: each task's command writes when it begins and ends.
"""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import anyio
import psycopg
import pytest

from helmsman.agents.supervisor.records import read_records
from helmsman.model.answered_by import PERSON_AT_TERMINAL
from helmsman.testing import ScriptedModel, run, say
from tests.fleet.conftest import LEASE, Fleet, WorkerProcess
from tests.postgres import Postgres

pytestmark = pytest.mark.anyio

FULL = {"sandbox": "danger-full-access", "approval_policy": "never"}
SECONDS = 60


class Journal:
    """Who did what, when. A command writes a line when it begins, and then every tenth of a second that it is alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def command(self, task: str, seconds: float) -> str:
        beats = int(seconds * 10)
        line = f'echo "{task} $$ $(date +%s.%N)" >> {self.path}'
        return f"{line}; for i in $(seq {beats}); do sleep 0.1; {line}; done"

    def runs(self, task: str) -> dict[str, tuple[float, float]]:
        """Each process that worked on a task: its first and its last sign of life."""
        found: dict[str, tuple[float, float]] = {}
        for line in self.path.read_text(encoding="ascii").splitlines():
            name, pid, at = line.split()
            if name == task:
                first, _ = found.get(pid, (float(at), 0.0))
                found[pid] = first, float(at)
        return found

    def overlap(self, task: str) -> bool:
        """Return whether two processes worked on a task concurrently."""
        spans = sorted(self.runs(task).values())
        return any(later[0] <= earlier[1] for earlier, later in pairwise(spans))

    async def begun(self, task: str, runs: int = 1, seconds: float = SECONDS) -> None:
        with anyio.fail_after(seconds):
            while len(self.runs(task)) < runs:
                await anyio.sleep(0.02)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.mark.rare
@pytest.mark.parametrize("is_engine_killed", [False, True], ids=["worker", "worker and engine"])
async def test_the_work_of_a_machine_that_is_killed_continues_elsewhere_and_never_twice_at_once(
    fleet: Fleet, model: ScriptedModel, journal: Journal, is_engine_killed: bool
) -> None:
    """With everything on it: its engine ends with it, and the task is taken up within 1.6 leases and a second.

    The other machine has never heard of the thread, and goes on in it.
    """
    model.on("work", run("echo seen-on-the-first"), run(journal.command("a", 30)), say("never"))
    one = await fleet.worker("one", "--capacity", "1")
    task = await fleet.start("work", options=FULL, spec_more={"onMachineLoss": "continue"})
    await journal.begun("a")
    await fleet.worker("two", "--capacity", "1")
    await anyio.sleep(1.5 * LEASE)  # until it may judge
    model.on("lost in the middle", run(journal.command("a", 0.3)), say("done"))
    engine, killed = engine_pid(one), time.monotonic()
    one.kill()
    if is_engine_killed:
        os.kill(engine, signal.SIGKILL)
    await journal.begun("a", runs=2)
    taken = time.monotonic() - killed
    ended = await fleet.ended(task)
    assert (ended.status, ended.result) == ("completed", "done"), fleet.logs()
    assert "seen-on-the-first" in json.dumps(model.requests[-1].body), fleet.logs()
    assert not journal.overlap("a")
    assert taken <= 1.6 * LEASE + 1 + 3, taken  # including what a machine needs for a turn


@pytest.mark.rare
async def test_a_machine_that_stands_still_beyond_its_lease_is_fenced(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    model.on("work", run(journal.command("a", 30)), say("never"))
    one = await fleet.worker("one", "--capacity", "1")
    task = await fleet.start("work", options=FULL, spec_more={"onMachineLoss": "continue"})
    await journal.begun("a")
    await fleet.worker("two", "--capacity", "1")
    model.on("lost in the middle", run(journal.command("a", 2)), say("done"))
    one.kill(signal.SIGSTOP)
    await journal.begun("a", runs=2)
    one.kill(signal.SIGCONT)
    assert await one.ended() == 75
    ended = await fleet.ended(task)
    assert (ended.status, ended.result) == ("completed", "done"), fleet.logs()
    assert not journal.overlap("a")


async def test_an_engine_that_is_killed_is_started_again_and_its_turn_continues(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    model.on("work", run(journal.command("a", 30)), say("never"))
    await fleet.worker("one")
    task = await fleet.start("work", options=FULL, spec_more={"onMachineLoss": "ask"})
    await journal.begun("a")
    model.on("lost in the middle", run(journal.command("a", 0.2)), say("done"))
    os.kill(engine_pid(fleet.workers["one"]), signal.SIGKILL)
    now, asks = await fleet.client.until(task.id, lambda task: task.input_required, timeout=SECONDS)
    assert asks, f"{now}{fleet.logs()}"
    (asked,) = await fleet.client.questions()
    await fleet.client.answer(task.id, asked.question.id, ["continue"], PERSON_AT_TERMINAL)
    ended = await fleet.ended(task)
    assert (ended.status, ended.result) == ("completed", "done"), fleet.logs()
    assert not journal.overlap("a")


def engine_pid(worker: WorkerProcess) -> int:
    state_dir = Path(worker.home.env["HELMSMAN_STATE_DIR"]) / "fleet" / "service"
    (record,) = read_records(state_dir)
    assert record.child is not None
    return record.child.pid


@pytest.mark.rare
async def test_a_database_that_is_restarted_and_then_gone_for_two_leases_delays_and_loses_nothing(
    own_postgres: Postgres, fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    model.on("work", run(journal.command("a", 2.5 * LEASE)), say("done"))
    await fleet.worker("one", "--capacity", "1")
    await fleet.worker("two", "--capacity", "1")
    task = await fleet.start("work", options=FULL)
    await journal.begun("a")
    own_postgres.stop()
    own_postgres.start()
    own_postgres.stop(signal.SIGQUIT)
    await anyio.sleep(2 * LEASE)
    own_postgres.start()
    ended = await fleet.ended(task)
    assert (ended.status, ended.result) == ("completed", "done"), fleet.logs()
    assert len(journal.runs("a")) == 1
    assert all(worker.process.poll() is None for worker in fleet.workers.values())


_NOTE_WHAT_RUNS_WITHOUT_A_MACHINE = """
    create table helmsman.left_running (id text);
    create function helmsman.note_left_running() returns trigger language plpgsql as $$ begin
        insert into helmsman.left_running select id from helmsman_store.tasks where worker = old.id and status = 'working';
        return null;
    end $$;
    create trigger note_left_running after delete on helmsman.workers
    for each row execute function helmsman.note_left_running();
"""
"""Whoever looks in that moment takes it for cut off."""


async def test_a_machine_that_is_stopped_hands_its_work_over_at_once(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    model.on("work", run(journal.command("a", 30)), say("never"))
    one = await fleet.worker("one", "--capacity", "1", lease=30)
    task = await fleet.start("work", options=FULL)
    await journal.begun("a")
    await fleet.worker("two", "--capacity", "1", lease=30)
    with psycopg.connect(fleet.url, autocommit=True) as connection:
        connection.execute(_NOTE_WHAT_RUNS_WITHOUT_A_MACHINE)
    model.on("stopped in order", run(journal.command("a", 0.2)), say("done"))
    one.kill(signal.SIGTERM)
    assert await one.ended() == 143
    ended = await fleet.ended(task, 20)
    assert (ended.status, ended.result) == ("completed", "done"), fleet.logs()
    assert not journal.overlap("a")
    with psycopg.connect(fleet.url) as connection:
        assert connection.execute("select id from helmsman.left_running").fetchall() == []
