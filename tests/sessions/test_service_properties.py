"""Any order of events, answers, interrupts, crashes and timeouts ends well.

The service runs on an engine made of nothing but its protocol, so that hypothesis can play every part of Codex: what it
says, when it asks, when it dies.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import helmsman.agents.holder
from helmsman import Helmsman, load_settings
from helmsman.agents.protocol import EngineName, Opened, PastTurn
from helmsman.errors import EngineLost, HelmsmanError, QuestionNotOpen, SessionIdle
from helmsman.model.events import (
    AgentMessage,
    EngineGone,
    Event,
    Failure,
    ItemEnded,
    ItemStarted,
    Notice,
    QuestionAsked,
    QuestionClosed,
    TurnEnded,
    TurnStarted,
)
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice, Prompt, Question

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

    from helmsman import Settings

SESSION = "0199a0f2-0000-7000-8000-000000000001"


class PlayedEngine:
    """An engine that does what the test says."""

    def __init__(self) -> None:
        self.sink: Callable[[Event], None] | None = None
        self.turn = 0
        self.open: set[str] = set()
        self.asked = 0
        self.dead: EngineLost | None = None

    @property
    def name(self) -> EngineName:
        return "app-server"

    @property
    def id(self) -> str | None:
        return None

    @property
    def lost(self) -> HelmsmanError | None:
        return self.dead

    async def until_lost(self) -> None:
        await anyio.sleep_forever()

    @property
    def turn_id(self) -> str:
        return f"t{self.turn}"

    def attach(self, session_id: str, sink: Callable[[Event], None]) -> None:
        self.sink = sink

    def detach(self, session_id: str) -> None:
        self.sink = None

    def tell(self, event: Event) -> None:
        if self.sink is not None and self.dead is None:
            self.sink(event)

    def _check(self) -> None:
        if self.dead is not None:
            raise self.dead.again()

    async def start(self, options: SessionOptions, turn: TurnInput) -> Opened:
        self._check()
        self.turn += 1
        return Opened(session_id=SESSION, turn_id=self.turn_id, directory=str(options.cwd))

    async def resume(self, session_id: str, options: SessionOptions, turn: TurnInput | None = None) -> Opened:
        return await self.start(options, turn or TurnInput(text="x"))

    async def fork(self, session_id: str, options: SessionOptions, turn: TurnInput | None = None) -> Opened:
        raise SessionIdle("not played")

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        return ()

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> str:
        self._check()
        self.turn += 1
        return self.turn_id

    async def steer(self, session_id: str, text: str) -> None:
        self._check()

    async def interrupt(self, session_id: str) -> None:
        self._check()
        self.end("interrupted")

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        self._check()
        await anyio.lowlevel.checkpoint()
        if question.id not in self.open:
            raise QuestionNotOpen("not open")
        self.open.discard(question.id)

    # --- what Codex does ---

    def ask(self) -> None:
        self.asked += 1
        question = Question(
            id=f"q{self.asked}",
            type="command_approval",
            session_id=SESSION,
            turn_id=self.turn_id,
            prompts=(Prompt(text="?", options=("approve", "approve_session", "deny", "abort")),),
            details={"command": "ls", "directory": "/"},
        )
        self.open.add(question.id)
        self.tell(QuestionAsked(session_id=SESSION, turn_id=self.turn_id, question=question))

    def withdraw(self) -> None:
        for question_id in sorted(self.open):
            self.tell(QuestionClosed(session_id=SESSION, question_id=question_id, answer=None, by="codex"))
        self.open.clear()

    def end(self, outcome: Any) -> None:
        self.withdraw()
        self.tell(TurnEnded(session_id=SESSION, turn_id=self.turn_id, outcome=outcome))

    def die(self) -> None:
        self.open.clear()
        self.tell(EngineGone(session_id=SESSION, failure=Failure(code="engine_lost", message="killed")))
        self.dead = EngineLost("killed")


MOVES = st.sampled_from(
    ["started", "item", "note", "ask", "ask", "withdraw", "ask+withdraw", "completed", "failed", "die", "approve", "deny",
     "abort", "approve_session", "interrupt", "say", "queue", "steer", "let time pass", "yield", "yield"]
)  # fmt: skip


@given(moves=st.lists(MOVES, max_size=25), patient=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_ends_in_a_legal_state_with_nothing_waiting(
    moves: list[str], patient: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = played_engines(monkeypatch)
    chosen = unhurried(tmp_path)
    anyio.run(partial(play, moves, chosen if patient else replace(chosen, approval_timeout=0.0), engines, tmp_path))


def played_engines(monkeypatch: pytest.MonkeyPatch) -> list[PlayedEngine]:
    """Every engine that the service opens is a played one, and added to this list."""
    engines: list[PlayedEngine] = []

    @asynccontextmanager
    async def open_played(_settings: Any, _env: Any) -> AsyncIterator[PlayedEngine]:
        engines.append(PlayedEngine())
        yield engines[-1]

    monkeypatch.setattr(helmsman.agents.holder, "open_engine", open_played)
    return engines


def unhurried(place: Path) -> Settings:
    base = load_settings({}, {"HOME": str(place), "HELMSMAN_STATE_DIR": str(place / "state")}, place)
    return replace(base, approval_timeout=30.0)


async def play(moves: list[str], chosen: Any, engines: list[PlayedEngine], place: Path) -> None:
    ended: list[bool] = []
    with anyio.fail_after(20):
        async with Helmsman(chosen) as helm:
            session = await helm.start("go", cwd=place)
            engine = engines[-1]

            async def wait() -> None:
                ended.append(await session.wait(until="end"))

            async with anyio.create_task_group() as waiters:
                waiters.start_soon(wait)
                for move in moves:
                    engine = engines[-1]
                    with suppress(HelmsmanError):  # refused, with a typed error: that is legal
                        await make(move, helm, session, engine)
                    assert session.status in ("active", "awaiting_approval", "done", "error", "interrupted")
                    assert bool(session.questions) == (session.status == "awaiting_approval")
                    assert {
                        question.id for question in session.questions
                    } <= engine.open  # what nobody asks is not shown
                    if session.state.is_running:
                        waiters.start_soon(wait)
                # Whatever was going on, the end of the engine ends it; messages in the queue are not sent any more.
                session.queue.clear()
                await settle()
                while session.state.is_running:  # a queued message may just be on its way, on an engine of its own
                    engines[-1].die()
                    await settle()
            assert not session.state.is_running
            assert session.questions == []
    assert all(ended)


async def settle() -> None:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def make(move: str, helm: Helmsman, session: Any, engine: PlayedEngine) -> None:
    match move:
        case "started":
            engine.tell(TurnStarted(session_id=SESSION, turn_id=engine.turn_id))
        case "item":
            item = AgentMessage(id="m", text="hi", status="started")
            engine.tell(ItemStarted(session_id=SESSION, turn_id=engine.turn_id, item=item))
            engine.tell(ItemEnded(session_id=SESSION, turn_id=engine.turn_id, item=replace(item, status="completed")))
        case "note":
            engine.tell(Notice(session_id=SESSION, kind="retry", message="again"))
        case "ask":
            engine.ask()
        case "withdraw":
            engine.withdraw()
        case "ask+withdraw":
            engine.ask()
            engine.withdraw()
        case "completed" | "failed":
            engine.end(move)
        case "die":
            engine.die()
        case "approve" | "deny" | "abort" | "approve_session":
            for question in session.questions:
                await session.respond(question.id, move)
        case "interrupt":
            await session.interrupt()
        case "say":
            await session.say("more")
        case "queue":
            await session.say("later", when_busy="queue")
        case "steer":
            await session.steer("hurry")
        case "let time pass":
            await anyio.sleep(0.001)
        case _:
            await settle()
    assert helm.sessions


def test_a_question_withdrawn_in_the_same_breath_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = played_engines(monkeypatch)
    anyio.run(partial(play, ["started", "ask+withdraw", "yield", "yield"], unhurried(tmp_path), engines, tmp_path))
