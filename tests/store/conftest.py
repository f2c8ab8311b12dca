"""The fixtures of the store's tests: a store of its own for each test, a clock that stands still, and a Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import Postgres
from tests.store.servers import new_database, running_postgres
from tests.tasks.conftest import clock, path, registry

__all__ = ["clock", "path", "registry"]


@pytest.fixture(scope="session")
def store_server() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def server_of_store(request: pytest.FixtureRequest) -> Postgres | None:
    """The Postgres of a store; None for SQLite. A server that a test itself starts would be taken for a leak."""
    if request.param == "sqlite":
        return None
    server: Postgres = request.getfixturevalue("store_server")
    return server


@pytest.fixture
def store_address(server_of_store: Postgres | None) -> Iterator[str | None]:
    """The address of an empty store; None for SQLite. Tests with it run on both."""
    if server_of_store is None:
        yield None
    else:
        with new_database(server_of_store) as address:
            yield address


@pytest.fixture
def postgres_address(store_server: Postgres) -> Iterator[str]:
    with new_database(store_server) as address:
        yield address
