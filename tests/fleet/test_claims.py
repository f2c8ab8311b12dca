"""The queue alone: which tasks a worker claims, in which order, and how they return to the queue. No agent runs."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from helmsman.errors import InvalidInput
from helmsman.fleet.owned_task import MachineOffer, NotOwner, OwnedTask
from helmsman.fleet.pictures import MOST_BYTES, image_bundles, place_images
from helmsman.fleet.queue import QueueConsumer, hand_over_tasks, requeue_work
from helmsman.fleet.upkeep import stop_late_tasks
from helmsman.model.events import Notice, TurnEnded
from helmsman.store.log import NewEvent
from helmsman.tasks.model import Task
from tests.fleet.conftest import SECONDS, Fleet

pytestmark = pytest.mark.anyio


async def claim(fleet: Fleet, offer: MachineOffer, most: int = 10) -> list[OwnedTask]:
    claimed, _ = await OwnedTask.claim(fleet.client.database, offer, most)
    return claimed


async def claimed_ids(fleet: Fleet, offer: MachineOffer, most: int = 10) -> list[str]:
    return [one.id for one in await claim(fleet, offer, most)]


async def change(fleet: Fleet, sql: Any, *values: Any) -> None:
    assert await fleet.client.database.all(f"{sql} returning 1", values) != []


async def remove_worker(fleet: Fleet, offer: MachineOffer) -> None:
    await change(fleet, "delete from helmsman.workers where id = %s", offer.worker)


async def test_claims_go_by_priority_then_age(fleet: Fleet) -> None:
    one = await fleet.idle_worker("one")
    late, first, second, urgent = [await fleet.start("x", priority=priority) for priority in (900, 100, 100, 1)]
    assert await claimed_ids(fleet, one, 1) == [urgent.id]
    assert await claimed_ids(fleet, one) == [first.id, second.id, late.id]
    assert await claimed_ids(fleet, one) == []


async def test_turns_of_a_session_are_claimed_in_order_whatever_their_priority(fleet: Fleet) -> None:
    one, two = await fleet.idle_worker("one"), await fleet.idle_worker("two")
    turns = [await fleet.start("x", session_id="S", priority=priority) for priority in (900, 500, 1)]
    for turn in turns:
        (owned,) = await claim(fleet, one)
        assert owned.id == turn.id
        assert await claimed_ids(fleet, two) == []
        await owned.finish({"status": "failed"})


async def test_many_workers_claim_each_task_once_and_sessions_in_order(fleet: Fleet) -> None:
    """Eight workers at once: no task runs twice, and no two of a session at the same time."""
    offers = [await fleet.idle_worker(f"w{number}") for number in range(8)]
    tasks = [await fleet.start("x", session_id=f"S{number % 6}") for number in range(48)]
    running: dict[str, str] = {}
    order: dict[str, list[str]] = defaultdict(list)

    async def work(offer: MachineOffer) -> None:
        while sum(map(len, order.values())) < len(tasks):
            for owned in await claim(fleet, offer, 2):
                session = owned.session_id
                assert session not in running
                running[session] = owned.id
                order[session].append(owned.id)
                await anyio.lowlevel.checkpoint()
                del running[session]
                await owned.finish({"status": "completed"})

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as workers:
            for offer in offers:
                workers.start_soon(work, offer)
    assert order == {f"S{number}": [task.id for task in tasks[number::6]] for number in range(6)}


async def test_the_end_of_a_turn_wakes_workers_for_the_next(fleet: Fleet) -> None:
    one = await fleet.idle_worker("one")
    await fleet.start("x", session_id="S")
    await fleet.start("x", session_id="S")
    (owned,) = await claim(fleet, one)
    async with fleet.client.database.listening("helmsman_workers") as payloads:
        await owned.finish({"status": "completed"})
        with anyio.fail_after(SECONDS):
            assert await anext(payloads) == "codex"


async def test_a_task_asks_for_its_host_its_agent_and_all_of_its_labels(fleet: Fleet) -> None:
    plain, other = await fleet.idle_worker("plain"), await fleet.idle_worker("other")
    gpu = other._replace(labels=["gpu", "large", "codex:2"])
    await change(
        fleet, "update helmsman.workers set labels = %s, agents = %s where id = %s", gpu.labels, AGENTS, gpu.worker
    )
    hosted = await fleet.start("x", machine="plain")
    labelled = await fleet.start("x", labels=("gpu",))
    moved = await fleet.start("x")
    await change(fleet, "update helmsman_store.tasks set labels = '{codex:2}' where id = %s", moved.id)
    assert await claimed_ids(fleet, other._replace(agents=["claude"], labels=gpu.labels)) == []
    assert await claimed_ids(fleet, plain) == [hosted.id]
    assert await claimed_ids(fleet, gpu) == [labelled.id, moved.id]


AGENTS = '{"codex": "", "claude": ""}'


async def finished_turn(fleet: Fleet, offer: MachineOffer, session: str) -> None:
    await fleet.start("x", session_id=session)
    (owned,) = await claim(fleet, offer)
    await owned.finish({"status": "completed"})


async def test_the_next_turn_waits_some_seconds_for_the_machine_of_its_session(fleet: Fleet) -> None:
    one, two = await fleet.idle_worker("one"), await fleet.idle_worker("two")
    await finished_turn(fleet, one, "S")
    turn = await fleet.start("x", session_id="S")
    assert turn.placement["queue"] == "host:one"
    assert await claimed_ids(fleet, two) == []
    await change(fleet, "update helmsman_store.tasks set updated_at = updated_at - 60000000 where id = %s", turn.id)
    assert await claimed_ids(fleet, two) == [turn.id]


@pytest.mark.parametrize("gone", ["dead", "draining"])
async def test_the_next_turn_does_not_wait_for_a_machine_that_takes_nothing(fleet: Fleet, gone: str) -> None:
    one, two = await fleet.idle_worker("one"), await fleet.idle_worker("two")
    await finished_turn(fleet, one, "S")
    turn = await fleet.start("x", session_id="S")
    if gone == "dead":
        await remove_worker(fleet, one)
    else:
        assert await fleet.client.drain("one")
    assert await claimed_ids(fleet, two) == [turn.id]


async def test_a_delayed_task_is_not_claimed_before_its_time_which_workers_know(fleet: Fleet) -> None:
    one = await fleet.idle_worker("one")
    task = await fleet.start("x", delay=30.0)
    claimed, due = await OwnedTask.claim(fleet.client.database, one, 10)
    assert (claimed, due is not None and 25 < due <= 30) == ([], True)
    await change(fleet, "update helmsman_store.tasks set not_before = clock_timestamp() where id = %s", task.id)
    claimed, due = await OwnedTask.claim(fleet.client.database, one, 10)
    assert ([owned.id for owned in claimed], due) == ([task.id], None)


async def test_a_worker_without_a_lease_claims_nothing(fleet: Fleet) -> None:
    one = await fleet.idle_worker("one")
    await fleet.start("x")
    await remove_worker(fleet, one)
    assert await claim(fleet, one) == []


async def test_work_of_a_dead_worker_returns_and_its_late_writes_are_refused(fleet: Fleet) -> None:
    one, two = await fleet.idle_worker("one"), await fleet.idle_worker("two")
    task = await fleet.start("x")
    (dead,) = await claim(fleet, one)
    await requeue_work(fleet.client.database)
    assert (await fleet.client.get(task.id)).status == "working", "its worker has a lease"
    await remove_worker(fleet, one)
    for _ in range(2):
        await requeue_work(fleet.client.database)
        now = await fleet.client.get(task.id)
        assert (now.status, now.note) == ("pending", "Its machine one was lost.")
    (alive,) = await claim(fleet, two)
    assert (alive.id, alive.epoch, alive.row["worker_before"]) == (task.id, dead.epoch + 1, one.worker)
    with pytest.raises(NotOwner):
        await dead.finish({"status": "completed"})
    assert await dead.claim_again() is None
    await alive.finish({"status": "completed"})
    assert (await fleet.client.get(task.id)).status == "completed"


async def test_a_dead_worker_does_not_bring_back_what_was_cancelled(fleet: Fleet) -> None:
    one = await fleet.idle_worker("one")
    task = await fleet.start("x")
    await claim(fleet, one)
    await change(fleet, "update helmsman_store.tasks set cancel_asked = true where id = %s", task.id)
    await remove_worker(fleet, one)
    await requeue_work(fleet.client.database)
    ended = await fleet.client.get(task.id)
    assert (ended.status, ended.note, ended.completed_at is None) == ("canceled", "It was cancelled.", False)


async def test_a_worker_that_leaves_hands_over_all_it_runs(fleet: Fleet) -> None:
    one, two = await fleet.idle_worker("one"), await fleet.idle_worker("two")
    await finished_turn(fleet, one, "S")
    turns = [await fleet.start("x", session_id="S"), await fleet.start("x")]
    assert len(await claim(fleet, one)) == 2
    await hand_over_tasks(fleet.client.database, one.worker)
    taken = await claim(fleet, two)
    assert [owned.id for owned in taken] == [turn.id for turn in turns], "though machine one is still there"
    assert [owned.row["is_handed_over"] for owned in taken] == [True, True]
    assert {owned.row["queue"] for owned in taken} == {"codex"}


async def test_a_task_is_begun_again_on_the_same_worker_under_a_new_epoch(fleet: Fleet) -> None:
    one = await fleet.idle_worker("one")
    await fleet.start("x")
    (owned,) = await claim(fleet, one)
    again = await owned.claim_again()
    assert again is not None
    assert (again.id, again.epoch) == (owned.id, owned.epoch + 1)
    assert await owned.claim_again() is None
    with pytest.raises(NotOwner):
        await owned.update(note="late")
    await again.update(note="in time")


@pytest.mark.parametrize("began", [False, True])
async def test_a_waiting_task_is_cancelled_at_once_and_the_next_of_its_session_follows(
    fleet: Fleet, began: bool
) -> None:
    one = await fleet.idle_worker("one")
    first, second = await fleet.start("x", session_id="S"), await fleet.start("x", session_id="S")
    if began:
        await claim(fleet, one)
        await hand_over_tasks(fleet.client.database, one.worker)
    async with fleet.client.database.listening("helmsman_workers") as payloads:
        ended = await fleet.client.cancel(first.id)
        assert ended.status == "canceled"
        assert ended.note == ("It was cancelled." if began else "It was cancelled before it began.")
        with anyio.fail_after(SECONDS):
            assert await anext(payloads) == "codex"
    assert await claimed_ids(fleet, one) == [second.id]


async def test_a_deadline_that_passes_in_the_queue_fails_the_task(fleet: Fleet) -> None:
    task, other = await fleet.start("x", deadline=0.0), await fleet.start("x", deadline=60.0)
    await stop_late_tasks(fleet.client.database)
    late = await fleet.client.get(task.id)
    assert (late.status, (late.error or {})["code"]) == ("failed", "deadline_passed")
    assert (await fleet.client.get(other.id)).status == "pending"


async def test_one_key_is_one_task_however_many_ask_at_once(fleet: Fleet) -> None:
    found: list[Task] = []

    async def ask() -> None:
        found.append(await fleet.start("x", idempotency_key="key"))

    async with anyio.create_task_group() as clients:
        for _ in range(8):
            clients.start_soon(ask)
    assert len({task.id for task in found}) == 1
    assert await fleet.client.waiting() == {"codex": 1}


async def test_tasks_that_no_machine_may_run_are_found(fleet: Fleet) -> None:
    silent, one = await fleet.idle_worker("silent"), await fleet.idle_worker("one")
    for _ in range(2):
        await fleet.start("x")
    await fleet.start("x", machine="silent")
    moved = await fleet.start("x")
    await change(fleet, "update helmsman_store.tasks set labels = '{codex:2}' where id = %s", moved.id)
    assert await fleet.client.stranded() == {"codex": 1}
    await change(fleet, "update helmsman.workers set seen = seen - interval '1 hour' where id = %s", silent.worker)
    assert await fleet.client.stranded() == {"codex": 1, "host:silent": 1}
    await change(fleet, "update helmsman.workers set labels = '{codex:2}' where id = %s", one.worker)
    assert await fleet.client.stranded() == {"host:silent": 1}


class Worker:
    """A consumer that finishes each task once it may."""

    def __init__(self, fleet: Fleet, offer: MachineOffer, capacity: int = 4) -> None:
        self.begun: list[OwnedTask] = []
        self.may_finish = anyio.Event()
        self.fails = False
        self.leaves = False
        self.changed = anyio.Event()
        self.queue = QueueConsumer(
            fleet.client.database, lambda: offer, self._run, capacity=capacity, is_leaving=lambda: self.leaves
        )

    async def _run(self, owned: OwnedTask) -> None:
        self.begun.append(owned)
        self.changed.set()
        self.changed = anyio.Event()
        if self.fails:
            raise ZeroDivisionError
        await self.may_finish.wait()
        await owned.finish({"status": "completed"})

    async def until_begun(self, count: int) -> None:
        with anyio.fail_after(SECONDS):
            while len(self.begun) < count:
                await self.changed.wait()


async def test_a_worker_claims_no_more_than_its_capacity_and_nothing_when_it_leaves(fleet: Fleet) -> None:
    tasks = [await fleet.start("x") for _ in range(5)]
    worker = Worker(fleet, await fleet.idle_worker("one"), capacity=2)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.queue.consume)
        await worker.until_begun(2)
        assert len(worker.queue.running) == 2
        worker.may_finish.set()
        await worker.until_begun(5)
        for task in tasks:
            await fleet.ended(task)
        worker.leaves = True
        await fleet.start("x")
        worker.queue.wake()
        while worker.queue.running:
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert sorted(one.id for one in worker.begun) == sorted(task.id for task in tasks)
    assert await fleet.client.waiting() == {"codex": 1}


async def test_a_worker_continues_claiming_after_its_connections_were_cut(fleet: Fleet) -> None:
    worker = Worker(fleet, await fleet.idle_worker("one"))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.queue.consume)
        first = await fleet.start("x")
        worker.queue.wake()
        await worker.until_begun(1)
        with psycopg.connect(fleet.url, autocommit=True) as connection:
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
        second = await fleet.start("x")
        worker.queue.wake()
        await worker.until_begun(2)
        worker.may_finish.set()
        for task in (first, second):
            assert (await fleet.ended(task)).status == "completed"
        group.cancel_scope.cancel()


async def test_a_task_whose_run_breaks_returns_to_the_queue_and_the_worker_lives(fleet: Fleet) -> None:
    worker = Worker(fleet, await fleet.idle_worker("one"))
    worker.fails = True
    async with anyio.create_task_group() as group:
        group.start_soon(worker.queue.consume)
        task = await fleet.start("x")
        worker.queue.wake()
        await worker.until_begun(1)
        worker.fails = False
        worker.may_finish.set()
        while worker.queue.running:
            await anyio.sleep(0.01)
        assert (await fleet.client.get(task.id)).status == "working"
        with anyio.fail_after(SECONDS):
            while (await fleet.client.get(task.id)).status == "working" and len(worker.begun) < 2:
                await worker.queue.return_strays()  # not while it claims
        worker.queue.wake()
        await worker.until_begun(2)
        assert (await fleet.ended(task)).status == "completed"
        group.cancel_scope.cancel()
    assert [one.epoch for one in worker.begun] == [1, 2]


async def test_a_claim_whose_answer_is_on_its_way_is_not_taken_for_lost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(fleet, await fleet.idle_worker("one"))
    claimed, may_answer, claim_now = anyio.Event(), anyio.Event(), OwnedTask.claim

    async def slow(*arguments: Any) -> Any:
        answer = await claim_now(*arguments)
        claimed.set()
        await may_answer.wait()
        return answer

    monkeypatch.setattr(OwnedTask, "claim", slow)
    task = await fleet.start("x")
    async with anyio.create_task_group() as group:
        group.start_soon(worker.queue.consume)
        with anyio.fail_after(SECONDS):
            await claimed.wait()
        await worker.queue.return_strays()
        may_answer.set()
        worker.may_finish.set()
        assert (await fleet.ended(task)).status == "completed"
        group.cancel_scope.cancel()
    assert [one.epoch for one in worker.begun] == [1]


def remark(text: str) -> NewEvent:
    return NewEvent.of(Notice(session_id="s", kind="engine", message=text))


async def remarks(fleet: Fleet, task: Task) -> list[str]:
    stored = await fleet.client.log(str(task.session_id))
    return [event.message for event in stored.events if isinstance(event, Notice)]


async def test_the_log_of_a_session_has_its_tasks_in_order(fleet: Fleet) -> None:
    database, one = fleet.client.database, await fleet.idle_worker("one")
    first = await fleet.start("first", session_id="S")
    second = await fleet.start("second", session_id="S")
    stopped = await fleet.start("stopped", session_id="S")
    assert await fleet.client.last_begun("S") == (None, 0)
    [owned], _ = await OwnedTask.claim(database, one, 1)
    await owned.add_events([remark("a"), remark("b")])
    assert await remarks(fleet, first) == ["a", "b"]
    await owned.finish({"status": "completed", "result": "done"})
    page = await fleet.client.log("S")
    assert page.events[-1] == TurnEnded(session_id="S", outcome="completed", final_message="done")
    assert page.cursor == len(page.events) == 3
    assert (await fleet.client.log("S", page.cursor)).events == ()
    assert await fleet.client.last_begun("S") == (first.id, 0)

    [owned], _ = await OwnedTask.claim(database, one, 1)
    await owned.add_events([remark("c")])
    await fleet.client.cancel(stopped.id)
    later = await fleet.client.log("S", page.cursor)
    assert [event.message for event in later.events if isinstance(event, Notice)] == ["c"]
    assert await fleet.client.last_begun("S") == (first.id, 0)
    await owned.finish({"status": "completed"})
    assert await fleet.client.last_begun("S") == (second.id, page.cursor)


async def test_events_are_appended_once_however_often_that_is_tried(fleet: Fleet) -> None:
    database = fleet.client.database
    task = await fleet.start("work")
    [owned], _ = await OwnedTask.claim(database, await fleet.idle_worker("one"), 1)
    await owned.add_events([remark("a")])
    owned.logged = 0  # the answer of the database was lost
    await owned.add_events([remark("a")])
    late = OwnedTask(database, owned.row, 0)  # an earlier attempt wrote more than was known at the claim
    await late.add_events([remark("b"), remark("c")])
    assert await remarks(fleet, task) == ["a", "b", "c"]


async def test_images_arrive_whole_and_in_order(fleet: Fleet, tmp_path: Path) -> None:
    contents = [bytes([number]) * (700_000 if number == 2 else 10) for number in range(12)]
    images = [tmp_path / f"{number}.PNG" for number in range(len(contents))]
    for image, content in zip(images, contents, strict=True):
        image.write_bytes(content)
    await fleet.start("x", bundles=image_bundles(images))
    (owned,) = await claim(fleet, await fleet.idle_worker("one"))
    placed = await place_images(owned, tmp_path / "there")
    assert [path.read_bytes() for path in placed] == contents
    assert {path.suffix for path in placed} == {".png"}
    os.truncate(images[0], MOST_BYTES)
    with pytest.raises(InvalidInput, match="images are larger than 8 MiB"):
        image_bundles(images)


async def test_a_task_that_becomes_visible_after_a_later_one_is_news_all_the_same(fleet: Fleet) -> None:
    """Machines store tasks at the same time, and a number says nothing about which commit comes first."""
    client = fleet.client
    first = await fleet.start("x", session_id="S")
    newest, _, newer = await client.news(None)
    assert newer == set()
    await fleet.start("x", session_id="T")
    later, _, newer = await client.news(newest)
    assert later == newest + 1
    assert newer == {"S", "T"}
    assert (await client.news(later))[2] == {"S", "T"}
    await change(fleet, "update helmsman_store.tasks set created_at = created_at - 60000000 where id = %s", first.id)
    assert (await client.news(later))[2] == {"T"}
