"""DBOS as a fleet uses it: what is queued, who takes it, and how the work of the dead is given back.

DBOS keeps the queue: accepted once, in order of priority, not before its time, taken by one worker. What it calls a workflow
is a task of ours with one step, which runs the task whole; everything else is in tables of ours. Three things of DBOS are
reached for that it does not offer by name, all here: how many tasks a process takes, which queues it learns of later, and
the one function that gives work back to its queue only if it is still that of somebody dead. Hence the pinned version.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, cast

import anyio.to_thread
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, EnqueueOptions
from dbos._serialization import DBOSPortableJSONSerializer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sqlalchemy import Connection, Engine

APPLICATION: Final = "helmsman"
VERSION: Final = "fleet-1"
"""Raised only when the workflow itself gets other steps: what ran on one version is never taken up by another."""
WORKFLOW: Final = "task"
FAST_POLL, SLOW_POLL = 0.3, 1.0
"""How often a worker looks into the queue of an agent, and into all others."""
_MOST_RECOVERIES: Final = 1000
"""Who counts attempts is the worker, which can say so in the task."""

log = logging.getLogger(__name__)


def prepare(url: str) -> None:
    """Make the tables of DBOS, or bring them up to date. Blocks."""
    _be_quiet()
    DBOS.migrate(url)


def _be_quiet() -> None:
    logging.getLogger("dbos").setLevel(logging.ERROR)


class Enqueuer:
    """Puts tasks into queues, in the transaction in which they are written down. Its methods block: call them in threads."""

    def __init__(self, url: str) -> None:
        _be_quiet()
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
        self.engine: Engine = sa.create_engine(
            address,
            pool_size=4,
            max_overflow=0,
            connect_args={"connect_timeout": 5, "application_name": "helmsman queue", "prepare_threshold": None},
        )
        self._client = DBOSClient(
            system_database_engine=self.engine,
            serializer=DBOSPortableJSONSerializer(),
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )
        self._registered: set[str] = set()

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

    def register(self, queue: str) -> None:
        """See to it that a queue is there: what is in one that nobody knows waits for ever."""
        if queue not in self._registered:
            poll = FAST_POLL if queue.isalnum() else SLOW_POLL
            self._client.register_queue(queue, polling_interval_sec=poll, on_conflict="never_update")
            self._registered.add(queue)

    def queues(self) -> list[str]:
        """The queues there are."""
        return [queue.name for queue in self._client.list_queues()]

    def forget(self, task_ids: Iterable[str]) -> None:
        """Take tasks out of the queue that have ended before anybody took them."""
        self._client.cancel_workflows(list(task_ids))

    def delete(self, task_ids: Iterable[str]) -> None:
        """Remove all that DBOS knows of tasks."""
        self._client.delete_workflows(list(task_ids))


class Taker:
    """Takes tasks from queues for a worker and has them run, on the event loop in which it is launched."""

    def __init__(self, url: str, worker_id: str, run: Callable[[str], Awaitable[str]], free: Callable[[], int]) -> None:
        """`run` runs a task by its id; `free` says how many more the worker takes."""
        _be_quiet()
        self._id = worker_id
        self._free = free
        self.taken: set[str] = set()
        """What was taken here and has not ended."""
        self.started: set[str] = set()
        """Those of them that have begun to run."""
        self._taking = threading.Lock()
        self._dbos = DBOS(
            config={
                "name": APPLICATION,
                "system_database_url": url,
                "executor_id": worker_id,
                "application_version": VERSION,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "ERROR",
                "run_migrations": False,
                "sys_db_pool_size": 8,
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

    def launch(self, queues: Iterable[str]) -> None:
        """Begin to take what is in these queues. To be called in the event loop."""
        DBOS.listen_queues(list(queues))
        DBOS.launch()
        system = self._system
        take = system.start_queued_workflows

        def take_as_many_as_fit(queue: Any, *arguments: Any, **named: Any) -> Any:
            if queue.name.startswith("_"):  # DBOS's own
                return take(queue, *arguments, **named)
            with self._taking:  # one thread for each queue, and one number of places for all of them
                free = self._free()
                if free <= 0:
                    return [], "worker_concurrency"
                queue._worker_concurrency = (free + 1) // 2  # noqa: SLF001 - the others may have room, too
                executor, version, partition, _running, *more = arguments
                found, reason = take(queue, executor, version, partition, 0, *more, **named)
                self.taken.update(found)
                return found, reason

        system.start_queued_workflows = take_as_many_as_fit

    @property
    def _system(self) -> Any:
        return cast("Any", self._dbos)._sys_db  # noqa: SLF001

    def listen(self, queue: str) -> None:
        """Take from another queue as well; it is found within a second."""
        listening = cast("Any", self._dbos)._listening_queues  # noqa: SLF001
        if queue not in listening:
            listening.append(queue)

    async def give_back(self, task_id: str, owner: str) -> bool:
        """Have a task taken anew, if it is still this (dead) worker's. Whoever comes late changes nothing."""
        return await anyio.to_thread.run_sync(self._system.reenqueue_for_recovery, task_id, [owner], "codex")
