"""A session with its turn in one step, for tests that speak to an engine itself."""

from __future__ import annotations

from helmsman.agents.protocol import Engine, Opened
from helmsman.base.structs import replace
from helmsman.model.options import SessionOptions, TurnInput


async def start_turn(engine: Engine, options: SessionOptions, turn: TurnInput) -> Opened:
    """A new session and its first turn."""
    return await _with_turn(engine, await engine.open(options), options, turn)


async def resume_turn(engine: Engine, session_id: str, options: SessionOptions, turn: TurnInput) -> Opened:
    """A turn in a session that the engine may not have loaded."""
    return await _with_turn(engine, await engine.resume(session_id, options), options, turn)


async def _with_turn(engine: Engine, opened: Opened, options: SessionOptions, turn: TurnInput) -> Opened:
    begun = await engine.run_turn(opened.session_id, options, turn)
    return replace(opened, session_id=begun.session_id, turn_id=begun.turn_id, notes=(*opened.notes, *begun.notes))
