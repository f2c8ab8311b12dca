from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from helmsman.base.processes import Process
from helmsman.errors import InvalidInput
from helmsman.model.events import Usage
from helmsman.store.upkeep import RETENTION
from helmsman.tasks.model import Task, TaskDraft
from helmsman.tasks.outcome import TaskOutcome
from helmsman.tasks.registry import Batch, Registry
from tests.tasks.conftest import Clock


def add(registry: Registry, instruction: str = "Fix the login test", **fields: Any) -> Task:
    task, fresh = registry.add(TaskDraft(instruction=instruction, **fields))
    assert fresh
    return task


# --- adding ----------------------------------------------------------------------------------------------------------


def test_a_task_is_read_as_it_was_added_also_by_another_process(registry: Registry, clock: Clock) -> None:
    task = add(
        registry,
        directory="/src/repo",
        session_id="s-1",
        turn_id="t-1",
        owner=Process.me(),
        agent="other",
        engine="engine-1",
        model="gpt-5.5",
        idempotency_key="key",
        stored_options={"sandbox": "read-only", "roots": ["/a"]},
    )
    assert (task.alias, task.status, task.created_at) == ("fix-login-test", "pending", clock.now)
    other = Registry(registry.path, clock=clock)
    assert other.get(task.id) == task
    other.close()


def test_a_task_keeps_the_id_its_caller_chose(registry: Registry) -> None:
    assert add(registry, id="T-local-abcdefabcdef").id == "T-local-abcdefabcdef"
    assert add(registry, origin="cloud").id.startswith("T-cloud-")


def test_aliases_are_different_while_their_tasks_are_kept(registry: Registry, clock: Clock) -> None:
    assert [add(registry).alias for _ in range(3)] == ["fix-login-test", "fix-login-test-2", "fix-login-test-3"]
    assert [add(registry, "…").alias for _ in range(2)] == ["task-1", "task-2"]
    first = registry.find("fix-login-test")
    assert first is not None
    registry.update(first.id, status="completed")
    clock.pass_by(days=40)
    registry.compact()
    assert add(registry).alias == "fix-login-test"


def test_a_key_that_is_taken_returns_the_task_that_has_it(registry: Registry) -> None:
    task = add(registry, idempotency_key="key")
    again, fresh = registry.add(TaskDraft(instruction="Something else", idempotency_key="key"))
    assert (again, fresh) == (task, False)


def test_a_key_is_free_again_when_its_task_has_expired_or_gave_it_up(registry: Registry, clock: Clock) -> None:
    running = add(registry, idempotency_key="running", expires_at=clock.now + timedelta(hours=1))
    ended = add(registry, idempotency_key="ended")
    failed = add(registry, idempotency_key="failed")
    registry.update(ended.id, status="completed")
    registry.update(failed.id, status="failed", idempotency_key=None)
    assert add(registry, idempotency_key="failed").id != failed.id
    clock.pass_by(days=RETENTION.days + 1)
    assert add(registry, idempotency_key="ended").id != ended.id
    assert registry.add(TaskDraft(instruction="x", idempotency_key="running"))[0].id == running.id


# --- changing --------------------------------------------------------------------------------------------------------


def test_a_change_is_seen_by_all(registry: Registry, clock: Clock) -> None:
    task = add(registry)
    clock.pass_by(seconds=5)
    usage = Usage(100, 20, 10, 3)
    updated = registry.update(
        task.id,
        status="working",
        owner=Process.me(),
        usage=usage,
        progress={"done": 1, "total": 3},
        last_event_at=clock.now,
    )
    assert updated is not None
    assert (updated.status, updated.usage, updated.progress) == ("working", usage, {"done": 1, "total": 3})
    assert (updated.owner, updated.updated_at, updated.last_event_at) == (Process.me(), clock.now, clock.now)
    assert registry.get(task.id) == updated


def test_an_ended_task_is_not_set_to_work_again(registry: Registry) -> None:
    task = add(registry)
    ended = registry.update(task.id, status="completed", result="Done.")
    assert registry.update(task.id, status="working", result=None) == ended
    assert registry.get(task.id) == ended


def test_a_conclusion_from_an_old_view_is_not_written(registry: Registry) -> None:
    task = add(registry, status="working")
    taken_over = registry.update(task.id, owner=Process.me())
    assert registry.update(task.id, if_revision=task.revision, status="failed") == taken_over
    failed = registry.update(task.id, if_revision=task.revision + 1, status="failed")
    assert failed is not None
    assert failed.status == "failed"


def test_a_task_that_is_not_there_cannot_be_changed(registry: Registry) -> None:
    assert registry.update("T-local-000000000000", status="working") is None
    assert registry.get("T-local-000000000000") is None


# --- finding ---------------------------------------------------------------------------------------------------------


def test_a_task_is_found_by_its_exact_id_or_its_alias(registry: Registry) -> None:
    task = add(registry)
    assert registry.find(task.id) == task
    assert registry.find("Fix-Login-Test ") == task
    assert registry.find(task.id[:-1]) is None
    assert registry.find(task.id.lower()) is None
    assert registry.find("") is None


