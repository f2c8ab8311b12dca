"""Worker of a fleet: take tasks from its queues and run them with the machine's Helmsman.

A worker holds a lease. If other workers declare it dead, it exits immediately (`DECLARED_DEAD`), because they have taken its
work. If it is stopped, it hands over its work and then exits. If it is drained, it takes no new tasks and exits when idle.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import anyio
import anyio.to_thread
import psycopg

from helmsman.agents.registry import engine_overviews
from helmsman.agents.supervisor.lease_watchdog import ProcessLease, lease_time
from helmsman.base.concurrency import sleep_until
from helmsman.base.files import release_lock, take_lock
from helmsman.base.structs import Value
from helmsman.errors import FleetRefused, HelmsmanError
from helmsman.fleet.budgets import FleetBudgets
from helmsman.fleet.database import FleetDatabase
from helmsman.fleet.lease import DEFAULT_SECONDS, DeclaredDead, Lease
from helmsman.fleet.notices import FleetNotifier, place_in
from helmsman.fleet.owned_task import MachineOffer
from helmsman.fleet.queue import QueueConsumer, hand_over_tasks, requeue_work
from helmsman.fleet.running import TaskRun, run_task
from helmsman.fleet.schedules import FleetSchedules
from helmsman.fleet.schema import require_schema
from helmsman.fleet.upkeep import EVERY_SECONDS, drop_expired, stop_late_tasks
from helmsman.fleet.values import WORKERS, channel_of, checked_name, form_label, new_worker_id, serves
from helmsman.fleet.workspaces import drop_worktrees

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.service import HelmsmanService

log = logging.getLogger(__name__)

DECLARED_DEAD: Final = 75
"""Exit code of a worker that was declared dead. Restart it; it starts with a new id."""
_SWEEP_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 5.0
"""Time limit for an orderly stop of turns and engines."""
DIRECTORY: Final = "fleet"
"""Directory of the worker inside the machine's state directory."""


def margin_of(lease: float) -> float:
    """Return how many seconds before its lease expires a worker stops its processes."""
    return min(3.0, lease / 4)


class WorkerOptions(Value, frozen=True, kw_only=True):
    """Agents, labels and capacity that a machine offers."""

    url: str
    name: str
    agents: tuple[str, ...]
    labels: tuple[str, ...] = ()
    capacity: int = 4
    lease: float = DEFAULT_SECONDS

    def check(self) -> None:
        checked_name(self.name, "A machine")
        for label in self.labels:
            checked_name(label, "A label")


