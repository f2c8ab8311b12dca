"""Stored schedules and their runs.

A run that is due is a task like any other. It is entered together with the schedule's next time, in one transaction: after a
crash it is there, once, or it is still due.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from helmsman.base.redaction import redact_value
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.errors import InvalidInput
from helmsman.schedules.when import When
from helmsman.store import outbox
from helmsman.store.database import from_microseconds, microseconds
from helmsman.tasks.model import RUNNING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database
    from helmsman.tasks.model import Task, TaskDraft

Missed = Literal["run", "skip"]

_MOST: Final = 200
RUNS_KEPT: Final = 200
"""Runs kept per schedule."""


class Schedule(Value, frozen=True, kw_only=True):
    """Work that starts at a later time.

    Attributes:
        prompt: Prompt of each run.
        when: Times of the runs.
        directory: Working directory.
        spec: All that is needed to run it (`helmsman.model.request`).
        policy: Policy of its turns, beside their options (`helmsman.steering.turn_policy`).
        missed: Policy for times that passed while the machine slept: one run for all of them, or none.
        overlap: True if a run may start while the previous one still works.
        proposed_by: MCP client with the model that proposed it. It is paused until a user confirms it by resuming it.
        next_at: Time of the next run; None if it is paused, or has no further times.
        last: Its newest run.
    """

    id: str
    prompt: str
    when: When
    directory: str
    spec: Mapping[str, Any]
    policy: Mapping[str, Any]
    missed: Missed = "run"
    overlap: bool = False
    is_paused: bool = False
    proposed_by: str | None = None
    created_at: datetime
    next_at: datetime | None = None
    last: ScheduleRun | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields that never change, as the store holds them.

        Raises:
            InvalidInput: It holds a secret, which would be kept on disk.
        """
        content: dict[str, Any] = pack(replace(self, is_paused=False, proposed_by=None, next_at=None, last=None))
        if redact_value(content) != content:
            raise InvalidInput(
                "This looks as if it held a secret, which would be kept on disk. Let the agent read it from a file or a "
                "variable instead.",
                parameter="prompt",
            )
        return content


class ScheduleRun(Value, frozen=True, kw_only=True):
    """Run at one due time, or on request: its task, or the reason why it has none."""

    due_at: datetime
    entered_at: datetime
    task_id: str | None = None
    note: str | None = None


def new_schedule_id(prefix: str = "S-") -> str:
    return f"{prefix}{secrets.token_hex(4)}"


def refuse_more(count: int) -> None:
    """Check that one more schedule fits the limit.

    Raises:
        InvalidInput: It does not.
    """
    if count >= _MOST:
        raise InvalidInput(f"There are {_MOST} schedules, and there can be no more. Remove one first.")


class TaskQueue(Protocol):
    """Where the tasks of runs are entered: the registry of a machine, or the queue of a fleet."""

    def add(self, draft: TaskDraft, also: Callable[[StoreConnection, Task], None] | None = None) -> tuple[Task, bool]:
        """Enter a task, and in the same transaction `also`. Return False with the task that has its key already."""
        ...


