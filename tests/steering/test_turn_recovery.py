"""A turn whose engine is gone is over: at once where nobody can write down any more how it ended, and when we close."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.model.events import EngineGone, Failure, ItemStarted, TurnStarted, UserMessage
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.tasks.agent_records import AgentRecords
from helmsman.tasks.model import Task
from helmsman.tasks.writer import TaskWriter
from tests.played import PlayedAgent, PlayedEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"default_agent": "played", "state_dir": str(tmp_path / "state")}, {}, tmp_path)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> PlayedAgent:
    """One whose engine still runs, whatever becomes of a session in it; how a turn ended may be written for long."""
    monkeypatch.setattr(PlayedEngine, "id", "kept")
    monkeypatch.setattr(PlayedAgent, "engine_is_alive", lambda *_: True)
    monkeypatch.setattr("helmsman.steering.turn_recovery._RECORD_SECONDS", 60.0)
    return PlayedAgent()


async def test_the_end_of_one_process_is_reported_at_once_though_others_of_its_engine_continue(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path)
        agent.engines[-1].emit(
            EngineGone(session_id=session.id, failure=Failure(code="engine_lost", message="It crashed."))
        )
        with anyio.fail_after(20):
            await session.wait()
        assert session.error is not None
        assert session.error.message == "It crashed."


async def test_it_is_reported_even_if_we_close_before_the_end_of_the_turn_is_known(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path)
        agent.engines[-1].die()
        await anyio.sleep(0.2)
        assert session.state.is_running  # it is looked for its end
    assert session.error is not None
    async with HelmsmanService(settings, agents=[agent]) as helm:
        (task,) = (await helm.tasks.list())[0]
        assert task.status == "failed"


async def test_a_turn_that_becomes_a_task_while_its_end_is_looked_for_is_over(
    agent: PlayedAgent, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_looked_for, is_task = anyio.Event(), anyio.Event()
    enter, begin = TaskWriter.enter, TaskWriter.begin

    async def enter_late(*args: Any, **given: Any) -> tuple[str, Task | None]:
        entered = await enter(*args, **given)
        await is_looked_for.wait()
        return entered

    def begin_and_say(*args: Any, **given: Any) -> None:
        begin(*args, **given)
        is_task.set()

    async def look(*_: object) -> None:
        is_looked_for.set()
        await is_task.wait()

    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path)
        engine = agent.engines[-1]
        engine.end("completed")
        await session.wait()
        monkeypatch.setattr(TaskWriter, "enter", enter_late)
        monkeypatch.setattr(TaskWriter, "begin", begin_and_say)
        monkeypatch.setattr(AgentRecords, "turn", look)
        engine.emit(TurnStarted(session_id=session.id, turn_id="theirs"))
        message = UserMessage(id="1", text="typed elsewhere")
        engine.emit(ItemStarted(session_id=session.id, turn_id="theirs", item=message))
        engine.emit(EngineGone(session_id=session.id, failure=Failure(code="engine_lost", message="It crashed.")))
        with anyio.fail_after(20):
            while session.state.is_running:
                await session.feed.changed()
        assert session.error is not None
        assert session.error.message == "It crashed."
        await helm.task_writer.write()
        tasks, _ = await helm.tasks.list()
        assert {task.instruction: task.status for task in tasks} == {"work": "completed", "typed elsewhere": "failed"}
