"""Queue of a fleet: a task's row is its place in the queue, and one statement claims it.

A worker claims pending tasks that it may run, the first of each session, by priority and age (`OwnedTask.claim`). Columns
of the row hold all conditions: host, labels, delay and session. Rows that another worker is claiming are skipped. Workers
are notified of new work; they also poll, because a notification is lost when its connection breaks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, LiteralString

import anyio
import psycopg

from helmsman.base.concurrency import sleep_until
from helmsman.base.structs import pack, replace, unpack
from helmsman.fleet.owned_task import OwnedTask
from helmsman.fleet.values import (
    ANYWHERE,
    DEFAULT_PRIORITY,
    KEPT,
    PROJECT,
    WORKERS,
    cleaned,
    jsonb,
    machine_of,
    queue_of,
    session_of,
)
from helmsman.git.bundles import pieces
from helmsman.tasks.model import TaskDraft, alias_stem
from helmsman.tasks.rows import task_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.fleet.database import FleetDatabase
    from helmsman.fleet.owned_task import MachineOffer
    from helmsman.fleet.values import FleetDraft
    from helmsman.store.connection import StoreConnection
    from helmsman.tasks.model import Task
    from helmsman.tasks.registry import Registry

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0
"""Polling interval of a worker with free capacity, in case a notification is lost."""
_RETRY_SECONDS: Final = 0.5
_REST_SECONDS: Final = 0.05
"""Minimum pause between two claims, however many notifications arrive."""
_LAST_SECONDS: Final = 0.1
"""Extra delay of an almost full worker, so that workers with more free capacity claim first."""

# --- enqueue ---------------------------------------------------------------------------------------------------------

_BEFORE: Final = """
    SELECT worker.name, worker.id IS NOT NULL AND NOT worker.draining AS is_there,
        ARRAY(SELECT label FROM unnest(task.labels) label WHERE position(':' IN label) > 0) AS needs
    FROM tasks task LEFT JOIN helmsman.workers worker ON worker.name = split_part(task.worker, '~', 1)
    WHERE task.session_id = ? AND task.id <> ? ORDER BY task.number DESC LIMIT 1
"""
"""Select the machine that ran the last turn of a session, and the labels that its transcript needs."""
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))"
"""Serialize the enqueues of a session, so that its tasks become visible in the order of their numbers."""
_PLACE: Final = """
    UPDATE tasks SET
        queue = :queue, priority = :priority, labels = :labels, host = :host, project = :project,
        created_at = helmsman.now(), updated_at = helmsman.now(),
        not_before = clock_timestamp() + make_interval(secs => CAST(:delay AS float)),
        deadline = clock_timestamp() + make_interval(secs => CAST(:deadline AS float))
    WHERE id = :id RETURNING *