class ScheduleStore:
    """Schedules of a store.

    Writes raise `RegistryUnavailable` if the store cannot be written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.begin_now: Callable[[Schedule], Awaitable[Task]] | None = None
        """Starts a run now; None in a process that runs no schedules."""

    async def now(self) -> datetime:
        """Return the current time of the schedules' clock."""
        return self.clock()

    async def add(self, schedule: Schedule) -> None:
        """Write a new one down.

        Raises:
            InvalidInput: It holds a secret, which would be kept on disk, or there are too many.
        """
        content = schedule.content()

        def work(connection: StoreConnection) -> None:
            # Counted in the transaction: two processes must not both add the last one that is allowed.
            refuse_more(connection.execute("SELECT COUNT(*) FROM schedules").fetchone()[0])
            connection.execute(
                "INSERT INTO schedules (id, content, next_at, is_paused, created_at, proposed_by) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (
                    schedule.id,
                    json.dumps(content),
                    _stored(schedule.next_at),
                    int(schedule.is_paused),
                    microseconds(schedule.created_at),
                    schedule.proposed_by,
                ),
            )
            # In the same transaction, so that no crash loses the message about a proposal.
            if schedule.proposed_by is not None:
                outbox.enter(connection, f"proposal {schedule.id}", schedule.created_at)

        await self._database.write_soon(work)

    async def all(self) -> tuple[Schedule, ...]:
        """Return all schedules, oldest first, without those that this version cannot read."""
        return await self._database.read_soon(_all)

    async def next_at(self) -> datetime | None:
        """Return when the first schedule is due. Much cheaper than reading all of them."""
        sql = "SELECT min(next_at) FROM schedules WHERE is_paused = 0"

        def work(connection: StoreConnection) -> datetime | None:
            at = connection.execute(sql).fetchone()[0]
            return None if at is None else from_microseconds(at)

        return await self._database.read_soon(work)

    def read(self) -> tuple[Schedule, ...]:
        """Return all schedules. Blocks."""
        return self._database.read(_all)

    async def runs(self, schedule_id: str, limit: int) -> tuple[ScheduleRun, ...]:
        """Its runs, newest first."""
        sql = "SELECT * FROM schedule_runs WHERE schedule = ? ORDER BY entered_at DESC, due_at DESC LIMIT ?"

        def work(connection: StoreConnection) -> tuple[ScheduleRun, ...]:
            return tuple(_run(row) for row in connection.execute(sql, (schedule_id, limit)))

        return await self._database.read_soon(work)

    async def pause(self, schedule_id: str, *, is_paused: bool, next_at: datetime | None) -> None:
        """Pause it, or resume it at its next due time, which confirms a proposed one."""
        values = (int(is_paused), _stored(next_at), int(is_paused), schedule_id)
        proposed_by = "CASE WHEN ? = 1 THEN proposed_by END"
        sql = f"UPDATE schedules SET is_paused = ?, next_at = ?, proposed_by = {proposed_by} WHERE id = ?"  # noqa: S608
        await self._database.write_soon(lambda connection: connection.execute(sql, values))

    async def remove(self, schedule_id: str) -> None:
        """Forget it. Its tasks stay."""

        def work(connection: StoreConnection) -> None:
            connection.execute("DELETE FROM schedule_runs WHERE schedule = ?", (schedule_id,))
            connection.execute("DELETE FROM schedules WHERE id = ?", (schedule_id,))

        await self._database.write_soon(work)

    async def still_runs(self, schedule_id: str) -> bool:
        """Return whether a run of it is still at work, or waits."""
        sql = "SELECT DISTINCT status FROM schedule_runs JOIN tasks ON tasks.id = task_id WHERE schedule_runs.schedule = ?"

        def work(connection: StoreConnection) -> bool:
            return any(row["status"] in RUNNING for row in connection.execute(sql, (schedule_id,)))

        return await self._database.read_soon(work)

    async def skip(self, schedule: Schedule, run: ScheduleRun, next_at: datetime | None) -> None:
        """Write down that it was due, why nothing was begun (the run's note), and when it is due next."""

        def work(connection: StoreConnection) -> None:
            if _is_due(connection, schedule):
                _enter(connection, schedule, run)
                _move(connection, schedule, next_at)

        await self._database.write_soon(work)

    async def move(self, schedule: Schedule, next_at: datetime | None) -> None:
        """Set the next time of a schedule, unless it was paused or moved in the meantime."""

        def work(connection: StoreConnection) -> None:
            if _is_due(connection, schedule):
                _move(connection, schedule, next_at)

        await self._database.write_soon(work)

    def begin(
        self, queue: TaskQueue, schedule: Schedule, run: ScheduleRun, draft: TaskDraft, next_at: datetime | None
    ) -> Task | None:
        """Enter the task of a run that is due, and with it when the schedule is due next. Blocks.

        None where it was entered before, or where the schedule was paused, moved or removed just now.
        """

        def also(connection: StoreConnection, task: Task) -> None:
            if not _is_due(connection, schedule):
                # Inside the transaction, so that the task is not entered either.
                raise _NotDue
            _enter(connection, schedule, replace(run, task_id=task.id))
            _move(connection, schedule, next_at)

        try:
            task, is_new = queue.add(draft, also)
        except _NotDue:
            return None
        # The queue knew the key: another process has begun this run.
        return task if is_new else None

    def begin_beside(self, queue: TaskQueue, schedule: Schedule, run: ScheduleRun, draft: TaskDraft) -> Task:
        """Store the task of a requested run; the due time of the schedule does not change. Blocks."""
        return queue.add(draft, lambda to, task: _enter(to, schedule, replace(run, task_id=task.id)))[0]


