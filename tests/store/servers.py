"""A Postgres for tests of the store: one server for all, and a database of its own for each test."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.postgres import Postgres, postgres_programs

_SECONDS = 20


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server. Its files are outside pytest's directory, which is closed to the user that Postgres runs as."""
    if postgres_programs() is None:
        pytest.skip("There is no Postgres: install Debian's postgresql, or pgserver.")
    with (
        tempfile.TemporaryDirectory(prefix="helmsman-postgres-") as directory,
        Postgres(Path(directory), options=("-c", "autovacuum=off")) as server,
    ):
        yield server


@contextmanager
def new_database(server: Postgres) -> Iterator[str]:
    """Create a database, and drop it at the end. Yields its address."""
    name = psycopg.sql.Identifier(f"store_{uuid.uuid4().hex[:8]}")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(name))
        try:
            yield server.url(name.as_string(connection).strip('"'))
        finally:
            connection.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
            others = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            until = time.monotonic() + _SECONDS
            while connection.execute(others).fetchone() is not None and time.monotonic() < until:
                time.sleep(0.01)  # its processes would be taken for a leak
