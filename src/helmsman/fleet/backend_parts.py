"""Parts of the fleet backend: tasks, changes, usage, schedules, budgets and notices of the fleet and of this machine."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
import anyio.to_thread

from helmsman.base.structs import replace
from helmsman.capabilities.all_tasks import CANDIDATES, LocalTasks, TaskResults, Tasks
from helmsman.capabilities.budgets import Budgets
from helmsman.capabilities.changes import AppliedSession, Changes, SessionDiff
from helmsman.capabilities.extras import Extras
from helmsman.capabilities.notices import Notices
from helmsman.capabilities.schedules import Schedules
from helmsman.capabilities.usage_report import UsageReports
from helmsman.errors import InvalidInput, SessionBusy
from helmsman.fleet.budgets import states_of_fleet
from helmsman.fleet.rows import FLEET
from helmsman.fleet.schedules import FLEETS, BothSchedules, FleetSchedules
from helmsman.fleet.session_queue import is_fleets, lane_of, merged
from helmsman.git import tree_changes
from helmsman.git.diff import files_of, stat_of
from helmsman.git.remote_trees import apply_result, diff_of_result
from helmsman.git.worktree import projects
from helmsman.model.inputs import searched_directory
from helmsman.steering.ownership import refuse_foreign
from helmsman.tasks.registry import TurnUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from helmsman.capabilities.budgets import BudgetState
    from helmsman.fleet.client_trees import ClientTrees
    from helmsman.fleet.link import FleetLink
    from helmsman.fleet.notices import FleetNotifier
    from helmsman.git.lifecycle import Discarded
    from helmsman.git.tree_changes import Selection, Unsaved
    from helmsman.model.options import SessionOptions
    from helmsman.notices.store import Delivery
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task, TaskOrigin, TaskStatus

log = logging.getLogger(__name__)

_SHOWN_TASKS, _SHOWN_CHARS = 100, 120
"""Limits for running and waiting tasks on the page of machines."""


class _Backend(Protocol):
    """Backend that these parts belong to (`helmsman.fleet.backend`)."""

    link: FleetLink
    trees: ClientTrees
    post: FleetNotifier

    @property
    def start(self) -> Callable[..., Awaitable[Session]]: ...

    @property
    def say(self) -> Callable[..., Awaitable[Session]]: ...

    async def session(self, session_id: str) -> Session: ...

    async def task(self, task_id: str) -> Task: ...

    async def policy(self, agent: str, directory: str | None) -> dict[str, Any]: ...


class _BackendTasks(LocalTasks):
    """Tasks that are turns of sessions. New tasks run in the fleet; existing tasks are looked up where they are."""

    def __init__(self, door: _Backend, own: HelmsmanService) -> None:
        super().__init__(own)
        self._door = door

    async def run(self, instruction: str, **options: Any) -> str:
        return str((await self._door.start(instruction, **options)).task_id)

    async def follow_up(self, session_id: str, message: str, **options: Any) -> str:
        if not is_fleets(session_id):
            return await super().follow_up(session_id, message, **options)
        return str((await self._door.say(session_id, message, **options)).task_id)

    async def now(self, task: Task) -> Task:
        return await super().now(task) if task.origin != "fleet" else await self._door.task(task.id)

    def session_of(self, task: Task) -> Session | None:
        if task.origin != "fleet":
            return super().session_of(task)
        session = self._door.link.sessions.get(task.session_id or "")
        return session if session is not None and session.state.is_running else None

    async def follow(self, task: Task) -> Session | None:
        if task.origin != "fleet":
            return await super().follow(task)
        session = await self._door.session(str(task.session_id))
        return session if session.state.is_running and session.task_ids[-1] == task.id else None


class FleetTasks(Tasks):
    """Tasks of the fleet, of this machine, and in the cloud."""

    def __init__(self, door: _Backend, own: HelmsmanService) -> None:
        super().__init__(cast("Steering", own), env=own.environment)
        self.local = _BackendTasks(door, own)
        self._lanes = door.link.lanes
        self._client = door.link.client

    async def find(self, reference: str) -> Task:
        task = None if reference.startswith(("T-local-", "T-cloud-")) else await self._lanes.find(reference)
        if task is None:
            return await super().find(reference)
        await self.local.refuse_outside(task)
        return task

    async def get(self, reference: str) -> Task:
        task = await self.find(reference)
        return task if task.origin == "fleet" else await super().get(reference)

    async def list(
        self,
        *,
        status: Collection[TaskStatus] | None = None,
        origin: TaskOrigin | None = None,
        agent: str | None = None,
        directory: str | Path | None = None,
        limit: int = CANDIDATES,
        cursor: str | None = None,
    ) -> tuple[list[Task], str | None]:
        place = None if directory is None else searched_directory(directory)
        here = super().list

        async def fleets(count: int, at: str | None) -> tuple[list[Task], str | None]:
            found, after = await self._lanes.tasks(status=status, agent=agent, directory=place, limit=count, cursor=at)
            return list(await self.local.inside(found)), after

        async def own(count: int, at: str | None) -> tuple[list[Task], str | None]:
            return await here(status=status, origin=origin, agent=agent, directory=directory, limit=count, cursor=at)

        wanted = {"fleet": fleets, "own": own} if origin is None else {"fleet": fleets} if origin == "fleet" else {}
        if not wanted:
            return await own(limit, cursor)
        return await merged(wanted, limit, cursor, lambda task: task.created_at)

    async def of_sessions(self, session_ids: Sequence[str]) -> dict[str, tuple[Task, ...]]:
        fleets = [one for one in session_ids if is_fleets(one)]
        found = await super().of_sessions([one for one in session_ids if not is_fleets(one)])
        lanes = await self._lanes.of_lanes([lane_of(one) for one in fleets]) if fleets else {}
        for one in fleets:
            found[one] = tuple(reversed(await self.local.inside(lanes[lane_of(one)])))
        return found

    async def wait(self, task: Task, *, timeout: float | None = None) -> Task:
        if task.origin != "fleet":
            return await super().wait(task, timeout=timeout)
        await self._client.until(task.id, lambda now: not now.is_running or now.input_required, timeout=timeout)
        return await self.find(task.id)

    async def cancel(self, task: Task, *, reason: str | None = None) -> tuple[Task, str]:
        if task.origin != "fleet":
            return await super().cancel(task, reason=reason)
        await self.local.refuse_outside(task)
        if not (await self.find(task.id)).is_running:
            return await self.find(task.id), "Stopped nothing: it was no longer running."
        await self._client.cancel(task.id, reason)
        now = await self.find(task.id)
        machine = now.metadata["fleet"].get("machine")
        return now, f"Stopped it on {machine}." if machine else "Stopped nothing: it had not begun."

    async def results(self, task: Task, *, attempt: int = 1) -> TaskResults:
        if task.origin != "fleet":
            return await super().results(task, attempt=attempt)
        task = await self.find(task.id)
        outcome = await self._client.outcome(task.id)
        return TaskResults(
            task=task,
            output=outcome.output or task.result,
            diff=outcome.diff,
            files=outcome.files,
            commands=outcome.commands,
            tests=outcome.tests,
            report=outcome.report,
            cost_usd=self.prices.cost(task.model, task.usage) if task.usage is not None else None,
        )


class _BackendChanges(Changes):
    """Changes of sessions, local or in the fleet."""

    def __init__(self, door: _Backend, own: HelmsmanService, tasks: Tasks) -> None:
        super().__init__(own, tasks)
        self._door = door

    async def _changed(self, session_id: str) -> SessionDiff:
        if not is_fleets(session_id):
            return await super()._changed(session_id)
        session = await self._door.session(session_id)
        try:
            found = await self._door.trees.brought_back(lane_of(session.id), session.directory)
        except InvalidInput as error:  # the repository is not here
            log.info("of session %s only its edits are shown: %s", session.id, error)
            found = None
        if found is not None:
            away, notes = found
            diff = await anyio.to_thread.run_sync(diff_of_result, away)
            diff = replace(diff, nested=(*diff.nested, *notes))
            return SessionDiff(session_id=session_id, scope="worktree", diff=diff)
        patch = await self._last_edits(session)
        files = files_of(patch)
        diff = tree_changes.TreeDiff(patch=patch.encode("utf-8", "surrogateescape"), files=files, stat=stat_of(files))
        return SessionDiff(session_id=session_id, scope="turn", diff=diff)

    async def _last_edits(self, session: Session) -> str:
        """Return the diff of the last turn that changed files, as its agent reported it."""
        lane = lane_of(session.id)
        for task in reversed((await self._door.link.lanes.of_lanes([lane]))[lane]):
            if (patch := (await self._door.link.client.outcome(task.id)).diff) is not None:
                return patch
        return session.state.diff or ""

    async def apply(
        self,
        session_id: str,
        *,
        allow_dirty: bool = False,
        digest: str | None = None,
        viewer: str | None = None,
        only: Selection | None = None,
    ) -> AppliedSession:
        if not is_fleets(session_id):
            return await super().apply(session_id, allow_dirty=allow_dirty, digest=digest, viewer=viewer, only=only)
        if only is not None:
            raise InvalidInput("Changes of a fleet's session are applied as a whole.", parameter="only")
        session = await self._door.session(session_id)
        refuse_foreign(session.id, session.opened_by, self._helm.settings, "apply its changes")
        if session.state.is_running:
            raise SessionBusy(f"Session {session_id} is still at work. Nothing was touched. Wait for it.")
        found = await self._door.trees.brought_back(lane_of(session.id), session.directory)
        if found is None:
            raise InvalidInput(
                f"Session {session_id} works in a directory of its machine, {session.directory}. What it changed is there.",
                parameter="sessionId",
            )
        expected = self.shown.expected(viewer, session_id, digest)
        away, _ = found
        check = self.shown.check_of(session_id, expected)
        applied = await anyio.to_thread.run_sync(lambda: apply_result(away, allow_dirty=allow_dirty, check=check))
        return AppliedSession.of(session_id, away.repository, applied)

    async def unsaved(self, session_id: str) -> Unsaved:
        return await super().unsaved(_of_this_machine(session_id))

    async def discard(self, session_id: str, *, losing: Unsaved | None = None) -> Discarded:
        return await super().discard(_of_this_machine(session_id), losing=losing)


def _of_this_machine(session_id: str) -> str:
    if is_fleets(session_id):
        raise InvalidInput(
            f"Session {session_id} has no worktree here: the machines of the fleet remove what they no longer need.",
            parameter="sessionId",
        )
    return session_id


class _BackendUsage(UsageReports):
    """Usage of this machine and of the fleet."""

    def __init__(self, door: _Backend, own: HelmsmanService, tasks: Tasks) -> None:
        super().__init__(own, tasks.prices)
        self._door = door

    async def _tasks(self) -> Sequence[TurnUsage]:
        fleets: Iterable[Task] = await self._door.link.lanes.usages()
        return [
            *await super()._tasks(),
            *(
                TurnUsage(
                    agent=task.agent,
                    session_id=task.session_id,
                    turn_id=task.turn_id,
                    directory=task.directory,
                    model=task.model,
                    created_at=task.created_at,
                    usage=task.usage,
                )
                for task in fleets
                if task.usage is not None
            ),
        ]


class _BackendSchedules(Schedules):
    """Schedules of the fleet and of this machine. A new one is the fleet's."""

    prefix = FLEETS

    def __init__(self, own: Steering, door: _Backend) -> None:
        super().__init__(own, BothSchedules(own.schedules, FleetSchedules(door.link.client.database.store)))
        self._door = door

    async def _policy(self, options: SessionOptions) -> dict[str, Any]:
        """Return the client's metadata for the schedule's runs. The machines that run it apply their own policies."""
        return await self._door.policy(options.agent, None if options.cwd is None else str(options.cwd))


