"""Tests of engines that are killed or hang at any stage: every waiter gets an error, and the next message starts
another.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable

import anyio
import pytest

from helmsman.agents.codex import connection
from helmsman.agents.codex import engine as engine_module
from helmsman.agents.codex.connection import AppServer
from helmsman.agents.supervisor import process as descendants
from helmsman.errors import EngineLost
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import hang, run, say
from tests.faults.scene import SECONDS, Scene, bound, engines, needs_proc

pytestmark = [pytest.mark.long, pytest.mark.anyio, needs_proc]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that hangs is found out within moments."""
    monkeypatch.setattr(connection, "HEARTBEAT", 0.2)
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", 2.0)
    monkeypatch.setattr(engine_module, "INTERRUPT_TIMEOUT", 0.2)
    monkeypatch.setitem(connection._OPTIONS, "open_timeout", 2.0)
    monkeypatch.setattr(descendants, "STOP_TIMEOUT", 0.4)


def end_engine(number: signal.Signals) -> None:
    (engine,) = engines()
    os.kill(engine, number)


async def at_work(scene: Scene, helm: HelmsmanService) -> Session:
    scene.model.on("work", say("Some", hang()))
    session = await helm.start("work", cwd=scene.repo)
    with anyio.fail_after(SECONDS):
        while not session.items:
            await session.feed.changed()
    return session


async def at_a_question(scene: Scene, helm: HelmsmanService) -> Session:
    scene.model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    session = await helm.start("touch", cwd=scene.repo, sandbox="workspace-write", approval_policy="on-request")
    assert await session.wait(until="attention", timeout=SECONDS)
    assert session.questions
    return session


async def test_an_engine_killed_before_the_first_turn_is_replaced(scene: Scene) -> None:
    async with scene.helmsman() as helm:
        engine = await helm.engine()
        end_engine(signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            await engine.until_lost()
        await scene.next_session_works(helm)


async def test_a_session_started_in_a_killed_engine_runs_in_another(scene: Scene) -> None:
    """Nothing of it had begun."""
    scene.model.on("begin", say("done"))
    entered = anyio.Event()
    sessions: list[Session] = []

    async def start(helm: HelmsmanService) -> None:
        sessions.append(await helm.start("begin", cwd=scene.repo, on_task=lambda _: entered.set()))

    async with scene.helmsman() as helm:
        await helm.engine()
        end_engine(signal.SIGSTOP)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start, helm)
                await entered.wait()
                end_engine(signal.SIGKILL)
        (session,) = sessions
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.result == "done"
        assert len(scene.model.requests) == 1


@pytest.mark.parametrize("stage", [at_work, at_a_question])
async def test_an_engine_killed_in_a_turn_fails_it_and_the_session_continues_in_another(
    scene: Scene, stage: Callable[[Scene, HelmsmanService], Awaitable[Session]]
) -> None:
    async with scene.helmsman() as helm:
        session = await stage(scene, helm)
        end_engine(signal.SIGKILL)
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.error is not None
        assert (session.status, session.error.code, session.questions) == ("error", "engine_lost", [])
        task = await helm.tasks.get(session.task_ids[-1])
        assert (task.status, task.input_required) == ("failed", False)
        await scene.next_session_works(helm, after=session)


async def test_an_engine_killed_after_a_turn_leaves_its_result(scene: Scene) -> None:
    scene.model.on("work", say("Done."))
    async with scene.helmsman() as helm:
        session = await helm.start("work", cwd=scene.repo)
        assert await session.wait(until="end", timeout=SECONDS)
        engine = await helm.engine()
        end_engine(signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            await engine.until_lost()
        assert (session.status, session.result, session.error) == ("done", "Done.", None)
        assert (await helm.tasks.get(session.task_ids[-1])).status == "completed"
        await scene.next_session_works(helm, after=session)


@pytest.mark.rare
@pytest.mark.usefixtures("impatient")
async def test_an_engine_that_hangs_in_a_turn_is_noticed_and_replaced(scene: Scene) -> None:
    async with scene.helmsman() as helm:
        session = await at_work(scene, helm)
        end_engine(signal.SIGSTOP)
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.error is not None
        assert (session.status, session.error.code, session.error.retryable) == ("error", "engine_lost", True)
        assert "hangs" in session.error.message
        await scene.next_session_works(helm, after=session)


@bound
@pytest.mark.usefixtures("impatient")
async def test_an_interrupt_of_an_engine_that_hangs_ends_and_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT", SECONDS)
    async with scene.helmsman() as helm:
        session = await at_work(scene, helm)
        end_engine(signal.SIGSTOP)
        with anyio.fail_after(SECONDS), pytest.raises(EngineLost, match="hangs"):
            await session.interrupt()
        assert session.status == "error"
        await scene.next_session_works(helm, after=session)


@bound
@pytest.mark.usefixtures("impatient")
async def test_a_session_started_in_a_hanging_engine_runs_in_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.model.on("begin", say("done"))
    async with scene.helmsman() as helm:
        await helm.engine()
        end_engine(signal.SIGSTOP)
        with anyio.fail_after(SECONDS):
            with monkeypatch.context() as patch:
                patch.setattr(AppServer.call, "__kwdefaults__", {"timeout": 0.5})
                session = await helm.start("begin", cwd=scene.repo)
            assert await session.wait(until="end")
        assert session.result == "done"


@bound
@pytest.mark.usefixtures("impatient")
async def test_a_busy_engine_that_answers_is_left_in_peace(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", SECONDS)
    gate = scene.model.gate()
    scene.model.on("think", say("Hm", gate, " done"))
    async with scene.helmsman() as helm:
        engine = await helm.engine()
        session = await helm.start("think", cwd=scene.repo)
        assert not await session.wait(until="end", timeout=1)
        gate.release()
        assert await session.wait(until="end", timeout=SECONDS)
        assert (session.result, engine.lost) == ("Hm done", None)
