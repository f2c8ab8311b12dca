"""The wall clock jumps, as it does when a laptop wakes up or somebody corrects it: nothing that waits is affected.

What waits (approvals, limits on silence, idle engines) goes by the monotonic clock; the wall clock only says when
something happened, and how long a result is kept.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from helmsman.agents.codex.watching import CodexWatcher
from helmsman.agents.protocol import RecordedTurn
from helmsman.agents.supervisor.process import Idleness
from helmsman.approvals import audit
from helmsman.base.processes import Process
from helmsman.model.options import TurnLimits
from helmsman.sessions import session
from helmsman.steering import recovery
from helmsman.steering.turn_recovery import GRACE, reconcile
from helmsman.tasks import registry as registry_module
from helmsman.tasks import writer as task_writer
from helmsman.tasks.model import Task, TaskDraft, new_task_id
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import run, say
from tests.faults.scene import SECONDS, Scene, bound

FAR = timedelta(days=3650)


class WallClock(datetime):
    """Wall clock that a test sets."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> type[WallClock]:
    monkeypatch.setattr(WallClock, "ahead", timedelta())
    for module in (task_writer, recovery, audit, session, registry_module):
        monkeypatch.setattr(module, "datetime", WallClock)
    return WallClock


@bound
@pytest.mark.anyio
@pytest.mark.parametrize("jump", [FAR, -FAR], ids=["forward", "back"])
async def test_a_jump_in_a_turn_answers_no_question_and_ends_no_turn(
    scene: Scene, wall_clock: type[WallClock], jump: timedelta
) -> None:
    scene.model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    async with scene.helmsman() as helm:
        session = await helm.start(
            "touch",
            cwd=scene.repo,
            sandbox="workspace-write",
            approval_policy="on-request",
            limits=TurnLimits(first_event=SECONDS, inactivity=SECONDS),
        )
        assert await session.wait(until="attention", timeout=SECONDS)
        wall_clock.ahead = jump
        assert not await session.wait(until="end", timeout=0.3)
        (question,) = session.questions
        assert (await helm.tasks.get(session.task_ids[-1])).input_required
        await session.respond(question.id, "approve")
        assert await session.wait(until="end", timeout=SECONDS)
        assert (session.status, session.result) == ("done", "made")
        assert session.turn_seconds is not None
        assert 0 <= session.turn_seconds < SECONDS
        task = await helm.tasks.get(session.task_ids[-1])
        assert (task.status, task.result) == ("completed", "made")
        await scene.next_session_works(helm, after=session)


def working(updated_at: datetime) -> Task:
    return Task(
        id=new_task_id("local"),
        origin="local",
        alias="a-task",
        instruction="work",
        status="working",
        owner=Process(1, "long ago"),
        session_id="s",
        turn_id="t",
        created_at=updated_at,
        updated_at=updated_at,
    )


@pytest.mark.parametrize("turn", [None, RecordedTurn(outcome="open", turn_id="t")], ids=["no record", "an open turn"])
def test_a_task_whose_last_sign_lies_in_the_future_does_not_work_for_ever(turn: RecordedTurn | None) -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    assert reconcile(working(now + GRACE / 2), turn, now, "Codex") is None  # clocks differ a little
    changes = reconcile(working(now + FAR), turn, now, "Codex")
    assert changes is not None
    assert changes["status"] in ("failed", "unknown")


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 15, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def test_a_jump_drops_no_task_that_runs_and_a_result_only_once_its_time_is_up(tmp_path: Path) -> None:
    clock = Clock()
    tasks = Registry(tmp_path / "state" / REGISTRY_NAME, clock=clock)
    try:
        running, _ = tasks.add(TaskDraft(instruction="runs"))
        ended, _ = tasks.add(TaskDraft(instruction="ended"))
        tasks.update(running.id, status="working")
        tasks.update(ended.id, status="completed", result="It is done.")
        clock.now -= FAR
        tasks.compact()
        assert [(task.id, task.result) for task in tasks.list()[0]] == [(ended.id, "It is done."), (running.id, None)]
        earlier, _ = tasks.add(TaskDraft(instruction="made in the past"))
        assert tasks.get(earlier.id) is not None
        clock.now += 2 * FAR
        tasks.compact()
        kept = tasks.get(running.id)
        assert kept is not None
        assert kept.status == "working"
    finally:
        tasks.close()


def test_an_idle_engine_ends_by_the_monotonic_clock_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idleness = Idleness(tmp_path, CodexWatcher(), 900.0)
    monkeypatch.setattr("time.time", lambda: FAR.total_seconds() * 10)
    assert not idleness.may_end(nobody_attached=True)
