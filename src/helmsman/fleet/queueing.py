"""Queue of a fleet on top of DBOS: enqueue, claim, and requeue the work of dead workers.

DBOS provides the queue: deduplication, priority, delay, and claims by one worker. A DBOS workflow is one task with one step
that runs the whole task; everything else is in Helmsman's tables. Helmsman decides when to read which queue: DBOS would poll
every queue several times a second, whereas workers are notified. This module contains all uses of private DBOS functions:
its unused loops, the claim of queued work, and the function that requeues work only if a dead worker still has it. Therefore
the version is pinned.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.to_thread
import dbos._dbos as machinery
import dbos._serialization as serialization
import psycopg
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions
from dbos._core import execute_dequeued_workflow
from dbos._queue import _INTERNAL_QUEUE_CONSTRUCTION, Queue
from dbos._sys_db_postgres import PostgresSystemDatabase

from helmsman.base.concurrency import sleep_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sqlalchemy import Connection, Engine

    from helmsman.fleet.database import FleetDatabase

APPLICATION: Final = "helmsman"
VERSION: Final = "fleet-1"
"""Raised only when the workflow itself gets other steps: what ran on one version is never taken up by another."""
WORKFLOW: Final = "task"
QUEUES: Final = "helmsman_queues"
"""The channel on which workers hear that something waits, as the name of its queue."""
_LOOK_SECONDS: Final = 5.0
"""Polling interval of a worker with free capacity, in case a notification is lost."""
_REST_SECONDS: Final = 0.05
"""Between two looks, however much is notified."""
_LAST_SECONDS: Final = 0.1
"""Extra delay of an almost full worker, so that workers with more free capacity claim first."""
_MOST_RECOVERIES: Final = 1000
"""High limit, because the worker counts attempts itself and reports them in the task."""

log = logging.getLogger(__name__)


def prepare(url: str) -> None:
    """Make the tables of DBOS, or bring them up to date. Blocks."""
    _be_quiet()
    DBOS.migrate(url)


class _NoPickles(DBOSPortableJSONSerializer):
    """Replaces the pickle serializer of DBOS, which runs code: rows name their serializer and can be forged.

    DBOS has no setting for this. Only a worker reads such rows, in a separate process.
    """

    def name(self) -> str:
        return "py_pickle"

    def deserialize(self, text: str | None) -> Any:
        raise TypeError("A fleet stores JSON only. This row holds a pickle, which is not read.")

    def serialize(self, value: Any) -> str:
        return super().serialize(str(value))


def _be_quiet() -> None:
    logging.getLogger("dbos").setLevel(logging.ERROR)


class Enqueuer:
    """Enqueues tasks in the transaction that stores them. Its methods block: call them in threads."""

    def __init__(self, url: str, connections: int = 4, name: str = "helmsman door queue") -> None:
        _be_quiet()
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
        self.engine: Engine = sa.create_engine(
            address,
            pool_size=connections,
            max_overflow=0,
            connect_args={"connect_timeout": 5, "application_name": name, "prepare_threshold": None},
        )
        self._client = DBOSClient(
            system_database_engine=self.engine,
            serializer=DBOSPortableJSONSerializer(),
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    def close(self) -> None:
        self._client.destroy()
        self.engine.dispose()

    def put(
        self, connection: Connection, task_id: str, queue: str, *, priority: int, delay: float | None = None
    ) -> None:
        """Queue a task; one that was queued before stays as it is."""
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "workflow_id": task_id,
            "queue_name": queue,
            "priority": priority,
            "app_version": VERSION,
        }
        if delay is not None:
            options["delay_seconds"] = delay
        self._client.enqueue_in_transaction(connection, options, task_id)

    def forget(self, task_ids: Iterable[str]) -> None:
        """Remove tasks from the queue that ended before a worker took them."""
        self._client.cancel_workflows(list(task_ids))

    def delete(self, task_ids: Iterable[str]) -> None:
        """Remove all that DBOS knows of tasks."""
        self._client.delete_workflows(list(task_ids))


_WAITING: Final = """
    with recursive first as (
        (
            select queue_name, priority, created_at from dbos.workflow_status
            where status = 'ENQUEUED' and application_name = 'helmsman'
            order by queue_name, priority, created_at limit 1
        )
        union all
        select next.* from first, lateral (
            select queue_name, priority, created_at from dbos.workflow_status
            where status = 'ENQUEUED' and application_name = 'helmsman' and queue_name > first.queue_name
            order by queue_name, priority, created_at limit 1
        ) next
    )
    select array(select queue_name from first order by priority, created_at) as queues, (
        select min(delay_until_epoch_ms) / 1000.0 - extract(epoch from clock_timestamp()) from dbos.workflow_status
        where status = 'DELAYED' and application_name = 'helmsman'
    )::float as due
"""
"""Select the non-empty queues with their first entry, and the seconds until the next delayed task is due.

It reads only the ends of an index, so ten thousand tasks in a queue cost as much as one.
"""
_DUE: Final = """
    update dbos.workflow_status set status = 'ENQUEUED'
    where status = 'DELAYED' and application_name = 'helmsman'
        and delay_until_epoch_ms <= extract(epoch from clock_timestamp()) * 1000
    returning queue_name