def test_lists_are_newest_first_and_in_pages(registry: Registry) -> None:
    ids = [add(registry, f"job {number} work").id for number in range(7)]
    found: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = registry.list(limit=3, cursor=cursor)
        found += [task.id for task in page]
        if cursor is None:
            break
        add(registry, "added between two pages")
    assert found == ids[::-1]


def test_lists_are_filtered(registry: Registry) -> None:
    old = add(registry, directory="/a")
    new = add(registry, directory="/b", status="working")
    cloud = add(registry, origin="cloud", directory="/b", agent="other")

    def listed(**filters: Any) -> list[str]:
        return [task.id for task in registry.list(**filters)[0]]

    assert listed(status=["working"]) == [new.id]
    assert listed(status=["working", "pending"]) == [cloud.id, new.id, old.id]
    assert listed(status=[]) == []
    assert listed(origin="cloud") == [cloud.id]
    assert listed(agent="codex") == [new.id, old.id]
    assert listed(agent="other", origin="local") == []
    assert listed(directories=["/b", "/c"], origin="local") == [new.id]


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"cursor": "x"}, {"cursor": "٣"}, {"cursor": "9" * 30}, {"cursor": "-1"}]
)
def test_a_page_that_makes_no_sense_is_refused(registry: Registry, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        registry.list(**wrong)


def test_running_tasks_are_those_with_work_left(registry: Registry) -> None:
    tasks = {status: add(registry, status=status) for status in ("pending", "working", "unknown", "completed")}
    assert {task.id for task in registry.running()} == {tasks["pending"].id, tasks["working"].id}


def test_the_turns_of_a_session_are_found(registry: Registry) -> None:
    first = add(registry, session_id="s-1", turn_id="0")
    add(registry, session_id="s-2", turn_id="0")
    last = add(registry, session_id="s-1", turn_id="0")
    assert registry.tasks_of_session("s-1") == (last, first)
    assert registry.tasks_of_session("s-3") == ()


# --- expiry ----------------------------------------------------------------------------------------------------------


def test_an_expired_result_is_dropped_and_its_row_kept_for_a_year(registry: Registry, clock: Clock) -> None:
    task = add(registry, idempotency_key="key", stored_options={"a": 1})
    running = add(registry, expires_at=clock.now)
    registry.update(task.id, status="completed", result="Done.", usage=Usage(1, 0, 1, 0), progress={"done": 1})
    registry.compact()
    kept = registry.get(task.id)
    assert kept is not None
    assert kept.result == "Done."
    clock.pass_by(days=RETENTION.days + 1)
    registry.compact()
    compacted = registry.get(task.id)
    assert compacted is not None
    assert (compacted.result, compacted.progress, compacted.stored_options) == (None, None, None)
    assert compacted.result_compacted
    assert (compacted.status, compacted.usage) == ("completed", Usage(1, 0, 1, 0))
    clock.pass_by(days=366)
    registry.compact()
    assert registry.get(task.id) is None
    assert registry.get(running.id) == running, "what is running is kept"


def test_expired_rows_are_deleted_with_the_next_write(path: Path, clock: Clock) -> None:
    with closing(Registry(path, clock=clock)) as earlier:
        task = add(earlier)
        earlier.update(task.id, status="completed", result="Done.")
    clock.pass_by(days=RETENTION.days + 1)
    with closing(Registry(path, clock=clock)) as later:
        kept = later.get(task.id)
        assert kept is not None
        assert kept.result == "Done.", "reading deletes nothing"
        later.commit(Batch(changes={task.id: {"granted": {"seen": True}}}))
        found = later.get(task.id)
        assert found is not None
        assert found.result_compacted


# --- watching and counting -------------------------------------------------------------------------------------------


def test_the_file_is_made_at_the_first_need(path: Path) -> None:
    registry = Registry(path)
    assert not path.exists()
    assert registry.list() == ((), None)
    assert path.exists()
    registry.close()
    assert registry.running() == (), "it opens again"
    registry.close()


def test_a_name_that_is_no_text_is_that_of_no_task(registry: Registry) -> None:
    """A command line and a file name may have bytes that are no UTF-8; Python spells them as halves of surrogate pairs."""
    add(registry)
    assert registry.find("fix-\udcff") is None
    assert registry.get("\ud800") is None
    assert registry.tasks_of_session("\ud800") == ()
    assert registry.list(directories=["/src/\udcff"]) == ((), None)


def test_a_list_may_ask_for_more_than_there_can_be(registry: Registry) -> None:
    task = add(registry)
    assert registry.list(limit=10**30) == ((task,), None)


def test_the_reports_of_a_kind_of_job_are_found_newest_first(registry: Registry) -> None:
    for number, kind in enumerate(("debug", "test", None, "debug")):
        task = add(registry, f'{number} says "job":"debug"', job=kind)
        registry.keep_outcome(task.id, TaskOutcome(report={"number": number}))
    assert [one["number"] for one in registry.job_reports("debug", 5)] == [3, 0]
    assert [one["number"] for one in registry.job_reports("debug", 1)] == [3]