class Worker:
    """Worker of one machine. Once opened, others see it; `serve` runs tasks; `hand_over` ends it in order."""

    def __init__(self, options: WorkerOptions, directory: Path) -> None:
        options.check()
        self.options = options
        self.id = new_worker_id(options.name)
        self._directory = directory
        self._database = FleetDatabase(options.url, name=f"helmsman worker {options.name}", most=6)
        self._schedules = FleetSchedules(self._database.store)
        self._pause = min(_SWEEP_SECONDS, options.lease / 6)
        self._running: dict[str, TaskRun] = {}
        self._leaving = anyio.Event()
        self._is_stopping = False
        self._woken = anyio.Event()
        self._labels = options.labels
        self._exit = AsyncExitStack()
        self.ready = anyio.Event()
        """Set once it takes tasks."""

    # --- its life ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Enter the fleet.

        Raises:
            FleetRefused: Another worker has its name, or its directory.
            FleetUnavailable: The database cannot be reached.
        """
        async with AsyncExitStack() as opening:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Two workers on one directory would run each other's tasks.
            held = take_lock(self._directory / "worker.lock")
            if held is None:
                raise FleetRefused(
                    f"A worker runs already with {self._directory}. Stop it, or use another state directory."
                )
            opening.callback(release_lock, held)
            await opening.enter_async_context(self._database)
            await self._database.soon(lambda: require_schema(self._database))
            self._lease = Lease(
                self._database,
                self.id,
                place=place_in(self._directory),
                seconds=self.options.lease,
                labels=self.options.labels,
                agents=dict.fromkeys(self.options.agents, ""),
                capacity=self.options.capacity,
            )
            # Taken before the request: the lease counts from here.
            asked_at = lease_time()
            await self._lease.take()
            # Processes end before the lease does, so that no other worker finds them running.
            self.lease = ProcessLease(self.options.lease - margin_of(self.options.lease), renewed_at=asked_at)
            opening.callback(self.lease.close)
            self._exit = opening.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._exit.aclose()

    async def serve(self, helm: HelmsmanService, patient: HelmsmanService) -> None:
        """Take tasks and run them until the worker is stopped, or drained and idle.

        Tasks that still run are left as they are.

        `patient` is the same service for runs of schedules, whose questions wait longer.

        Raises:
            DeclaredDead: Other workers have taken the work. Every process of this worker must end immediately.
            FleetUnavailable: The database cannot be reached; nothing was claimed.
        """
        self._helm = helm
        self._patient = patient
        self._budgets = FleetBudgets(self._database, helm.tasks.prices)
        for one in (helm, patient):
            # Tasks of the fleet count against the fleet's budgets.
            one.extras.budgets.elsewhere = self._budgets
        # Looked up before the first claim: tasks may need a certain version of an agent.
        await self._database.soon(partial(self._lease.offer, *await self._look_at_agents()))
        self._queue = QueueConsumer(
            self._database,
            self._offer,
            self._run,
            capacity=self.options.capacity,
            is_leaving=self._leaving.is_set,
        )
        dead: list[DeclaredDead] = []
        async with anyio.create_task_group() as tasks:

            async def keep_lease() -> None:
                try:
                    await self._lease.keep(self.lease.renew, self.drain, lambda: self._woken)
                except DeclaredDead as error:
                    dead.append(error)
                    # Everything stops here; other workers have the tasks.
                    tasks.cancel_scope.cancel()

            tasks.start_soon(keep_lease)
            tasks.start_soon(self._listen)
            tasks.start_soon(self._queue.consume)
            tasks.start_soon(self._repeat, self._sweep, "the work of others")
            tasks.start_soon(self._repeat, self._drop_expired, "the expiry of results")
            tasks.start_soon(self._repeat, self._begin_due, "what is due")
            tasks.start_soon(self._post(helm).run)
            self.ready.set()
            await self._leaving.wait()
            # A drained worker finishes its tasks; a stopped one hands them over.
            while self._queue.running and not self._is_stopping:
                await sleep_until(self._woken, 1.0)
            await self._release_work()
            tasks.cancel_scope.cancel()
        if dead:
            self.lease.close()  # the processes of this worker must stop
            raise dead[0]

    async def _look_at_agents(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the versions of its agents, and its labels: the configured ones, and the session formats of its
        agents.

        Raises:
            HelmsmanError: An agent is not installed.
        """
        versions: dict[str, str] = {}
        labels = list(self.options.labels)
        for agent in self.options.agents:
            installed = await self._helm.installed(agent)
            versions[agent] = (installed and installed.version) or ""
            transcripts = await self._helm.agents[agent].transcripts(self._helm.settings, self._helm.environment)
            labels += [form_label(agent, form) for form in (transcripts.forms if transcripts is not None else ())]
        self._labels = tuple(labels)
        return versions, self._labels

    async def _release_work(self) -> None:
        """Stop the running turns and hand them over to other workers."""
        # A service manager kills a process that takes too long.
        with anyio.move_on_after(_STOP_SECONDS):
            async with anyio.create_task_group() as stopping:
                for run in tuple(self._running.values()):
                    stopping.start_soon(run.hand_over)

    async def hand_over(self) -> None:
        """Leave the fleet so that other workers take the tasks immediately.

        Call it after the service that ran them has ended.
        """
        # Ends every supervised process of this worker.
        self.lease.close()
        state_dir = self._helm.settings.state_dir
        with anyio.move_on_after(_STOP_SECONDS):
            # Another worker must not start a session that still runs here.
            while await anyio.to_thread.run_sync(engine_overviews, state_dir):  # noqa: ASYNC110 - processes
                await anyio.sleep(0.05)
        # Before the lease is released: other workers treat a task without a lease as cut off.
        await self._database.soon(partial(hand_over_tasks, self._database, self.id))
        await self._database.soon(self._lease.release)

    def drain(self) -> None:
        """Take nothing more, and end when nothing runs."""
        self._leaving.set()

    def stop(self) -> None:
        """End now: what runs is handed over."""
        self._is_stopping = True
        self._leaving.set()
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._woken = anyio.Event()

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def _run(self, owned: OwnedTask) -> None:
        await run_task((self._helm, self._patient), owned, self._running, self._budgets)
        self._wake()

    def _offer(self) -> MachineOffer:
        return MachineOffer(self.id, self.options.name, list(self.options.agents), list(self._labels))

    def _serves(self, queue: str) -> bool:
        options = self.options
        return serves(queue, name=options.name, agents=options.agents, labels=self._labels)

    async def _listen(self) -> None:
        """Handle notifications of answers, cancellation, drains and queued tasks: a task id, nothing, or a queue's name."""
        while True:
            try:
                async with self._database.listening(channel_of(self.id), WORKERS) as payloads:
                    self._queue.wake()
                    for run in tuple(self._running.values()):  # for notifications sent before this connection listened
                        run.wake()
                    async for told in payloads:
                        if told in self._running:
                            self._running[told].wake()
                        elif self._serves(told):
                            self._queue.wake()
                        elif not told:
                            self._wake()
            except psycopg.Error as error:
                log.debug("notifications are lost: %s", error)
            await anyio.sleep(0.5)

    # --- the work of others ------------------------------------------------------------------------------------------

    async def _repeat(self, do: Callable[[], Awaitable[float]], what: str) -> None:
        """Do something periodically; it returns the seconds until the next time."""
        while True:
            seconds = self._pause
            try:
                seconds = await do()
            except (psycopg.Error, HelmsmanError) as error:
                log.debug("%s waits: %s", what, error)
            await anyio.sleep(seconds)

    async def _sweep(self) -> float:
        """Remove dead workers, requeue their work, and handle late and unhandled tasks."""
        # After an outage, living workers must have time to renew first.
        if self._lease.may_judge:
            await self._lease.remove_dead()
            await requeue_work(self._database)
            await stop_late_tasks(self._database)
        await self._queue.return_strays()
        return self._pause

    async def _drop_expired(self) -> float:
        await drop_expired(self._database)
        await drop_worktrees(self._database, self._helm.settings.state_dir, self.options.name)
        return EVERY_SECONDS

    async def _begin_due(self) -> float:
        """Start due runs of schedules, unless another worker starts them."""
        seconds = await self._schedules.begin_due()
        return _SWEEP_SECONDS if seconds is None else min(_SWEEP_SECONDS, max(0.01, seconds))

    def _post(self, helm: HelmsmanService) -> FleetNotifier:
        """Return the sender of notices for this user's recipients, except those shown on a screen."""
        place, state_dir = place_in(self._directory), helm.settings.state_dir
        return FleetNotifier(self._database.store, state_dir, place, helm.agents.title, helm.notices, is_shown=False)
