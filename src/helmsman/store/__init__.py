"""Store: the log of all sessions' events, tasks, schedules and notices, in SQLite or Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.errors import RegistryUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.store.database import Database, Fence


def open_store(path: Path, address: str | None = None, *, fence: Fence | None = None) -> Database:
    """Return the Postgres store at an address, or else the SQLite store in a file.

    Raises:
        RegistryUnavailable: The driver of Postgres is not installed.
    """
    if address is None:
        from helmsman.store.sqlite import SqliteDatabase  # modules of this package import it first

        return SqliteDatabase(path, fence)
    try:
        from helmsman.store.postgres import PostgresDatabase  # an optional dependency
    except ImportError as error:
        raise RegistryUnavailable(
            f'{error.name} is missing. Install it: pip install "codex-helmsman[fleet]"'
        ) from error

    return PostgresDatabase(address, fence)
