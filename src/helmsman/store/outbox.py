"""Outbox of notifications: ends of tasks, skipped runs and proposals that the notifier has yet to process.

They are written in the transaction of the change itself, so that a crash cannot separate them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from helmsman.store.database import microseconds

if TYPE_CHECKING:
    from datetime import datetime

    from helmsman.store.connection import StoreConnection

_KEPT: Final = timedelta(days=7)
"""Lifetime of entries if no hub reads the outbox."""


def enter(
    connection: StoreConnection, about: str, at: datetime, owner_pid: int | None = None, engine: str | None = None
) -> None:
    """Add an entry, unless there is one about the same thing."""
    connection.execute(
        "INSERT INTO notices_due (about, owner_pid, engine, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (about, owner_pid, engine, microseconds(at)),
    )
    connection.execute("DELETE FROM notices_due WHERE at < ?", (microseconds(at - _KEPT),))