class _NotDue(Exception):
    """Raised if the schedule was paused, moved or removed concurrently."""


def _all(connection: StoreConnection) -> tuple[Schedule, ...]:
    rows = connection.execute(
        "SELECT schedules.*, due_at, entered_at, task_id, note FROM schedules LEFT JOIN schedule_runs "
        "ON schedule = schedules.id AND due_at = (SELECT due_at FROM schedule_runs WHERE schedule = schedules.id "
        "ORDER BY entered_at DESC, due_at DESC LIMIT 1) ORDER BY created_at, schedules.id"
    )
    return tuple(one for row in rows if (one := _schedule(row)) is not None)


def _is_due(connection: StoreConnection, schedule: Schedule) -> bool:
    """Return whether it is still due when it was."""
    sql = f"SELECT 1 FROM schedules WHERE id = ? AND is_paused = 0 AND next_at = ? {connection.dialect.row_lock}"  # noqa: S608
    return connection.execute(sql, (schedule.id, _stored(schedule.next_at))).fetchone() is not None


def _move(connection: StoreConnection, schedule: Schedule, next_at: datetime | None) -> None:
    sql = "UPDATE schedules SET next_at = ? WHERE id = ? AND is_paused = 0"
    connection.execute(sql, (_stored(next_at), schedule.id))


def _enter(connection: StoreConnection, schedule: Schedule, run: ScheduleRun) -> None:
    due_at = microseconds(run.due_at)
    # Another process may have entered this due time already.
    entered = connection.execute(
        "INSERT INTO schedule_runs (schedule, due_at, entered_at, task_id, note) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT DO NOTHING",
        (schedule.id, due_at, microseconds(run.entered_at), run.task_id, run.note),
    )
    # A run with a task is reported by its task. One without a task is reported here.
    if entered.rowcount and run.task_id is None:
        outbox.enter(connection, f"run {schedule.id} {due_at}", run.entered_at)
    connection.execute(
        "DELETE FROM schedule_runs WHERE schedule = ? AND due_at NOT IN "
        "(SELECT due_at FROM schedule_runs WHERE schedule = ? ORDER BY entered_at DESC LIMIT ?)",
        (schedule.id, schedule.id, RUNS_KEPT),
    )


def _schedule(row: Any) -> Schedule | None:
    try:
        content = json.loads(row["content"])
    except ValueError:
        return None
    schedule = unpack_if_valid(content, Schedule)
    return schedule and replace(
        schedule,
        is_paused=bool(row["is_paused"]),
        proposed_by=row["proposed_by"],
        next_at=None if row["next_at"] is None else from_microseconds(row["next_at"]),
        last=None if row["due_at"] is None else _run(row),
    )


def _run(row: Any) -> ScheduleRun:
    return ScheduleRun(
        due_at=from_microseconds(row["due_at"]),
        entered_at=from_microseconds(row["entered_at"]),
        task_id=row["task_id"],
        note=row["note"],
    )


def _stored(time: datetime | None) -> int | None:
    return None if time is None else microseconds(time)
