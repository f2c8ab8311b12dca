"""Labels that the user gives to sessions. No agent knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.store.connection import is_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database


class LabelStore:
    """Labels in the store. All methods block, and raise `RegistryUnavailable` if it cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, session_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the labels of those sessions that have some."""
        sql = f"SELECT session_id, label FROM session_labels WHERE {is_in('session_id', session_ids)} ORDER BY label"  # noqa: S608
        found: dict[str, tuple[str, ...]] = {}
        for session_id, label in self._database.read(lambda one: one.execute(sql, tuple(session_ids)).fetchall()):
            found[session_id] = (*found.get(session_id, ()), label)
        return found

    def all(self) -> tuple[str, ...]:
        """Return all labels in use."""
        sql = "SELECT DISTINCT label FROM session_labels ORDER BY label"
        return tuple(row[0] for row in self._database.read(lambda one: one.execute(sql).fetchall()))

    def change(self, session_ids: Sequence[str], *, add: Sequence[str], remove: Sequence[str]) -> None:
        """Give labels to sessions, and take others from them."""

        def work(connection: StoreConnection) -> None:
            for session_id in session_ids:
                for label in remove:
                    connection.execute(
                        "DELETE FROM session_labels WHERE session_id = ? AND label = ?", (session_id, label)
                    )
                for label in add:
                    connection.execute(
                        "INSERT INTO session_labels VALUES (?, ?) ON CONFLICT DO NOTHING", (session_id, label)
                    )

        self._database.write(work)
