"""A store that several machines write at once, each over a connection of its own: a fleet's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest

from helmsman.model.events import Notice
from helmsman.store import log
from helmsman.store.connection import StoreConnection
from helmsman.store.database import Database
from helmsman.store.log import NewEvent
from helmsman.store.postgres import PostgresDatabase
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry

MACHINES = 4


@pytest.fixture
def machines(postgres_address: str) -> Iterator[list[Database]]:
    with ExitStack() as opened:
        yield [
            opened.enter_context(closing(PostgresDatabase(postgres_address, is_shared=True))) for _ in range(MACHINES)
        ]


def registry(database: Database) -> Registry:
    return Registry(Path(), database=database)


def test_no_writer_interleaves_with_another(machines: list[Database]) -> None:
    """What a function reads is still so when it writes: in tasks, logs and keys."""
    task, _ = registry(machines[0]).add(TaskDraft(instruction="count"))

    def write(number: int) -> str:
        machine = machines[number % MACHINES]
        tasks = registry(machine)
        tasks.update(task.id, granted={str(number): number})
        remark = NewEvent.of(Notice(session_id="s", kind="engine", message=str(number)))
        machine.write(lambda connection: log.append(connection, {"s": [remark]}))
        return tasks.add(TaskDraft(instruction="once", idempotency_key="key"))[0].id

    with ThreadPoolExecutor(MACHINES) as threads:
        assert len(set(threads.map(write, range(5 * MACHINES)))) == 1
    tasks = registry(machines[0])
    counted = tasks.get(task.id)
    assert counted is not None
    assert counted.granted == {str(number): number for number in range(5 * MACHINES)}
    stored = tasks.events("s")
    assert stored.cursor == len(stored.events) == 5 * MACHINES


def test_a_writer_does_not_wait_for_one_that_writes_something_else(machines: list[Database]) -> None:
    """A store of one hub has one lease, which each transaction updates."""
    one, other = (registry(machine) for machine in machines[:2])
    tasks = [one.add(TaskDraft(instruction=name))[0] for name in ("first", "second")]
    is_open, may_end = threading.Event(), threading.Event()

    def slow(connection: StoreConnection) -> None:
        connection.execute("UPDATE tasks SET revision = revision + 1 WHERE id = ?", (tasks[0].id,))
        is_open.set()
        assert may_end.wait(20)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(machines[0].write, slow)
        try:
            assert is_open.wait(20)
            changed = other.update(tasks[1].id, note="written meanwhile")
        finally:
            may_end.set()
        writing.result(20)
    assert changed is not None
    assert changed.note == "written meanwhile"


def test_a_reader_gets_each_event_once_while_another_machine_appends(machines: list[Database]) -> None:
    def put(text: str) -> None:
        remark = NewEvent.of(Notice(session_id="s", kind="engine", message=text))
        machines[1].write(lambda connection: log.append(connection, {"s": [remark]}))

    class Interrupted:
        """Connection after whose first statement another machine appends an event."""

        def __init__(self, connection: StoreConnection) -> None:
            self._connection = connection
            self._put: list[str] = ["second"]

        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            cursor = self._connection.execute(sql, parameters)
            while self._put:
                put(self._put.pop())
            return cursor

    put("first")
    begin = machines[0].read(lambda connection: log.read(cast("StoreConnection", Interrupted(connection)), "s"))
    rest = machines[0].read(lambda connection: log.read(connection, "s", begin.cursor))
    read = [event.message for event in (*begin.events, *rest.events) if isinstance(event, Notice)]
    assert read == ["first", "second"]