"""
_BUNDLE: Final = "INSERT INTO helmsman.bundles (task, kind, part, epoch, about, data) VALUES (?, ?, ?, 0, ?, ?)"


def entering(
    registry: Registry, draft: FleetDraft, task_id: str, also: Callable[[StoreConnection, Task], None] | None = None
) -> Callable[[StoreConnection], tuple[Task, bool]]:
    """Return the function that stores a task, its place in the queue and its bundles, and then `also`, in a transaction.

    It returns False with the task that has the draft's key already, if one has. The caller then notifies `WORKERS`.
    """
    session_id = draft.session_id or session_of(task_id)
    entered: Task | None = None

    def place(connection: StoreConnection, task: Task) -> None:
        queue, placement = draft.queue, draft.placement
        labels, before = list(placement.labels), None
        if draft.session_id is not None:
            before = connection.execute(_BEFORE, (session_id, task_id)).fetchone()
        # The session's files and transcript are on that machine.
        if before is not None:
            labels += before["needs"]
            if placement.machine is None and before["is_there"]:
                queue = queue_of(task.agent, host=before["name"])  # if it dies, another has it
        placed = {
            "id": task_id,
            "queue": queue,
            "priority": DEFAULT_PRIORITY if placement.priority is None else placement.priority,
            "labels": labels,
            "host": placement.machine,
            "project": (task.policy or {}).get(PROJECT) or task.directory,
            "delay": placement.delay or None,
            "deadline": placement.deadline,
        }
        nonlocal entered
        entered = task_of(connection.execute(_PLACE, placed).fetchone())
        for kind, (about, file) in draft.bundles.items():
            for part, data in enumerate(pieces(file)):
                connection.execute(_BUNDLE, (task_id, kind, part, jsonb(about), data))
        if also is not None:
            also(connection, task)

    # Statements of the fleet query its JSON.
    task = unpack(cleaned(pack(draft.task)), TaskDraft)
    task = replace(task, id=task_id, origin="fleet", session_id=session_id)
    # Its end is random: machines that enter tasks at the same time need not look for a free one.
    add = registry.adding(task, place, alias=f"{alias_stem(task.instruction)}-{task_id[-4:]}")

    def work(connection: StoreConnection) -> tuple[Task, bool]:
        # An earlier try may have stored it, and its answer was lost.
        if entered is not None:
            known = connection.execute("SELECT * FROM tasks WHERE id = ?", (task_id,)).fetchone()
            if known is not None:
                return task_of(known), True
        # Two messages to one session must become visible in the order of their numbers.
        if draft.session_id is not None:
            connection.execute(_LOCK, (session_id,))
        task, is_new = add(connection)
        return entered if is_new and entered is not None else task, is_new

    return work


# --- claim -----------------------------------------------------------------------------------------------------------


class QueueConsumer:
    """Claims tasks for a worker while it has free capacity, and runs each in a separate task."""

    def __init__(
        self,
        database: FleetDatabase,
        offer: Callable[[], MachineOffer],
        run: Callable[[OwnedTask], Awaitable[object]],
        *,
        capacity: int,
        is_leaving: Callable[[], bool],
    ) -> None:
        """`offer` returns what the worker may run now, and `run` runs a claimed task."""
        self._database = database
        self._offer = offer
        self._run = run
        self._capacity = capacity
        self._is_leaving = is_leaving
        self._woken = anyio.Event()
        self.running: set[str] = set()
        """Ids of the tasks that run here."""
        self._claims = 0
        self._is_claiming = False

    def wake(self) -> None:
        """Claim soon: work may wait, or there is free capacity again."""
        self._woken.set()

    async def consume(self) -> None:
        """Claim and run tasks until cancelled, which cancels the running ones."""
        async with anyio.create_task_group() as tasks:
            while True:
                # Replaced before claiming, so that a notification during the claim is not lost.
                self._woken, wait = anyio.Event(), _LOOK_SECONDS
                try:
                    if self._free > 0:
                        wait = await self._claim(tasks)
                except psycopg.Error as error:
                    wait = _RETRY_SECONDS
                    log.debug("the queue cannot be read: %s", error)
                # Many notifications in a row cause one claim.
                await anyio.sleep(_REST_SECONDS)
                await sleep_until(self._woken, wait)
                await anyio.sleep(_LAST_SECONDS * len(self.running) / self._capacity)

    @property
    def _free(self) -> int:
        return 0 if self._is_leaving() else self._capacity - len(self.running)

    async def _claim(self, tasks: anyio.abc.TaskGroup) -> float:
        """Start tasks for half of the free capacity. Return the seconds until the next poll without a notification."""
        most = (self._free + 1) // 2  # other workers may have more free capacity
        # For `return_strays`, which must not take a claim in flight for a lost one.
        self._claims, self._is_claiming = self._claims + 1, True
        try:
            claimed, due = await OwnedTask.claim(self._database, self._offer(), most)
            for owned in claimed:
                # Before anything can fail, so that the task is never taken for a stray.
                self.running.add(owned.id)
                tasks.start_soon(self._run_one, owned)
        finally:
            self._is_claiming = False
        if claimed and self._free > 0:
            return _REST_SECONDS
        return _LOOK_SECONDS if due is None else min(_LOOK_SECONDS, max(0.0, due))

    async def _run_one(self, owned: OwnedTask) -> None:
        try:
            await self._run(owned)
        except Exception:
            # One task must not stop the worker. `return_strays` puts it back into the queue, at most as often as
            # after the loss of a machine.
            log.exception("task %s ended with an error", owned.id)
        finally:
            self.running.discard(owned.id)
            self.wake()

    async def return_strays(self) -> None:
        """Put back tasks that the database says run here, and do not: the answer to their claim was lost."""
        # Read before the query: a claim during it makes the result useless.
        worker, claims = self._offer().worker, self._claims
        rows = await self._database.all(
            "select id from helmsman_store.tasks where status = 'working' and worker = %s", (worker,)
        )
        strays = {row["id"] for row in rows} - self.running
        if strays and not self._is_claiming and claims == self._claims:
            await _put_back(self._database, " did not begin it.", worker=worker, tasks=list(strays))


# --- put back --------------------------------------------------------------------------------------------------------


_PUT_BACK: Final[LiteralString] = f"""
    update helmsman_store.tasks task set
        queue = {ANYWHERE}, status = case when cancel_asked then 'canceled' else 'pending' end,
        body = helmsman.with_facts(body, jsonb_build_object('inputRequired', null, 'note',
            case when not cancel_asked then 'Its machine ' || split_part(worker, '~', 1) || %(note)s
                else coalesce('It was cancelled: ' || (body::jsonb ->> 'cancelReason'), 'It was cancelled.') end)),
        is_handed_over = %(is_handed_over)s, updated_at = helmsman.now(), revision = revision + 1,
        completed_at = case when cancel_asked then helmsman.now() end,
        expires_at = case when cancel_asked then helmsman.now() + %(kept)s end
    where status = 'working' and case
        when %(worker)s::text is null then not exists (select from helmsman.workers where id = task.worker)
        else worker = %(worker)s and (%(tasks)s::text[] is null or id = any(%(tasks)s))
    end
    returning id, status, worker, queue, pg_notify('helmsman_fleet', id)
"""  # noqa: S608 - of constants


async def _put_back(
    database: FleetDatabase,
    note: str,
    *,
    worker: str | None = None,
    tasks: list[str] | None = None,
    is_handed_over: bool = False,
) -> None:
    """Return tasks to the queue, and end those that were to be cancelled: of a worker the ones named, or all; without one
    those of dead workers. None of them may be running. The note goes on after the name of the machine.
    """
    values = {"note": note, "worker": worker, "tasks": tasks, "is_handed_over": is_handed_over, "kept": KEPT}
    rows = await database.all(_PUT_BACK, values)
    for row in rows:
        log.warning("task %s of %s is %s now", row["id"], machine_of(row["worker"]), row["status"])
    await database.notify(*((WORKERS, row["queue"]) for row in rows))


async def requeue_work(database: FleetDatabase) -> None:
    """Return the tasks of dead workers to the queue.

    A worker claims tasks only while it has a row, so the worker of a task without one is dead.
    """
    await _put_back(database, " was lost.")


async def hand_over_tasks(database: FleetDatabase, worker: str) -> None:
    """Return all tasks of a worker that was stopped in order, so that other workers continue them immediately."""
    await _put_back(database, " was stopped.", worker=worker, is_handed_over=True)
