"""A turn whose engine is gone is over: at once where nobody can write down any more how it ended, and when we close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.model.events import EngineGone, Failure
from tests.played import PlayedAgent, PlayedEngine

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"default_agent": "played", "state_dir": str(tmp_path / "state")}, {}, tmp_path)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> PlayedAgent:
    """One whose engine still runs, whatever becomes of a session in it; how a turn ended may be written for long."""
    monkeypatch.setattr(PlayedEngine, "id", "kept")
    monkeypatch.setattr(PlayedAgent, "engine_is_alive", lambda *_: True)
    monkeypatch.setattr("helmsman.steering.untold_ends._RECORD_SECONDS", 60.0)
    return PlayedAgent()


async def test_the_end_of_one_process_is_told_at_once_though_others_of_its_engine_go_on(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    async with Helmsman(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path)
        agent.engines[-1].emit(
            EngineGone(session_id=session.id, failure=Failure(code="engine_lost", message="It crashed."))
        )
        with anyio.fail_after(20):
            await session.wait()
        assert session.error is not None
        assert session.error.message == "It crashed."


async def test_it_is_told_also_if_we_close_before_anybody_knows_how_the_turn_has_ended(
    agent: PlayedAgent, settings: Settings, tmp_path: Path
) -> None:
    async with Helmsman(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=tmp_path)
        agent.engines[-1].die()
        await anyio.sleep(0.2)
        assert session.state.is_running  # it is looked for its end
    assert session.error is not None
    async with Helmsman(settings, agents=[agent]) as helm:
        (task,) = (await helm.tasks.list())[0]
        assert task.status == "failed"