class _BackendBudgets(Budgets):
    """Budgets of this machine, for its own work, and those of the fleet."""

    def __init__(self, door: _Backend, own: HelmsmanService, tasks: Tasks) -> None:
        super().__init__(own, own.extras.usage, tasks.prices)
        self._door = door

    async def states(self, directory: str | Path | None = None) -> tuple[BudgetState, ...]:
        place = None if directory is None else str(directory)
        project = await anyio.to_thread.run_sync(projects(self._helm.settings.state_dir), place)
        fleets = await states_of_fleet(self._door.link.client.database, project)
        return *await super().states(directory), *fleets


class _BackendNotices(Notices):
    """Notices about tasks of this machine, and about fleet tasks to the recipients of this machine."""

    def __init__(self, door: _Backend, own: HelmsmanService) -> None:
        super().__init__(own)
        self._door = door

    async def log(self, limit: int = 50) -> Sequence[Delivery]:
        fleets = self.within_roots(await self._door.post.log(limit))
        both = (*await super().log(limit), *fleets)
        return sorted(both, key=lambda one: one.created_at, reverse=True)[:limit]


class FleetExtras(Extras):
    """Extras of this machine, extended by the sessions of a fleet."""

    def __init__(self, door: _Backend, own: HelmsmanService, tasks: FleetTasks) -> None:
        super().__init__(own, tasks)
        self._door = door
        self._own = own

    async def fleet(self) -> Mapping[str, Any] | None:
        link = self._door.link
        tasks = [
            {
                "taskId": task.id,
                "sessionId": task.session_id,
                "text": task.instruction.strip().partition("\n")[0][:_SHOWN_CHARS],
                "status": task.status,
                "askedAt": task.created_at.isoformat(),
                **{name: task.metadata[FLEET].get(name) for name in ("machine", "queue", "priority", "notBefore")},
            }
            for task in await self._own.tasks.local.inside(await link.lanes.at_work(_SHOWN_TASKS))
        ]
        return {
            "machines": [machine.as_dict() for machine in await link.client.machines()],
            "waiting": dict(await link.client.waiting()),
            "tasks": tasks,
        }

    schedules = cached_property(lambda self: _BackendSchedules(cast("Steering", self._own), self._door))
    budgets = cached_property(lambda self: _BackendBudgets(self._door, self._own, self._tasks))
    notices = cached_property(lambda self: _BackendNotices(self._door, self._own))
    changes = cached_property(lambda self: _BackendChanges(self._door, self._own, self._tasks))
    usage = cached_property(lambda self: _BackendUsage(self._door, self._own, self._tasks))
