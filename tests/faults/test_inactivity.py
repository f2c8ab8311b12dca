"""Tests of limits on silence for unattended work, and in the engine with a process per turn."""

from __future__ import annotations

import pytest

from helmsman.base.structs import replace
from helmsman.capabilities import all_tasks
from helmsman.model.events import OptionsChanged
from helmsman.model.options import TurnLimits
from helmsman.service import HelmsmanService
from helmsman.tasks.model import Task
from helmsman.testing import hang, run, say
from tests.faults.scene import SECONDS, Scene, bound

pytestmark = [pytest.mark.anyio, bound]


async def ended(helm: HelmsmanService, task_id: str) -> Task:
    task = await helm.tasks.get(task_id)
    return await helm.tasks.wait(task, timeout=SECONDS)


@pytest.mark.parametrize("step", ["first", "later"])
async def test_a_silent_turn_of_the_exec_engine_is_ended_and_the_session_continues(scene: Scene, step: str) -> None:
    scene.model.on("first", hang())
    scene.model.on("later", run("true"), hang())
    scene.settings = replace(scene.settings, engine="exec")
    limits = TurnLimits(first_event=SECONDS if step == "later" else 1.0, inactivity=1.0)
    async with scene.helmsman() as helm:
        session = await helm.start(step, cwd=scene.repo, limits=limits)
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.error is not None
        assert (session.status, session.error.code) == ("error", "turn_timed_out")
        assert (await helm.tasks.get(session.task_ids[-1])).status == "failed"
        session.apply(OptionsChanged(session_id=session.id, limits=TurnLimits()))
        await scene.next_session_works(helm, after=session)


async def test_tasks_have_limits_of_their_own_and_sessions_have_none(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_tasks, "FIRST_EVENT_SECONDS", 0.5)
    scene.model.on("hang", hang())
    async with scene.helmsman() as helm:
        session = await helm.start("hang", cwd=scene.repo)
        task = await ended(helm, await helm.tasks.local.run("hang", cwd=scene.repo))
        assert task.status == "failed"
        assert task.error is not None
        assert task.error["code"] == "turn_timed_out"
        assert session.state.is_running
        assert not session.state.limits.on_silence


async def test_the_settings_limit_tasks_too_and_their_follow_ups(scene: Scene) -> None:
    scene.settings = replace(scene.settings, inactivity_timeout=2)
    scene.model.on("say", say("Hello."))
    scene.model.on("stop", run("true"), hang())
    async with scene.helmsman() as helm:
        first = await ended(helm, await helm.tasks.local.run("say", cwd=scene.repo))
        assert first.status == "completed"
        second = await ended(helm, await helm.tasks.local.follow_up(first.session_id or "", "stop"))
        assert second.status == "failed"
        assert second.error is not None
        assert "nothing more" in second.error["message"]
