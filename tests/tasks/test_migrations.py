"""A registry that an earlier version made is opened by this one, and one of a later version is left alone."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helmsman.base.processes import Process
from helmsman.errors import RegistryTooNew
from helmsman.model.events import Usage
from helmsman.tasks.migrations import CURRENT, MIGRATIONS
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry

if TYPE_CHECKING:
    from tests.tasks.conftest import Clock

SCHEMAS = Path(__file__).parent / "schemas"
EARLIER = range(1, CURRENT)


def made_by(version: int, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((SCHEMAS / f"v{version}.sql").read_text(encoding="utf-8"))


def schema(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        columns = connection.execute("SELECT name, type FROM pragma_table_info('tasks') ORDER BY name").fetchall()
        indexes = connection.execute(
            "SELECT name, 'index' FROM sqlite_master WHERE type = 'index' ORDER BY 1"
        ).fetchall()
    return columns + indexes


def test_there_is_a_dump_of_every_earlier_version() -> None:
    assert sorted(file.name for file in SCHEMAS.iterdir()) == [f"v{version}.sql" for version in EARLIER]


@pytest.mark.parametrize("version", EARLIER)
def test_a_registry_of_an_earlier_version_is_opened_with_all_that_is_in_it(
    version: int, path: Path, tmp_path: Path, clock: Clock
) -> None:
    made_by(version, path)
    registry = Registry(path, clock=clock)
    working, written = registry.find("fix-login-test"), registry.find("write-docs")
    assert working is not None
    assert (working.status, working.session_id, working.turn_id) == ("working", "s-1", "t-1")
    assert (working.owner, working.progress) == (Process(4711, "boot:42"), {"done": 1, "total": 3})
    assert working.engine == ("engine-1" if version >= 2 else None)
    assert working.metadata["options"] == {"sandbox": "read-only"}
    assert working.agent == "codex", "before version 4 there was no other"
    assert written is not None
    assert (written.status, written.result, written.external_id) == ("completed", "Written.", "task_e_1")
    assert written.usage == (Usage(100, 20, 10, 3) if version >= 2 else None)

    again = registry.update(working.id, status="completed", result="Fixed.")
    assert again is not None
    assert again.revision == 1
    assert registry.add(TaskDraft(instruction="Fix the login test"))[0].alias == "fix-login-test-2"
    registry.close()

    fresh = Registry(tmp_path / "fresh" / path.name, clock=clock)
    fresh.running()
    fresh.close()
    assert schema(path) == schema(fresh.path), "it is the same as a new one"


def test_a_registry_of_a_later_version_is_refused_and_left_as_it_is(path: Path) -> None:
    made_by(1, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {CURRENT + 1}")
    registry = Registry(path)
    with pytest.raises(RegistryTooNew, match="Upgrade this Helmsman") as refused:
        registry.running()
    assert refused.value.as_dict()["retryable"] is False
    with pytest.raises(RegistryTooNew):
        registry.add(TaskDraft(instruction="x"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM tasks").fetchone() == (2,)


def test_who_has_it_open_goes_on_when_a_later_version_adds_a_column(registry: Registry) -> None:
    task, _ = registry.add(TaskDraft(instruction="x"))
    with closing(sqlite3.connect(registry.path)) as connection:
        connection.execute("ALTER TABLE tasks ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'")
        connection.execute(f"PRAGMA user_version = {CURRENT + 1}")
    assert registry.get(task.id) == task
    done = registry.update(task.id, status="completed")
    assert done is not None
    assert done.status == "completed"


def test_many_may_migrate_at_once(path: Path, clock: Clock) -> None:
    made_by(1, path)
    registries = [Registry(path, clock=clock) for _ in range(12)]
    with ThreadPoolExecutor(len(registries)) as threads:
        found = list(threads.map(lambda registry: registry.find("fix-login-test"), registries))
    assert len({task.id for task in found if task is not None}) == 1
    assert None not in found
    for registry in registries:
        registry.close()


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_by(1, path)
    before = schema(path)
    broken = (*MIGRATIONS[:-1], ("CREATE TABLE half (a)", "NONSENSE"))
    monkeypatch.setattr("helmsman.tasks.migrations.MIGRATIONS", broken)
    registry = Registry(path)
    with pytest.raises(Exception, match="NONSENSE"):
        registry.running()
    assert schema(path) == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchone() is None
