from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.model.events import Usage
from helmsman.sessions.state import SessionStatus
from helmsman.store.upkeep import RETENTION
from helmsman.tasks.model import (
    ENDED,
    RUNNING,
    Task,
    TaskChanges,
    TaskStatus,
    changed,
    mcp_status_of,
    new_task_id,
    task_status_of,
)

BEGAN = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = BEGAN + timedelta(minutes=5)


def task(status: TaskStatus = "working", **fields: Any) -> Task:
    about = {"id": "T-local-1", "origin": "local", "alias": "fix-it-task", "instruction": "Fix it"}
    return Task(**{**about, "status": status, "created_at": BEGAN, "updated_at": BEGAN, **fields})


statuses = st.sampled_from(get_args(TaskStatus))


def test_every_status_of_a_session_is_one_of_a_task() -> None:
    found = {status: task_status_of(status) for status in get_args(SessionStatus)}
    assert found == {
        "active": "working",
        "awaiting_approval": "working",
        "done": "completed",
        "error": "failed",
        "interrupted": "canceled",
    }


@pytest.mark.parametrize(
    ("status", "input_required", "shown"),
    [
        ("pending", False, "working"),
        ("working", False, "working"),
        ("working", True, "input_required"),
        ("completed", False, "completed"),
        ("failed", False, "completed"),
        ("canceled", False, "cancelled"),
        ("unknown", False, "completed"),
    ],
)
def test_every_status_of_a_task_is_one_of_an_mcp_task(status: TaskStatus, input_required: bool, shown: str) -> None:
    assert mcp_status_of(task(status, input_required=input_required)) == shown


def test_ids_tell_where_a_task_runs_and_are_all_different() -> None:
    assert new_task_id("cloud").startswith("T-cloud-")
    assert len({new_task_id("local") for _ in range(1000)}) == 1000


def test_a_task_that_ends_gets_its_time_and_its_expiry() -> None:
    ended = changed(task(input_required=True, note="waiting"), {"status": "completed", "result": "Done."}, LATER)
    assert (ended.status, ended.result, ended.completed_at) == ("completed", "Done.", LATER)
    assert ended.expires_at == LATER + RETENTION
    assert not ended.input_required
    assert ended.note is None


def test_an_expiry_that_the_caller_chose_stays_unless_it_has_passed() -> None:
    soon, past = LATER + timedelta(hours=1), LATER - timedelta(minutes=1)
    assert changed(task(expires_at=soon), {"status": "completed"}, LATER).expires_at == soon
    assert changed(task(expires_at=past), {"status": "completed"}, LATER).expires_at == LATER + RETENTION


def test_an_ended_task_takes_only_completing_fields() -> None:
    ended = changed(task(progress={"done": 3}), {"status": "completed"}, LATER)
    late: TaskChanges = {
        "usage": Usage(1, 0, 2, 0),
        "progress": {"done": 1},
        "input_required": True,
        "owner": Process.me(),
    }
    after = changed(ended, late, LATER)
    assert after == replace(ended, usage=Usage(1, 0, 2, 0), revision=ended.revision + 1)


def test_unknown_may_become_anything_and_loses_its_note() -> None:
    lost = changed(task(), {"status": "unknown", "note": "Nobody knows."}, LATER)
    assert (lost.note, lost.completed_at) == ("Nobody knows.", None)
    for status in get_args(TaskStatus):
        if status != "unknown":
            found = changed(lost, {"status": status}, LATER)
            assert (found.status, found.note) == (status, None)


def test_a_begun_task_drops_its_request_unless_the_same_write_continues_it() -> None:
    waits = task("pending", spec={"text": "Fix it"})
    assert changed(waits, {"status": "working"}, LATER).spec is None
    limited = changed(waits, {"status": "working", "spec": {"text": "Go on"}, "waiting_for": "quota"}, LATER)
    assert (limited.spec, limited.is_waiting) == ({"text": "Go on"}, True)


def test_metadata_is_merged() -> None:
    after = changed(task(granted={"options": {"a": 1}, "b": 2}), {"granted": {"b": 3}}, LATER)
    assert after.granted == {"options": {"a": 1}, "b": 3}


def test_a_change_that_changes_nothing_is_none() -> None:
    same = task(progress={"done": 1})
    assert changed(same, {"status": "working", "progress": {"done": 1}}, LATER) is same


changes = st.fixed_dictionaries(
    {},
    optional={
        "status": statuses,
        "note": st.none() | st.text(max_size=5),
        "result": st.none() | st.text(max_size=5),
        "progress": st.none() | st.fixed_dictionaries({"done": st.integers(0, 3)}),
        "input_required": st.booleans(),
        "granted": st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)),
    },
)


@given(statuses, st.lists(changes, max_size=8))
def test_the_first_end_of_a_task_is_final(begin: TaskStatus, steps: list[TaskChanges]) -> None:
    now, current = BEGAN, task(begin)
    for step in steps:
        now += timedelta(seconds=1)
        before, current = current, changed(current, step, now)
        assert current.revision - before.revision == (current is not before)
        if before.status in ENDED:
            assert current.status == before.status
            assert current.completed_at == before.completed_at
            assert current.progress == before.progress
            if step.get("status", before.status) != before.status:
                assert current is before
        else:
            assert current.status == step.get("status", before.status)
        if current.status != before.status and current.status not in RUNNING:
            assert current.expires_at is not None
            assert current.expires_at > now
            assert not current.input_required
