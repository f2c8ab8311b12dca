"""A turn that stays silent for too long is ended, and says so; one that waits for a person is not."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.model.options import TurnLimits
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]

SECONDS = 30


async def test_a_turn_without_a_first_sign_of_life_times_out(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    model.on("again", say("Here I am"))
    session = await helm.start("hang", cwd=folder, limits=TurnLimits(first_event=0.2))
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.status == "error"
    assert session.error is not None
    assert (session.error.code, session.error.retryable) == ("turn_timed_out", True)
    assert "no sign of life" in session.error.message
    assert (await helm.tasks.get(session.task_ids[-1])).status == "failed"
    await helm.say(session.id, "again", limits=TurnLimits(first_event=SECONDS))
    assert await session.wait(until="end", timeout=SECONDS)
    assert (session.status, session.result) == ("done", "Here I am")


async def test_a_turn_that_falls_silent_later_times_out(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("work", run("true"), hang())
    session = await helm.start("work", cwd=folder, limits=TurnLimits(first_event=SECONDS, inactivity=0.5))
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.error is not None
    assert session.error.code == "turn_timed_out"
    assert "nothing more" in session.error.message


async def test_no_time_passes_while_a_question_waits(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    session = await helm.start(
        "touch",
        cwd=folder,
        sandbox="workspace-write",
        approval_policy="on-request",
        limits=TurnLimits(first_event=SECONDS, inactivity=3.0),
    )
    assert await session.wait(until="attention", timeout=SECONDS)
    assert not await session.wait(until="end", timeout=3.5)
    await session.respond(session.questions[0].id, "approve")
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.status == "done"


@on_its_own_engine
async def test_the_settings_give_every_turn_a_limit(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    async with HelmsmanService(replace(settings, first_event_timeout=0.2), env=codex_home.env) as helm:
        session = await helm.start("hang", cwd=folder)
        assert await session.wait(until="end", timeout=SECONDS)
    assert session.error is not None
    assert session.error.code == "turn_timed_out"


async def test_an_interrupt_by_a_person_is_still_an_interrupt(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    session = await helm.start("hang", cwd=folder, limits=TurnLimits(first_event=SECONDS))
    with anyio.fail_after(SECONDS):
        await session.interrupt()
    assert session.status == "interrupted"
