"""What is due is begun, once, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.capabilities.schedules import Schedules
from helmsman.errors import InvalidInput, ScheduleNotFound, Unsupported
from helmsman.hub.scheduler import Scheduler
from helmsman.schedules.due import begin_run
from helmsman.schedules.store import ScheduleRun
from helmsman.service import HelmsmanService
from helmsman.steering.recovery import Recovery, WaitingTasks
from helmsman.steering.shared import Shared
from helmsman.store.database import Fence
from helmsman.tasks.model import Task
from tests.played import PlayedAgent, PlayedEngine

pytestmark = pytest.mark.anyio

SECONDS = 20


class Clock:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self._moved = anyio.Event()

    def __call__(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        until = self.now + timedelta(seconds=seconds)
        while self.now < until:
            await self._moved.wait()

    def move(self, to: datetime) -> None:
        self.now = to
        moved, self._moved = self._moved, anyio.Event()
        moved.set()


class House:
    """A hub's service without its process."""

    def __init__(
        self, shared: Shared, helm: HelmsmanService, clock: Clock, agent: PlayedAgent, scheduler: Scheduler
    ) -> None:
        self.shared, self.helm, self.clock, self.agent = shared, helm, clock, agent
        self.scheduler = scheduler
        self.scheduling = anyio.CancelScope()

    @property
    def schedules(self) -> Schedules:
        return self.helm.extras.schedules

    @property
    def engine(self) -> PlayedEngine:
        return self.agent.engines[-1]

    async def schedule(self) -> None:
        """Run the scheduler until it is stopped."""
        with self.scheduling:
            await self.scheduler.run()

    async def tasks(self) -> list[Task]:
        """All of them, oldest first."""
        return list(reversed((await self.helm.tasks.list())[0]))

    async def runs(self, schedule_id: str, number: int) -> tuple[ScheduleRun, ...]:
        """Its runs, newest first, once there are so many."""
        with anyio.fail_after(SECONDS):
            while len(runs := await self.schedules.runs(schedule_id)) < number:
                await anyio.sleep(0.01)
        assert len(runs) == number
        return runs

    async def until(self, is_so: Callable[[list[Task]], bool]) -> list[Task]:
        with anyio.fail_after(SECONDS):
            while not is_so(tasks := await self.tasks()):
                await anyio.sleep(0.01)
        return tasks

    async def working(self, number: int = 1) -> list[Task]:
        return await self.until(
            lambda tasks: [task.status for task in tasks][-1:] == ["working"] and len(tasks) == number
        )


@asynccontextmanager
async def opened(state_dir: Path, clock: Clock, **settings: Any) -> AsyncIterator[House]:
    chosen = load_settings({"default_agent": "played", "state_dir": str(state_dir), **settings}, {}, state_dir)
    agent = PlayedAgent()

    def replaced(epoch: int) -> None:
        raise AssertionError(epoch)

    async with Shared(state_dir, [agent], fence=Fence(1, replaced)) as shared:
        waiting_tasks = WaitingTasks(shared, HelmsmanService)
        recovery = Recovery(shared, waiting_tasks)
        shared.schedules.clock = clock
        scheduler = Scheduler(shared, waiting_tasks, clock.sleep)
        shared.tasks.start_soon(recovery.run)
        async with HelmsmanService(chosen, shared=shared) as helm:
            house = House(shared, helm, clock, agent, scheduler)
            shared.tasks.start_soon(house.schedule)
            yield house


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
async def house(state_dir: Path) -> AsyncIterator[House]:
    async with opened(state_dir, Clock()) as house:
        yield house


async def test_a_run_begins_when_it_is_due_and_is_a_task_like_any_other(house: House, tmp_path: Path) -> None:
    added = await house.schedules.add("look at it", every="2h", cwd=tmp_path)
    assert added.next_at is not None
    house.clock.move(added.next_at - timedelta(seconds=1))
    assert await house.tasks() == []
    house.clock.move(added.next_at)
    (task,) = await house.working()
    assert (task.instruction, task.directory) == ("look at it", str(tmp_path))
    (run,) = await house.runs(added.id, 1)
    assert (run.task_id, run.due_at, run.note) == (task.id, added.next_at, None)
    house.engine.end("completed")
    await house.until(lambda tasks: tasks[0].status == "completed")
    house.clock.move(added.next_at + timedelta(hours=2))
    assert len(await house.working(2)) == 2


