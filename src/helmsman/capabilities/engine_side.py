"""The way from an extra to the engine that can do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.errors import CodexUnsupported

if TYPE_CHECKING:
    from helmsman.agents.protocol import Engine, EngineExtras


def engine_extras(engine: Engine, *, doing: str) -> EngineExtras:
    """What the engine can do beyond running turns.

    Raises:
        CodexUnsupported: Nothing; `doing` completes "cannot …".
    """
    if engine.extras is None:
        raise CodexUnsupported(f"The engine {engine.name} cannot {doing}. Use the engine app-server.")
    return engine.extras
