"""What an app-server may do on its pipes that a real Codex cannot be made to: seen from the service, and what comes after.

The scripted app-server misbehaves in its first process only, so the next message shows whether work goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.codex import engine as engine_module
from helmsman.base.line_framer import MAX_LINE_BYTES
from helmsman.base.structs import replace
from helmsman.model.options import TurnLimits
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing.fake_app_server import (
    TURN,
    FakeAppServer,
    answer,
    end_turn,
    exit_now,
    long_line,
    notify,
    raw,
    stderr,
    stop_reading,
)
from tests.faults.scene import SECONDS

pytestmark = [pytest.mark.anyio, pytest.mark.long]

BEGUN = (answer(), notify("turn/started", TURN))
OPENED_IDLE = {"thread": {"id": "$thread", "cwd": "$cwd", "status": {"type": "idle"}, "turns": []}}
OPENED_ACTIVE = {"thread": {"id": "$thread", "cwd": "$cwd", "status": {"type": "active"}, "turns": []}}


class Stage:
    """Helmsman whose Codex misbehaves once."""

    def __init__(self, settings: Settings, folder: Path, env: Mapping[str, str]) -> None:
        self._settings = settings
        self._folder = folder
        self._env = env
        self.work = folder / "work"
        self.work.mkdir()

    def helmsman(self, **on: Sequence[dict[str, Any]]) -> HelmsmanService:
        methods = {name.replace("_", "/"): list(actions) for name, actions in on.items()}
        server = FakeAppServer(self._folder / "fake", on=methods, launches=1)
        return HelmsmanService(replace(self._settings, codex_path=server.path), env=self._env)

    async def ended(self, helm: HelmsmanService, limits: TurnLimits | None = None) -> Session:
        session = await helm.start("go", cwd=self.work, limits=limits)
        assert await session.wait(until="end", timeout=SECONDS)
        return session


@pytest.fixture
def stage(settings: Settings, tmp_path: Path, codex_home: Any) -> Stage:
    return Stage(settings, tmp_path, codex_home.env)


async def next_turn_works(session: Session) -> None:
    await session.say("again")
    assert await session.wait(until="end", timeout=SECONDS)
    assert (session.status, session.result) == ("done", "Hello"), session.error


@pytest.mark.parametrize(
    ("noise", "code"),
    [
        ((raw("Segmentation fault\n"), raw('{"method": "turn/comp'), exit_now(139)), "engine_lost"),
        ((long_line(MAX_LINE_BYTES + 1024), end_turn()), "engine_protocol_error"),
    ],
    ids=["garbage and half a line", "a line beyond 64 MiB"],
)
async def test_an_ended_connection_fails_the_turn_and_the_next_one_works(
    stage: Stage, noise: Sequence[dict[str, Any]], code: str
) -> None:
    async with stage.helmsman(turn_start=(*BEGUN, *noise)) as helm:
        session = await stage.ended(helm)
        assert session.error is not None
        assert (session.status, session.error.code) == ("error", code)
        assert (await helm.tasks.get(session.task_ids[-1])).status == "failed"
        await next_turn_works(session)


@pytest.mark.parametrize(
    "noise",
    [
        (long_line(MAX_LINE_BYTES - 1024),),
        (raw("\x00\x01 garbage\n" * 500),),
        (stderr("x" * 10_000 + "\n", times=2_000),),
    ],
    ids=["a line of nearly 64 MiB", "much garbage", "20 MB on standard error"],
)
async def test_harmless_lines_are_skipped(stage: Stage, noise: Sequence[dict[str, Any]]) -> None:
    async with stage.helmsman(turn_start=(*BEGUN, *noise, end_turn())) as helm:
        session = await stage.ended(helm)
        assert session.status == "done"
        await session.say("again")
        assert await session.wait(until="end", timeout=SECONDS)


async def test_an_unreported_end_is_found_by_an_interrupt(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "INTERRUPT_TIMEOUT", 0.3)
    async with stage.helmsman(
        turn_start=BEGUN, turn_interrupt=(answer({}),), thread_read=(answer(OPENED_IDLE),)
    ) as helm:
        session = await stage.ended(helm, TurnLimits(first_event=0.3))
        assert session.error is not None
        assert session.error.code == "turn_timed_out"
        engine: Any = await helm.engine()
        await engine.interrupt(session.id)  # idle now, so there is nothing to wait for


async def test_a_turn_that_cannot_be_stopped_blocks_no_caller(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "INTERRUPT_TIMEOUT", 0.3)
    async with stage.helmsman(
        turn_start=BEGUN, turn_interrupt=(answer({}),), thread_read=(answer(OPENED_ACTIVE),)
    ) as helm:
        session = await stage.ended(helm, TurnLimits(first_event=0.3))
        assert session.error is not None
        assert (session.error.code, session.error.retryable) == ("turn_timed_out", True)
        assert (await helm.tasks.get(session.task_ids[-1])).status == "failed"


async def test_a_codex_that_stops_reading_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "INTERRUPT_TIMEOUT", 0.3)
    monkeypatch.setattr("helmsman.agents.codex.connection.ANSWER_TIMEOUT", 0.5)
    async with stage.helmsman(turn_start=(*BEGUN, stop_reading())) as helm:
        session = await stage.ended(helm, TurnLimits(first_event=0.3))
        assert session.error is not None
        assert session.error.code == "engine_lost"
        with anyio.fail_after(SECONDS):
            await next_turn_works(session)
