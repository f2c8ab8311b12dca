"""Which turn of a session's history a caller means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.agents.protocol import Engine


async def past_turn_id(engine: Engine, session_id: str, which: int | str) -> str:
    """The id of the turn with this number, counted from 1 (it may come as text), or with this id.

    Raises:
        InvalidInput: There is no such turn.
    """
    ids = [turn.id for turn in await engine.history(session_id)]
    if isinstance(which, int) or which.isdecimal():
        number = int(which)
        which = ids[number - 1] if 0 < number <= len(ids) else str(number)
    if which not in ids:
        there = f"a number from 1 to {len(ids)}, or the id of a turn" if ids else "another session: this one has none"
        raise InvalidInput(f"There is no turn {which} in session {session_id}. Give {there}.", parameter="from_turn")
    return which
