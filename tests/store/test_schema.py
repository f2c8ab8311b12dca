"""A store of another version: an earlier one is migrated, a later one is left alone."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from helmsman.errors import RegistryTooNew
from helmsman.store.schema import CURRENT, VERSIONS
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry
from tests.tasks.conftest import Clock

LATER = (*VERSIONS, ("ALTER TABLE tasks ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def with_a_task(path: Path, clock: Clock) -> str:
    """A store of this version with one task, closed; the task's id."""
    with closing(Registry(path, clock=clock)) as registry:
        return registry.add(TaskDraft(instruction="Fix the login test"))[0].id


def test_a_store_of_an_earlier_version_is_migrated_with_all_that_is_in_it(
    path: Path, with_a_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.store.schema.VERSIONS", LATER)
    monkeypatch.setattr("helmsman.store.schema.CURRENT", len(LATER))
    with closing(Registry(path)) as registry:
        task = registry.get(with_a_task)
        assert task is not None
        assert task.alias == "fix-login-test"
    assert version(path) == CURRENT + 1


def test_a_store_of_a_later_version_is_refused_and_left_as_it_is(path: Path, with_a_task: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {CURRENT + 1}")
    registry = Registry(path)
    with pytest.raises(RegistryTooNew, match="Upgrade this Helmsman") as refused:
        registry.running()
    assert refused.value.as_dict()["retryable"] is False
    with pytest.raises(RegistryTooNew):
        registry.add(TaskDraft(instruction="x"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM tasks").fetchall() == [(with_a_task,)]


def test_an_open_store_continues_when_a_later_version_adds_a_column(registry: Registry) -> None:
    task, _ = registry.add(TaskDraft(instruction="x"))
    with closing(sqlite3.connect(registry.path)) as connection:
        connection.execute(LATER[-1][0])
        connection.execute(f"PRAGMA user_version = {CURRENT + 1}")
    assert registry.get(task.id) == task
    done = registry.update(task.id, status="completed")
    assert done is not None
    assert done.status == "completed"


def test_many_may_migrate_at_once(path: Path, with_a_task: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helmsman.store.schema.VERSIONS", LATER)
    monkeypatch.setattr("helmsman.store.schema.CURRENT", len(LATER))
    registries = [Registry(path, clock=clock) for _ in range(12)]
    with ThreadPoolExecutor(len(registries)) as threads:
        found = list(threads.map(lambda registry: registry.get(with_a_task), registries))
    assert None not in found
    for registry in registries:
        registry.close()


def test_a_migration_that_fails_changes_nothing(path: Path, with_a_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*VERSIONS, ("CREATE TABLE half (a)", "NONSENSE"))
    monkeypatch.setattr("helmsman.store.schema.VERSIONS", broken)
    monkeypatch.setattr("helmsman.store.schema.CURRENT", len(broken))
    registry = Registry(path)
    with pytest.raises(Exception, match="NONSENSE"):
        registry.running()
    assert version(path) == CURRENT
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM tasks").fetchall() == [(with_a_task,)]
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchone() is None
