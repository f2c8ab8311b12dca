"""How long the store keeps transcripts and results, and what stays of a session when their time is up."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from helmsman.cli import hub_process
from helmsman.settings import LONGEST_RETENTION_DAYS
from helmsman.store import upkeep
from helmsman.store.upkeep import RETENTION, Compacted, compact_some, due
from helmsman.tasks.model import Task, TaskDraft
from helmsman.tasks.registry import Batch, Registry
from tests.store.stored_sessions import put_session
from tests.tasks.conftest import Clock

LONG = RETENTION + timedelta(hours=1)


def put(registry: Registry, session_id: str, clock: Clock, ago: timedelta = LONG, **more: Any) -> None:
    registry.database.write(lambda connection: put_session(connection, session_id, clock.now - ago, **more))


def add(registry: Registry, **fields: Any) -> Task:
    return registry.add(TaskDraft(instruction="Fix the login test", **fields))[0]


def count(registry: Registry, session_id: str) -> int:
    sql = "SELECT count(*) FROM events JOIN sessions ON session = sessions.number WHERE id = ?"
    return int(registry.database.read(lambda connection: connection.execute(sql, (session_id,)).fetchone()[0]))


def test_a_session_that_was_not_used_for_the_retention_time_loses_its_events_and_results(
    registry: Registry, clock: Clock
) -> None:
    task = add(registry, session_id="old")
    registry.update(task.id, status="completed", result="Done.")
    put(registry, "old", clock, ago=timedelta())
    clock.pass_by(days=RETENTION.days - 1)
    put(registry, "new", clock, ago=timedelta())
    assert registry.compact() == Compacted()
    clock.pass_by(days=1, hours=1)
    assert registry.database.read(lambda connection: due(connection, clock.now, RETENTION)) == Compacted(1, 2, 1)
    assert registry.compact() == Compacted(1, 2, 1)
    assert (count(registry, "old"), count(registry, "new")) == (0, 2)
    compacted = registry.get(task.id)
    assert compacted is not None
    assert (compacted.result, compacted.result_compacted) == (None, True)
    assert compacted.instruction == "Fix the login test", "lists need it"
    assert registry.compact() == Compacted()


def test_the_events_of_a_continued_session_are_numbered_on(registry: Registry, clock: Clock) -> None:
    put(registry, "old", clock)
    registry.compact()
    assert registry.events("old")[:2] == ((), 2)
    put(registry, "old", clock, texts=("Again",))
    rows = registry.database.read(lambda connection: connection.execute("SELECT seq FROM events").fetchall())
    assert [tuple(row) for row in rows] == [(3,)], "a reader's cursor never meets a number again"
    assert len(registry.events("old").after(2).events) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": "old"},
        {"session_id": "old", "status": "working", "waiting_for": "quota"},
        {"opened_session": "old"},
        {"job_sessions": ("other", "old")},
    ],
    ids=["a turn that is pending", "one that waits for the limit", "one that has yet to begin", "a job"],
)
def test_a_session_with_a_task_that_runs_or_waits_keeps_everything(
    registry: Registry, clock: Clock, fields: dict[str, Any]
) -> None:
    put(registry, "old", clock)
    changes: Any = fields
    draft = TaskDraft(id="T-1", instruction="Fix the login test")
    registry.commit(Batch(drafts={"T-1": draft}, changes={"T-1": changes}))
    assert registry.compact() == Compacted()
    assert count(registry, "old") == 2
    registry.update("T-1", status="completed")
    assert registry.compact().sessions == 1


def test_a_result_is_kept_for_as_long_as_its_session_is_used(registry: Registry, clock: Clock) -> None:
    task = add(registry, session_id="used")
    registry.update(task.id, status="completed", result="Done.")
    clock.pass_by(days=RETENTION.days + 20)
    put(registry, "used", clock, ago=timedelta(days=1))
    assert registry.compact() == Compacted()
    clock.pass_by(days=RETENTION.days)
    assert registry.compact() == Compacted(1, 2, 1)


def test_a_shorter_time_holds_for_what_is_there_already(path: Path, registry: Registry, clock: Clock) -> None:
    task = add(registry, session_id="old")
    registry.update(task.id, status="completed", result="Done.")
    put(registry, "old", clock, ago=timedelta())
    clock.pass_by(days=8)
    with closing(Registry(path, clock=clock, retention=timedelta(days=7))) as shorter:
        assert shorter.compact() == Compacted(1, 2, 1)
        ended = add(shorter)
        shorter.update(ended.id, status="completed")
        known = shorter.get(ended.id)
        assert known is not None
        assert known.expires_at == clock.now + timedelta(days=7)


def test_one_transaction_deletes_whole_sessions_and_not_too_many(
    registry: Registry, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(250):
        put(registry, f"s-{number}", clock)

    def some() -> Compacted:
        return registry.database.write(lambda connection: compact_some(connection, clock.now, RETENTION))[0]

    assert some() == Compacted(100, 200)
    monkeypatch.setattr(upkeep, "_EVENTS_AT_ONCE", 50)
    assert some() == Compacted(25, 50)
    monkeypatch.setattr(upkeep, "_EVENTS_AT_ONCE", 1)
    assert some() == Compacted(1, 2), "a long session is deleted alone, and whole"
    monkeypatch.undo()
    assert registry.compact() == Compacted(124, 248)


def test_a_write_does_not_fail_because_a_deletion_fails(
    registry: Registry, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    put(registry, "old", clock)
    refuse = "CREATE TRIGGER refuse BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the disk says no'); END"
    registry.database.write(lambda connection: connection.execute(refuse))
    with caplog.at_level(logging.WARNING):
        task = add(registry)
    assert registry.get(task.id) == task
    assert "the disk says no" in caplog.text
    assert count(registry, "old") == 2


def test_nothing_of_a_deleted_transcript_is_left_in_the_file(registry: Registry, path: Path, clock: Clock) -> None:
    put(registry, "old", clock, texts=("my-private-words " * 1000, "short-private-words"))
    registry.close()
    assert b"private-words" in path.read_bytes()
    registry.compact()
    registry.close()
    assert b"private-words" not in path.read_bytes()


@pytest.mark.parametrize(
    ("content", "days"),
    [("retention_days = 7", 7), ("", 30), ("retention_days = 'a year'", LONGEST_RETENTION_DAYS)],
    ids=["set", "not set", "wrong"],
)
def test_a_hub_deletes_by_the_users_own_file_and_nothing_where_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, days: int
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "helmsman").mkdir()
    (tmp_path / "helmsman" / "helmsman.toml").write_text(content)
    assert hub_process._own_settings(tmp_path)[1] == days
