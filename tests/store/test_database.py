"""The file under the registry: who may read it, and what happens when it is damaged, gone, full or held by another."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from helmsman.base.files import file_lock
from helmsman.errors import InvalidSetting, RegistryUnavailable
from helmsman.store import sqlite
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry


def draft(instruction: str = "Fix the login test") -> TaskDraft:
    return TaskDraft(instruction=instruction)


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_only_its_user_can_read_it_whatever_the_umask(registry: Registry, path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.touch(mode=0o644)
    before = os.umask(0)
    try:
        registry.add(draft())
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys((path.name + end for end in ("", "-wal", "-shm", ".lock")), 0o600)


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_a_directory_that_others_can_write_to_is_refused(registry: Registry, path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(InvalidSetting):
        registry.add(draft())


def test_a_file_that_is_no_registry_is_kept_and_a_new_one_begun(
    registry: Registry, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"not a database, " * 1000)
    with caplog.at_level(logging.ERROR):
        task, fresh = registry.add(draft())
    assert fresh
    assert registry.get(task.id) == task
    assert "is damaged" in caplog.text
    kept = [file for file in path.parent.iterdir() if ".damaged-" in file.name]
    assert [file.read_bytes()[:16] for file in kept] == [b"not a database, "]


def test_a_registry_that_is_damaged_while_it_is_used_is_replaced_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registries = [Registry(path) for _ in range(8)]
    for number in range(200):
        registries[0].add(draft(f"job number {number} with a long story" + " and more" * 50))
    registries[0].close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with caplog.at_level(logging.ERROR), ThreadPoolExecutor(len(registries)) as threads:
        added = list(threads.map(lambda registry: registry.add(draft())[0], registries))
    for registry in registries:
        assert {task.id for task in registry.running()} == {task.id for task in added}
        registry.close()
    assert caplog.text.count("is damaged") == 1
    assert (
        len([file for file in path.parent.iterdir() if file.name.endswith(".damaged") or ".damaged-" in file.name]) == 1
    )


def test_a_removed_registry_is_created_again(registry: Registry, path: Path) -> None:
    registry.add(draft())
    other = Registry(path)
    other.running()
    for file in path.parent.iterdir():
        file.unlink()
    task, _ = registry.add(draft())
    assert other.get(task.id) == task
    assert len(registry.running()) == 1
    other.close()


def test_a_directory_in_its_place_is_reported_with_what_to_do(registry: Registry, path: Path) -> None:
    path.mkdir(parents=True, mode=0o700)
    path.parent.chmod(0o700)
    with pytest.raises(RegistryUnavailable, match="HELMSMAN_STATE_DIR"):
        registry.running()


def test_the_holder_of_the_file_is_waited_for(registry: Registry, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.01)
    task, _ = registry.add(draft())
    registry.close()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(registry.update, task.id, status="working")
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            with closing(Registry(path)) as reader:
                assert reader.get(task.id) == task, "readers do not wait"
            holder.execute("COMMIT")
            updated = waiting.result(timeout=10)
    assert updated is not None
    assert updated.status == "working"


def test_a_holder_that_never_releases_it_is_reported_after_a_limit(
    registry: Registry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.01)
    monkeypatch.setattr(sqlite, "_PATIENCE_SECONDS", 0.1)
    task, _ = registry.add(draft())
    registry.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryUnavailable, match=r"Try again in a moment\.$") as refused:
            registry.update(task.id, status="working")
        assert refused.value.retryable
        assert registry.get(task.id) == task
    updated = registry.update(task.id, status="working")
    assert updated is not None


def test_a_holder_that_never_finishes_opening_it_is_reported_too(
    registry: Registry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_PATIENCE_SECONDS", 0.1)
    path.parent.mkdir(mode=0o700)
    with (
        file_lock(path.with_name(f"{path.name}.lock"), timeout=0),
        pytest.raises(RegistryUnavailable, match="holds it"),
    ):
        registry.running()
    assert registry.running() == ()


def test_two_connections_of_a_process_do_not_take_each_others_locks(registry: Registry, path: Path) -> None:
    """Else another process that closes the file takes itself for the last, and removes what is being written to."""
    first, _ = registry.add(TaskDraft(instruction="first"))
    second_connection = Registry(path)
    assert second_connection.get(first.id) == first
    program = (
        "import sys; from pathlib import Path; from helmsman.tasks.registry import Registry\n"
        "registry = Registry(Path(sys.argv[1])); print(len(registry.running())); registry.close()"
    )
    looking = [sys.executable, "-c", program, str(path)]
    assert subprocess.check_output(looking) == b"1\n"
    registry.add(TaskDraft(instruction="second"))
    assert subprocess.check_output(looking) == b"2\n"
    second_connection.close()
