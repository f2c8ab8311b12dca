"""Tests of turns that reach the account's usage limit: they resume automatically, or not, as requested."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings, run_step
from helmsman.agents.protocol import Begun
from helmsman.base.json_values import iso_time
from helmsman.base.structs import replace
from helmsman.capabilities.limits import waits_until
from helmsman.errors import InvalidInput, StepFailed
from helmsman.model.events import USAGE_LIMIT, Failure, Usage, UsageReported
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.shapes.session_status import session_status
from helmsman.steering.recovery import Recovery, WaitingTasks
from helmsman.steering.shared import Shared
from helmsman.store.database import Fence
from helmsman.tasks.model import Task
from tests.played import PlayedAgent, PlayedEngine
from tests.turns import asked

pytestmark = pytest.mark.anyio

SECONDS = 20
REACHED = Failure(code=USAGE_LIMIT, message="The limit is reached.")


@pytest.fixture
def agent() -> PlayedAgent:
    return PlayedAgent()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    chosen = {"default_agent": "played", "state_dir": str(tmp_path / "state"), "max_sessions": 1}
    return load_settings(chosen, {}, tmp_path)


async def until(helm: HelmsmanService, session: Session, is_so: Callable[[Task], bool]) -> Task:
    """The newest task of a session, once it is so."""
    with anyio.fail_after(SECONDS):
        while not is_so(task := (await helm.tasks.of_sessions([session.id]))[session.id][0]):
            await anyio.sleep(0.01)
    return task


def is_waiting(task: Task) -> bool:
    return task.waiting_for is not None


async def test_a_task_that_waits_holds_no_slot_and_continues_in_its_thread_as_the_same_task(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    agent.limit_is_there_at = datetime.now(UTC) + timedelta(hours=1)
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path, on_limit="wait")
        (engine,) = agent.engines
        engine.emit(UsageReported(session_id=session.id, last=Usage(10, 0, 5, 0)))
        engine.end("failed", REACHED)
        task = await until(helm, session, is_waiting)
        assert (task.status, task.waiting_for, task.resumes_at) == ("working", "quota", agent.limit_is_there_at)
        assert [due.about.split()[:2] for due in await helm.notices.due()] == [["limit", task.id]]
        other = await helm.start("other work", cwd=tmp_path)  # there is room for one
        engine.end("completed")
        await until(helm, other, lambda one: one.status == "completed")

        moved = await helm.extras.limits.go_on(task, "in 90 minutes")
        assert moved.note == waits_until(moved.resumes_at or datetime.now(UTC))
        assert session_status(session).resumes_at == iso_time(moved.resumes_at)

        went_on = await helm.extras.limits.go_on(task)
        assert went_on.id == task.id
        await until(helm, session, lambda one: one.waiting_for is None)
        assert engine.session_id == session.id
        engine.emit(UsageReported(session_id=session.id, last=Usage(7, 0, 3, 0)))
        engine.end("completed")
        done = await until(helm, session, lambda one: one.has_ended)
        assert (done.id, done.status, done.note, done.resumes_at) == (task.id, "completed", None, None)
        assert done.usage == Usage(17, 0, 8, 0), "of both turns"
        usages = await helm.task_writer.registry(lambda registry: registry.turn_usages())
        assert [one.before for one in usages if one.session_id == session.id] == [Usage(10, 0, 5, 0)]


async def test_it_continues_by_itself_when_the_limit_is_there_again(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path, on_limit="wait")
        agent.limit_is_there_at = datetime.now(UTC) + timedelta(seconds=0.3)  # still ahead when the turn ends
        first = session.state.turn_id
        agent.engines[-1].end("failed", REACHED)
        with anyio.fail_after(SECONDS):
            while not session.state.is_running or session.state.turn_id in (None, first):
                await session.feed.changed()
        agent.engines[-1].end("completed")
        (task,) = (await helm.tasks.list())[0]
        assert (await until(helm, session, lambda one: one.has_ended)).id == task.id


@pytest.mark.parametrize(
    ("heard", "said", "least", "most"),
    [
        ("at once", timedelta(days=-1), 50, 70),  # or it would be reached again and again
        ("at once", None, 3500, 3700),
        ("hours later", timedelta(days=-1), -90000, 0),  # it is over
        ("hours later", None, -7300, 0),
    ],
)
async def test_it_is_waited_for_as_long_as_makes_sense(
    agent: PlayedAgent, settings: Settings, tmp_path: Path, heard: str, said: timedelta | None, least: int, most: int
) -> None:
    now = datetime.now(UTC)
    agent.limit_is_there_at = None if said is None else now + said
    failure = REACHED if heard == "at once" else replace(REACHED, at=now - timedelta(hours=3))
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path, on_limit="wait")
        agent.engines[-1].end("failed", failure)
        (queued,) = session.queue
        assert queued.not_before is not None
        assert least <= (queued.not_before - now).total_seconds() <= most


async def test_the_user_is_asked_at_a_limit_and_a_no_ends_the_turn(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    agent.limit_is_there_at = datetime.now(UTC) + timedelta(hours=2)
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path)
        agent.engines[-1].end("failed", REACHED)
        question = await asked(session)
        assert "Usage limit" in question.prompts[0].text
        assert question.prompts[0].options == ("wait", "stop")
        await helm.respond(session.id, question.id, ["stop"])
        task = await until(helm, session, lambda one: one.has_ended)
        assert task.status == "failed"
        assert task.error is not None
        assert task.error["code"] == USAGE_LIMIT


async def test_the_user_is_asked_at_a_limit_and_after_a_yes_the_turn_waits(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    agent.limit_is_there_at = datetime.now(UTC) + timedelta(hours=2)
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path)
        agent.engines[-1].end("failed", REACHED)
        await asked(session)
        await helm.respond(session.id, session.questions[0].id, ["wait"])
        task = await until(helm, session, is_waiting)
        assert not task.input_required
        moved = await helm.extras.limits.go_on(task, "in 3h")
        assert moved.resumes_at is not None
        assert moved.resumes_at > agent.limit_is_there_at
        cancelled, message = await helm.tasks.cancel(task)
        assert (cancelled.status, "not begun" in message) == ("canceled", False)
        assert session.queue == ()
        with pytest.raises(InvalidInput, match="does not wait"):
            await helm.extras.limits.go_on(cancelled)


async def test_on_limit_fail_reports_the_failure_at_once(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path, on_limit="fail")
        agent.engines[-1].end("failed", REACHED)
        assert (await until(helm, session, lambda one: one.has_ended)).status == "failed"
        with pytest.raises(InvalidInput, match="Use one of: ask, wait, fail"):
            await helm.start("work", cwd=tmp_path, on_limit="perhaps")  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["the client that began it", "another"])
async def test_an_interrupt_of_an_open_question_is_a_no(
    agent: PlayedAgent, settings: Settings, tmp_path: Path, by: str
) -> None:
    async with (
        Shared(settings.state_dir, [agent]) as shared,
        HelmsmanService(settings, shared=shared) as one,
        HelmsmanService(settings, shared=shared) as other,
    ):
        session = await one.start("work", cwd=tmp_path)
        agent.engines[-1].end("failed", REACHED)
        await asked(session)
        stopping = other if by == "another" else one
        await stopping.interrupt(session.id)
        assert not session.questions
        assert (await until(stopping, session, lambda one: one.has_ended)).status == "failed"


async def test_a_hub_that_has_just_begun_knows_what_waits_before_it_moves_or_stops_it(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    agent.limit_is_there_at = datetime.now(UTC) + timedelta(hours=1)
    async with hub(agent, settings, 1) as (helm, recovery):
        helm.in_background(recovery.run)
        sessions = [await limited(helm, agent, tmp_path) for _ in range(2)]
        tasks = [await until(helm, session, is_waiting) for session in sessions]

    async with hub(agent, settings, 2) as (helm, recovery), anyio.create_task_group() as asking:
        asking.start_soon(helm.extras.limits.go_on, tasks[0])
        asking.start_soon(helm.interrupt, sessions[1].id)
        await anyio.wait_all_tasks_blocked()
        helm.in_background(recovery.run)
        await until(helm, sessions[0], lambda task: not is_waiting(task))
        assert (await until(helm, sessions[1], lambda task: task.has_ended)).status == "canceled"


@asynccontextmanager
async def hub(agent: PlayedAgent, settings: Settings, epoch: int) -> AsyncIterator[tuple[HelmsmanService, Recovery]]:
    """A hub with one client, which has yet to read what the one before left."""
    async with (
        Shared(settings.state_dir, [agent], fence=Fence(epoch, print)) as shared,
        HelmsmanService(settings, shared=shared) as helm,
    ):
        yield helm, Recovery(shared, WaitingTasks(shared, HelmsmanService))


async def limited(helm: HelmsmanService, agent: PlayedAgent, directory: Path) -> Session:
    """Session whose turn has just ended at a usage limit."""
    session = await helm.start("work", cwd=directory, on_limit="wait")
    agent.engines[-1].end("failed", REACHED)
    return session


async def test_an_unsent_message_is_sent_in_its_session_by_the_next_hub(
    agent: PlayedAgent, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlayedEngine, "id", "kept")
    monkeypatch.setattr(PlayedEngine, "input_position", lambda _self, _session_id: "kept 3")
    agent.limit_is_there_at = datetime.now(UTC) + timedelta(hours=1)
    async with hub(agent, settings, 1) as (helm, _):
        session = await helm.start("work", cwd=tmp_path, on_limit="wait")
        agent.engines[-1].emit(UsageReported(session_id=session.id, last=Usage(10, 0, 5, 0)))
        agent.engines[-1].end("failed", REACHED)
        task = await until(helm, session, is_waiting)

        async def never(*_: object) -> Begun:
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(PlayedEngine, "run_turn", never)  # as if the hub died just before
        await helm.extras.limits.go_on(task)
        task = await until(helm, session, lambda one: one.input_position is not None and one.waiting_for is None)
        again = await helm.recovery.requeue(task)
        assert again is not None
        assert (again.is_waiting, again.session_id) == (True, session.id)
        assert helm.task_writer.used_before(task.id) == Usage(10, 0, 5, 0)


async def test_the_next_hub_knows_a_waiting_turn_whose_limit_was_reached_at_once(
    agent: PlayedAgent, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlayedEngine, "id", "kept")
    monkeypatch.setattr(PlayedEngine, "input_position", lambda _self, _session_id: "kept 3")
    agent.limit_is_there_at = datetime.now(UTC) + timedelta(hours=1)
    async with hub(agent, settings, 1) as (helm, _):
        session = await helm.start("work", cwd=tmp_path, on_limit="wait")
        (engine,) = agent.engines
        engine.end("completed")
        engine.at_once = lambda: engine.end("failed", REACHED)
        await helm.say(session.id, "more work")
        task = await until(helm, session, is_waiting)
        assert (task.instruction, task.input_position) == ("more work", None)
        assert task.spec is not None


async def test_a_step_whose_turn_continues_later_has_failed_and_names_the_task_that_does(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    agent.limit_is_there_at = datetime.now(UTC) + timedelta(hours=2)

    async def reach_it(helm: HelmsmanService) -> None:
        while not any(session.state.is_running for session in helm.sessions.values()):
            await anyio.sleep(0.01)
        agent.engines[-1].end("failed", REACHED)

    async with HelmsmanService(settings, agents=[agent]) as helm, anyio.create_task_group() as tasks:
        tasks.start_soon(reach_it, helm)
        with anyio.fail_after(SECONDS), pytest.raises(StepFailed, match="resumes at") as failed:
            await run_step("work", cwd=tmp_path, on_limit="wait", helm=helm)
        (session,) = helm.sessions.values()
        assert failed.value.details["goes_on"] == session.task_id
