"""Sessions that are in the store already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.model.events import TurnRequested
from helmsman.store.log import NewEvent, append

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime


def put_session(
    connection: sqlite3.Connection, session_id: str, at: datetime, texts: tuple[str, ...] = ("Fix it", "Done")
) -> None:
    """Append one event for each text to a session, all at this time."""
    append(connection, {session_id: [NewEvent.of(TurnRequested(session_id=session_id, text=one), at) for one in texts]})