async def test_times_that_the_machine_slept_through_are_made_up_for_once_or_not_at_all(
    house: House, tmp_path: Path
) -> None:
    once = await house.schedules.add("once", every="1h", cwd=tmp_path)
    never = await house.schedules.add("never", every="1h", cwd=tmp_path, missed="skip")
    assert once.next_at is not None
    assert never.next_at is not None
    house.clock.move(max(once.next_at, never.next_at) + timedelta(hours=5, minutes=30))
    (made_up,) = await house.runs(once.id, 1)
    (left_out,) = await house.runs(never.id, 1)
    assert made_up.due_at == once.next_at + timedelta(hours=5)
    assert (left_out.task_id, left_out.note) == (None, "The machine was off or asleep when it was due.")
    assert [task.instruction for task in await house.working()] == ["once"]
    following = (await house.schedules.get(never.id)).next_at
    assert following == never.next_at + timedelta(hours=6)


async def test_a_run_is_left_out_while_the_one_before_still_works_unless_both_are_wanted(
    house: House, tmp_path: Path
) -> None:
    alone = await house.schedules.add("alone", every="1h", cwd=tmp_path)
    both = await house.schedules.add("both", every="1h", cwd=tmp_path, overlap=True)
    assert both.next_at is not None
    house.clock.move(both.next_at)
    await house.until(lambda tasks: [task.status for task in tasks] == ["working", "working"])
    house.clock.move(both.next_at + timedelta(hours=1))
    left_out, _ = await house.runs(alone.id, 2)
    assert (left_out.task_id, left_out.note) == (None, "The run before was still at work.")
    await house.runs(both.id, 2)
    await house.until(lambda tasks: [task.instruction for task in tasks].count("both") == 2)
    house.clock.move(both.next_at + timedelta(hours=2))
    assert [run.task_id for run in (await house.runs(alone.id, 3))[:2]] == [None, None], (
        "that one was left out changes nothing"
    )


async def test_a_schedule_paused_or_started_during_a_tick_is_not_started_again(house: House, tmp_path: Path) -> None:
    due = await house.schedules.add("due", every="1h", cwd=tmp_path)
    paused = await house.schedules.add("paused", every="1h", cwd=tmp_path)
    assert due.next_at is not None
    await house.schedules.pause(paused.id)
    house.clock.move(due.next_at)
    await house.working()

    async def begun(task: Task) -> None:
        raise AssertionError(task)

    begin = partial(begin_run, now=house.clock.now, enter=house.shared.task_writer.registry, begun=begun)
    await begin(house.shared.schedules, paused)  # as it was when it was read
    await house.scheduler.run_now(due)
    await begin(house.shared.schedules, due)
    following = {one.id: one.next_at for one in await house.schedules.list()}
    assert following == {due.id: due.next_at + timedelta(hours=1), paused.id: None}
    assert [task.instruction for task in await house.tasks()] == ["due", "due"]


async def test_a_paused_schedule_starts_nothing_and_continues_with_its_next_time(house: House, tmp_path: Path) -> None:
    added = await house.schedules.add("work", every="1h", cwd=tmp_path)
    assert (await house.schedules.pause(added.id)).next_at is None
    house.clock.move(house.clock.now + timedelta(hours=3))
    resumed = await house.schedules.resume(added.id)
    assert added.next_at is not None
    assert resumed.next_at == added.next_at + timedelta(hours=3)
    assert await house.schedules.runs(added.id) == ()
    assert await house.tasks() == []


async def test_one_can_be_run_at_once_and_keeps_its_times(house: House, tmp_path: Path) -> None:
    added = await house.schedules.add("work", cron="0 7 * * *", cwd=tmp_path)
    task = await house.schedules.run_now(added.id[:5])
    assert [one.id for one in await house.working()] == [task.id]
    assert (await house.schedules.get(added.id)).next_at == added.next_at


async def test_a_schedule_that_is_due_once_ends_after_its_run_and_can_be_removed(house: House, tmp_path: Path) -> None:
    added = await house.schedules.add("work", at="in 10 minutes", cwd=tmp_path)
    assert added.next_at is not None
    house.clock.move(added.next_at + timedelta(hours=1))
    await house.runs(added.id, 1)
    (kept,) = await house.schedules.list()
    assert (kept.id, kept.next_at, kept.is_paused) == (added.id, None, False)
    await house.schedules.remove(added.id)
    assert await house.schedules.list() == ()
    with pytest.raises(ScheduleNotFound, match=added.id):
        await house.schedules.get(added.id)
    assert len(await house.tasks()) == 1


