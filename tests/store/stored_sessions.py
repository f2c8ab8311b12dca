"""Sessions in the store, put there with SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from helmsman.store.database import microseconds

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime


def put_session(
    connection: sqlite3.Connection, session_id: str, at: datetime, texts: tuple[str, ...] = ("Fix it", "Done")
) -> None:
    """Put a session into the store, one event for each text. Its last one is appended at this time."""
    time = microseconds(at)
    columns = "(id, last_seq, changed_at) VALUES (?, ?, ?) RETURNING number"
    (number,) = connection.execute(f"INSERT INTO sessions {columns}", (session_id, len(texts), time)).fetchone()
    for seq, text in enumerate(texts, 1):
        body = json.dumps({"type": "turn_requested", "sessionId": session_id, "text": text})
        row = (number, seq, time, "turn_requested", body)
        connection.execute("INSERT INTO events (session, seq, at, kind, body) VALUES (?, ?, ?, ?, ?)", row)
