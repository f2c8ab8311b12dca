"""Any order of events, answers, interrupts, crashes and timeouts ends well.

The service runs on an engine made of nothing but its protocol, so that hypothesis can play every part of Codex: what it
says, when it asks, when it dies.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helmsman import Settings, load_settings
from helmsman.base.structs import replace
from helmsman.errors import EngineRefused, HelmsmanError
from helmsman.model.events import AgentMessage, ItemEnded, ItemStarted, MessageUnqueued, Notice, TurnStarted
from helmsman.service import HelmsmanService
from tests.played import PlayedAgent, PlayedEngine

MOVES = st.sampled_from(
    ["started", "item", "note", "ask", "ask", "withdraw", "ask+withdraw", "completed", "failed", "die", "approve", "deny",
     "abort", "approve_session", "interrupt", "say", "queue", "steer", "let time pass", "yield", "yield"]
)  # fmt: skip


@pytest.mark.long
@given(moves=st.lists(MOVES, max_size=25), patient=st.booleans())
@example(  # one who steers waits for a turn that never comes to be, behind which the next has begun
    moves=[
        *("queue", "queue", "started", "queue", "started", "started", "ask+withdraw", "abort", "approve_session"),
        *("started", "yield", "completed", "steer", "started", "completed", "started", "steer"),
    ],
    patient=False,
)
@example(moves=["ask", "die"], patient=False)  # what it asked is not open while its record is looked for
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_ends_in_a_legal_state_with_nothing_waiting(moves: list[str], patient: bool, tmp_path: Path) -> None:
    chosen = unhurried(tmp_path)
    anyio.run(partial(play, moves, chosen if patient else replace(chosen, approval_timeout=0.0), tmp_path))


def unhurried(place: Path) -> Settings:
    base = load_settings({}, {"HOME": str(place), "HELMSMAN_STATE_DIR": str(place / "state")}, place)
    return replace(base, approval_timeout=30.0)


async def play(moves: list[str], chosen: Any, place: Path) -> None:
    ended: list[bool] = []
    agent = PlayedAgent()
    engines = agent.engines
    with anyio.fail_after(20):
        async with HelmsmanService(chosen, agents=[agent]) as helm:
            session = await helm.start("go", cwd=place, agent=agent.name)
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
                    } <= engine.open_questions  # what nobody asks is not shown
                    if session.state.is_running:
                        waiters.start_soon(wait)
                # Whatever was going on, the end of the engine ends it; messages in the queue are not sent any more.
                for queued in session.queue:
                    session.apply(MessageUnqueued(session_id=session.id, task_id=queued.task_id))
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


async def make(move: str, helm: HelmsmanService, session: Any, engine: PlayedEngine) -> None:
    match move:
        case "started":
            engine.emit(TurnStarted(session_id=engine.session_id, turn_id=engine.turn_id))
        case "item":
            item = AgentMessage(id="m", text="hi", status="started")
            engine.emit(ItemStarted(session_id=engine.session_id, turn_id=engine.turn_id, item=item))
            engine.emit(
                ItemEnded(session_id=engine.session_id, turn_id=engine.turn_id, item=replace(item, status="completed"))
            )
        case "note":
            engine.emit(Notice(session_id=engine.session_id, kind="retry", message="again"))
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


def test_a_question_withdrawn_in_the_same_breath_is_never_shown(tmp_path: Path) -> None:
    anyio.run(partial(play, ["started", "ask+withdraw", "yield", "yield"], unhurried(tmp_path), tmp_path))


@pytest.mark.anyio
async def test_a_session_is_asked_for_before_the_engine_learns_of_it(tmp_path: Path) -> None:
    """A turn that the engine begins at once, and even ends, while it is asked for, is known as asked for before that."""
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        engine = cast("PlayedEngine", await helm.engine(agent=agent.name))
        engine.at_once = lambda: engine.end("completed")
        session = await helm.start("go", cwd=tmp_path, agent=agent.name)
        with anyio.fail_after(20):
            await session.wait(until="end")
        assert [type(event).__name__ async for event in session.events()] == [
            "TurnRequested", "SettingsApplied", "TurnStarted", "TurnEnded"
        ]  # fmt: skip


@pytest.mark.anyio
async def test_a_first_turn_that_the_engine_refuses_leaves_no_session(tmp_path: Path) -> None:
    agent = PlayedAgent()
    heard: list[str] = []
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        engine = cast("PlayedEngine", await helm.engine(agent=agent.name))
        helm.listen(lambda session, _event: heard.append(session.id))
        engine.refusal = EngineRefused("It will not. Try another.")
        with pytest.raises(EngineRefused):
            await helm.start("go", cwd=tmp_path, agent=agent.name)
        assert not helm.sessions
        assert heard == []
        ((task,), _) = await helm.tasks.list()
        assert task.status == "failed"
        engine.refusal = None
        assert (await helm.start("go", cwd=tmp_path, agent=agent.name)).status == "active"