async def test_a_question_that_is_not_answered_in_the_configured_time_fails_the_run(
    state_dir: Path, tmp_path: Path
) -> None:
    async with opened(state_dir, Clock(), approval_timeout_ms=200) as house:
        added = await house.schedules.add("work", every="1h", cwd=tmp_path)
        await house.schedules.run_now(added.id)
        await house.working()
        house.engine.ask()
        (task,) = await house.until(lambda tasks: tasks[0].has_ended)
        assert task.status == "failed"
        assert task.error is not None
        assert task.error["code"] == "unanswered"
        assert "ls" in task.error["message"]


async def test_a_run_whose_question_timed_out_just_before_its_hub_ended_is_failed_by_the_next(
    state_dir: Path, tmp_path: Path
) -> None:
    async with opened(state_dir, Clock(), approval_timeout_ms=200) as house:
        added = await house.schedules.add("work", every="1h", cwd=tmp_path)
        await house.schedules.run_now(added.id)
        (task,) = await house.working()
        house.scheduling.cancel()  # the hub ends before it reads of the timeout
        house.engine.ask()
        session = await house.helm.session(task.session_id or "")
        with anyio.fail_after(SECONDS):
            while not session.state.timed_out:
                await session.feed.changed()
        assert session.state.is_running
        house.shared.tasks.start_soon(Scheduler(house.shared, house.scheduler._waiting_tasks, house.clock.sleep).run)
        (task,) = await house.until(lambda tasks: tasks[0].has_ended)
        assert (task.status, (task.error or {})["code"]) == ("failed", "unanswered")


async def test_questions_of_runs_wait_until_they_are_answered(house: House, tmp_path: Path) -> None:
    added = await house.schedules.add("work", every="1h", cwd=tmp_path)
    assert added.policy["approvalTimeout"] is None


async def test_the_next_hub_runs_due_and_queued_schedules_once(state_dir: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(state_dir, clock) as house:
        due = await house.schedules.add("due", every="1h", cwd=tmp_path)
        assert due.next_at is not None
    clock.now = due.next_at + timedelta(minutes=1)
    async with opened(state_dir, clock) as house:
        (task,) = await house.working()
        (run,) = await house.runs(due.id, 1)
        assert run.task_id == task.id
        house.engine.end("completed")
        await house.until(lambda tasks: tasks[0].status == "completed")
    async with opened(state_dir, clock) as house:
        assert (await house.schedules.get(due.id)).next_at == due.next_at + timedelta(hours=1)
        assert len(await house.tasks()) == 1


async def test_schedules_outside_the_allowed_roots_cannot_be_seen_or_changed(state_dir: Path, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    clock = Clock()
    async with opened(state_dir, clock) as house:
        there = await house.schedules.add("there", every="1h", cwd=outside)
        roots = load_settings(
            {"default_agent": "played", "state_dir": str(state_dir), "allowed_roots": [str(inside)]}, {}, state_dir
        )
        async with HelmsmanService(roots, shared=house.shared) as helm:
            confined = helm.extras.schedules
            assert await confined.list() == ()
            for use in (confined.get, confined.pause, confined.run_now, confined.remove, confined.runs):
                with pytest.raises(InvalidInput, match="outside the allowed roots"):
                    await use(there.id)
            with pytest.raises(InvalidInput, match="outside the allowed roots"):
                await confined.add("out", every="1h", cwd=outside)


async def test_a_schedule_with_a_secret_in_it_is_not_written_down(house: House, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="secret"):
        await house.schedules.add(f"use sk-proj-{'a1B2' * 12}", every="1h", cwd=tmp_path)
    assert await house.schedules.list() == ()


async def test_without_a_hub_it_is_refused(tmp_path: Path) -> None:
    settings = load_settings({"default_agent": "played", "state_dir": str(tmp_path / "state")}, {}, tmp_path)
    async with HelmsmanService(settings, agents=[PlayedAgent()]) as helm:
        with pytest.raises(Unsupported, match="run by the hub"):
            await helm.extras.schedules.add("work", every="1h", cwd=tmp_path)