"""


class Taker:
    """Takes tasks from queues for a worker and has them run, on the event loop in which it is launched."""

    def __init__(
        self,
        database: FleetDatabase,
        worker_id: str,
        run: Callable[[str], Awaitable[str]],
        *,
        capacity: int,
        serves: Callable[[str], bool],
        is_leaving: Callable[[], bool],
    ) -> None:
        """`run` runs a task by its id; `serves` says from which queues it takes."""
        _be_quiet()
        self._database = database
        self._id = worker_id
        self._capacity = capacity
        self._serves = serves
        self._is_leaving = is_leaving
        self.taken: set[str] = set()
        """Tasks that were taken here and have not ended."""
        self.started: set[str] = set()
        """Those of them that have begun to run."""
        self._woken = anyio.Event()
        serialization.DBOSDefaultSerializer = _NoPickles()
        self._dbos = DBOS(
            config={
                "name": APPLICATION,
                "system_database_url": database.url,
                "executor_id": worker_id,
                "application_version": VERSION,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "ERROR",
                "run_migrations": False,
                "sys_db_pool_size": 4,
            }
        )

        @DBOS.step(name="run")
        async def step(task_id: str) -> str:
            return await run(task_id)

        @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=_MOST_RECOVERIES)
        async def workflow(task_id: str) -> str:
            self.taken.add(task_id)
            self.started.add(task_id)
            try:
                return await step(task_id)
            finally:
                self.taken.discard(task_id)
                self.started.discard(task_id)
                self.wake()

    def launch(self) -> None:
        """Prepare to run tasks. Call it in the event loop."""
        for owner, loop in _UNUSED:
            assert hasattr(owner, loop), loop
            setattr(owner, loop, lambda *_: None)
        DBOS.launch()

    def wake(self) -> None:
        """Something may wait, or there is room again."""
        self._woken.set()

    async def take(self) -> None:
        """Take what waits whenever there is room for it."""
        while True:
            self._woken, wait = anyio.Event(), _LOOK_SECONDS
            try:
                if self._free > 0:
                    wait = await self._look()
            except (psycopg.Error, sa.exc.SQLAlchemyError) as error:
                log.debug("the queues cannot be looked into: %s", error)
            await anyio.sleep(_REST_SECONDS)
            await sleep_until(self._woken, wait)
            await anyio.sleep(_LAST_SECONDS * len(self.taken) / self._capacity)

    @property
    def _free(self) -> int:
        return 0 if self._is_leaving() else self._capacity - len(self.taken)

    async def _look(self) -> float:
        """Take as many tasks as there is capacity for. Return the seconds until the next poll without a notification."""
        row = await self._database.one(_WAITING)
        assert row is not None
        due = row["due"]
        if due is not None and due <= 0:
            queues = {found["queue_name"] for found in await self._database.all(_DUE)}
            await self._database.notify(*((QUEUES, queue) for queue in queues))
            return 0.0
        found = [queue for queue in row["queues"] if self._serves(queue)]
        for queue in found:
            if (free := self._free) > 0:
                some = (free + 1) // 2  # the others may have room, too
                await anyio.to_thread.run_sync(self._claim, queue, some, abandon_on_cancel=True)
        return _REST_SECONDS if found and self._free > 0 else min(_LOOK_SECONDS, due or _LOOK_SECONDS)

    def _claim(self, name: str, some: int) -> None:
        """Have tasks of a queue run here. Blocks."""
        token = uuid.uuid4().hex
        queue = Queue(name, worker_concurrency=some, token=_INTERNAL_QUEUE_CONSTRUCTION)
        found, _ = self._system.start_queued_workflows(queue, self._id, VERSION, None, owner_xid=token)
        self.taken.update(found)
        for status in self._system.get_workflow_statuses(found) if found else ():
            try:
                execute_dequeued_workflow(self._dbos, status, token)
            except (sa.exc.SQLAlchemyError, psycopg.Error):
                raise
            except Exception as error:  # noqa: BLE001 - DBOS raises what the row makes it raise; the others are to run
                self._refuse(status["workflow_uuid"], token, error)

    def _refuse(self, row_id: str, token: str, error: Exception) -> None:
        """End a row of the queue that this worker cannot have written. Blocks."""
        log.warning("a row of the queue is not one of a task, and is not run: %s: %s", row_id, error)
        self.taken.discard(row_id)
        reason = DBOSPortableJSONSerializer().serialize({"name": type(error).__name__, "message": str(error)})
        self._system.update_workflow_outcome(row_id, "ERROR", error=reason, owner_xid=token)

    @property
    def _system(self) -> Any:
        return cast("Any", self._dbos)._sys_db  # noqa: SLF001

    async def requeue(self, task_id: str, owner: str) -> bool:
        """Requeue a task if this dead worker still has it. Later calls have no effect."""
        is_back = await anyio.to_thread.run_sync(self._system.reenqueue_for_recovery, task_id, [owner], "codex")
        if is_back:
            row = await self._database.one("select queue from helmsman.tasks where id = %s", (task_id,))
            if row is not None:
                await self._database.notify((QUEUES, row["queue"]))
        return bool(is_back)


_UNUSED: Final = (
    (machinery, "queue_thread"),
    (machinery, "workflow_timeout_thread"),
    (machinery, "dynamic_scheduler_loop"),
    (PostgresSystemDatabase, "run_notification_listener"),
    (PostgresSystemDatabase, "run_notifier"),
)
"""The loops of DBOS that we have no use for: each would ask the database something every second, or hold a connection."""
