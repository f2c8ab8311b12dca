"""What a turn did: worked out from its items, kept with its task, and dropped with its result."""

from __future__ import annotations

from datetime import timedelta

from helmsman.git.diff import FileStat, files_of
from helmsman.model.events import AgentMessage, CommandExecution, FileChange, PathChange
from helmsman.store.upkeep import RETENTION
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.outcome import TaskOutcome, TestCount, changed_files, kept, outcome_of, to_keep
from helmsman.tasks.registry import Registry
from tests.tasks.conftest import Clock

ADDED = PathChange(path="new.txt", kind="add", diff="one\ntwo\n")
CHANGED = PathChange(path="old.txt", kind="update", diff="@@ -1 +1,2 @@\n same\n+more\n")
MOVED = PathChange(path="a.txt", kind="update", moved_to="b.txt", diff="@@ -1 +1 @@\n-x\n+y\n")
GONE = PathChange(path="gone.txt", kind="delete", diff="one\n")
TESTS = CommandExecution(id="1", command="pytest", exit_code=1, output="== 2 passed, 1 failed, 3 skipped in 0.1s ==\n")
ITEMS = (
    FileChange(id="2", changes=(ADDED, CHANGED)),
    TESTS,
    FileChange(id="3", changes=(CHANGED, MOVED, GONE)),
    FileChange(id="4", changes=(PathChange(path="no.txt", kind="add", diff="x\n"),), declined=True),
    CommandExecution(id="5", command="bash -lc 'echo done'", exit_code=0, output="done\n"),
    AgentMessage(id="6", text="Half of it."),
    AgentMessage(id="7", text="All of it."),
)


def test_the_items_of_a_turn_tell_what_it_did() -> None:
    found = outcome_of(ITEMS)
    assert found.files == (
        FileStat(path="new.txt", kind="added", added=2, removed=0),
        FileStat(path="old.txt", kind="modified", added=2, removed=0),
        FileStat(path="b.txt", kind="renamed", old_path="a.txt", added=1, removed=1),
        FileStat(path="gone.txt", kind="deleted", added=0, removed=1),
    )
    assert [(one.command, one.exit_code) for one in found.commands] == [("pytest", 1), ("echo done", 0)]
    assert found.tests == TestCount(passed=2, failed=1, skipped=3)
    assert found.output == "Half of it.\n\nAll of it."


def test_a_missing_diff_is_assembled_from_the_changes() -> None:
    diff = outcome_of(ITEMS).diff
    assert diff is not None
    assert [(file.path, file.kind) for file in files_of(diff)] == [
        ("new.txt", "added"),
        ("old.txt", "modified"),
        ("old.txt", "modified"),
        ("b.txt", "renamed"),
        ("gone.txt", "deleted"),
    ]
    assert all(file.added is not None for file in files_of(diff)), "its hunks add up"


def test_a_reported_total_wins_over_single_changes() -> None:
    told = "diff --git a/old.txt b/old.txt\n--- a/old.txt\n+++ b/old.txt\n@@ -1 +1,2 @@\n same\n+more\n"
    assert changed_files(ITEMS, told) == (FileStat(path="old.txt", kind="modified", added=1, removed=0),)


def test_files_are_named_as_seen_from_where_the_turn_worked() -> None:
    changes = (PathChange(path="/src/app/lib/a.py", kind="add", diff="x\n"), PathChange(path="/etc/b", kind="delete"))
    found = changed_files([FileChange(id="1", changes=changes)], directory="/src/app")
    assert [file.path for file in found] == ["lib/a.py", "/etc/b"]


def test_a_test_run_that_was_broken_off_counts_nothing() -> None:
    broken = CommandExecution(id="1", command="pytest", status="failed", output="collected 9 items\n..  [ 22%]\n")
    assert outcome_of([broken]).tests is None


def test_a_stored_outcome_comes_back_without_secrets() -> None:
    secret = "sk-proj-" + "a1B2" * 12
    items = (*ITEMS, CommandExecution(id="8", command=f"curl -H 'Authorization: Bearer {secret}' x", exit_code=0))
    assert kept(to_keep(outcome_of(ITEMS))) == outcome_of(ITEMS)
    assert secret not in str(to_keep(outcome_of(items, f"+{secret}")))


def test_invalid_values_count_as_absent() -> None:
    for content in ({"files": [{"no": 1}]}, {"files": 3}, {"tests": {"passed": 1}}, {"commands": [None]}):
        assert kept(content) == TaskOutcome()


def test_it_is_kept_until_the_result_expires(registry: Registry, clock: Clock) -> None:
    task, _ = registry.add(TaskDraft(instruction="Fix it"))
    registry.keep_outcome(task.id, outcome_of(ITEMS))
    registry.update(task.id, status="completed", result="All of it.")
    registry.keep_outcome("T-local-000000000000", outcome_of(ITEMS))
    assert registry.outcome("T-local-000000000000") is None, "there is no such task"
    clock.now += RETENTION - timedelta(seconds=1)
    registry.compact()
    assert registry.outcome(task.id) == outcome_of(ITEMS)
    clock.now += timedelta(seconds=2)
    registry.compact()
    assert registry.outcome(task.id) is None
    registry.keep_outcome(task.id, outcome_of(ITEMS))
    assert registry.outcome(task.id) is None, "it has expired for good"
