"""Sessions that are in the store already."""

from __future__ import annotations

from datetime import datetime

from helmsman.model.events import TurnRequested
from helmsman.store.connection import StoreConnection
from helmsman.store.log import NewEvent, append


def put_session(
    connection: StoreConnection, session_id: str, at: datetime, texts: tuple[str, ...] = ("Fix it", "Done")
) -> None:
    """Append one event for each text to a session, all at this time."""
    events = [TurnRequested(session_id=session_id, text=one).with_time(at) for one in texts]
    append(connection, {session_id: [NewEvent.of(event) for event in events]})
