"""Service of a hub, an MCP server and the dashboard: the core and the capabilities."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar, cast

from helmsman.base.concurrency import require_asyncio
from helmsman.errors import InvalidSetting
from helmsman.hub.service_client import client_of_host
from helmsman.model.events import EngineGone, TurnEnded
from helmsman.model.inputs import refuse_placement
from helmsman.steering.core import Steering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.extras import Extras
    from helmsman.errors import BudgetExceeded
    from helmsman.hub.host_pool import HostPool
    from helmsman.hub.service_client import Backend, ServiceClient
    from helmsman.model.events import Event
    from helmsman.sessions.history import SpentTurn
    from helmsman.sessions.session import Session
    from helmsman.tasks.jobs import RunningJob
    from helmsman.tasks.model import Task

P = ParamSpec("P")
T = TypeVar("T")

Holder: TypeAlias = "Callable[[Session, str, Callable[[], Awaitable[None]]], Awaitable[bool]]"


def _or_by_fleet(
    here: Callable[Concatenate[HelmsmanService, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[HelmsmanService, P], Coroutine[Any, Any, T]]:
    """Return a verb that the fleet carries out, if there is one."""

    @functools.wraps(here)
    def verb(self: HelmsmanService, /, *arguments: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        if self._fleet is None:
            refuse_placement(cast("Any", named.get("placement")))
            return here(self, *arguments, **named)
        here(self, *arguments, **named).close()  # a wrong argument is an error of the call itself
        return self._fleet.call(here.__name__, arguments, named)

    return verb


class HelmsmanService(Steering):
    """Complete service. Use it as an async context manager, under asyncio.

    Without `shared` it stands alone: agents run in this process, and end when the block is left. With a fleet in the
    settings, the fleet carries out the calls.
    """

    _fleet: Backend | None = None

    installed = _or_by_fleet(Steering.installed)
    capabilities = _or_by_fleet(Steering.capabilities)
    start = _or_by_fleet(Steering.start)
    say = _or_by_fleet(Steering.say)
    steer = _or_by_fleet(Steering.steer)
    interrupt = _or_by_fleet(Steering.interrupt)
    respond = _or_by_fleet(Steering.respond)
    give_up = _or_by_fleet(Steering.give_up)
    fork = _or_by_fleet(Steering.fork)
    hand = _or_by_fleet(Steering.hand)
    history = _or_by_fleet(Steering.history)
    list = _or_by_fleet(Steering.list)
    session = _or_by_fleet(Steering.session)
    last_statuses = _or_by_fleet(Steering.last_statuses)

    async def __aenter__(self) -> Self:
        require_asyncio()
        if self.settings.fleet_url is not None and (self._is_client or self._is_alone):
            if self._shared.open_fleet is None:
                raise InvalidSetting(
                    "A fleet is reached through the hub, and this Helmsman does without (HELMSMAN_DETACH=0, --bound, "
                    "inside, or agents of its own). Leave that out, or unset HELMSMAN_FLEET_URL to have it done here."
                )
            self._fleet = await self._exit.enter_async_context(self._shared.open_fleet(self))
            return self
        return await super().__aenter__()

    async def __aexit__(self, *exc: Any) -> None:
        if self._fleet is None:
            await super().__aexit__(*exc)
        else:
            await self._exit.aclose()

    @property
    def dashboard(self) -> str | None:
        """Address of the dashboard, if it is served now."""
        return self._shared.dashboards[0] if self._shared.dashboards else None

    @contextmanager
    def serves_dashboard(self, address: str) -> Iterator[None]:
        """Announce the dashboard's address to clients, for the length of the block."""
        self._shared.dashboards.append(address)
        try:
            yield
        finally:
            self._shared.dashboards.remove(address)

    @asynccontextmanager
    async def as_backend(self) -> AsyncIterator[Backend]:
        """Open it for a client in this process."""
        async with self:
            yield _InProcess(self)

    @cached_property
    def tasks(self) -> Tasks:
        """Tasks of this service, of other processes on this machine, and in the cloud."""
        if self._fleet is not None:
            return cast("Tasks", self._fleet.part("tasks"))
        # Loaded on first use, because a client of a fleet needs none of it.
        from helmsman.capabilities.all_tasks import Tasks

        return Tasks(self, env=self._env)

    @cached_property
    def extras(self) -> Extras:
        """Capabilities of agents beyond starting and messages."""
        if self._fleet is not None:
            return cast("Extras", self._fleet.part("extras"))
        # Loaded on first use, as above.
        from helmsman.capabilities.extras import Extras

        return Extras(self, self.tasks)

    @cached_property
    def hosts(self) -> HostPool[ServiceClient]:
        """User's other machines, each with an open client."""
        # Loaded on first use: few users have other machines.
        from helmsman.hub.host_pool import HostPool

        links = HostPool(self.environment, client_of_host, is_bounded=bool(self.allowed_roots))
        self._exit.push_async_callback(links.close)
        return links

    @property
    def sessions(self) -> Mapping[str, Session]:
        """Sessions that were started or looked up here."""
        return super().sessions if self._fleet is None else self._fleet.sessions

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for every event of every session. The returned function ends it. It must not block or raise."""
        return super().listen(listener) if self._fleet is None else self._fleet.listen(listener)

    def is_elsewhere(self, task: Task) -> bool:
        """Return whether only another process can stop a task."""
        return self.task_writer.is_elsewhere(task)

    def running_task(self, session_id: str) -> str | None:
        """Return the task that runs in a session."""
        return self.task_writer.running_task(session_id)

    def running_job(self, task_id: str) -> RunningJob | None:
        """Return a job that runs here."""
        return self.task_writer.jobs.get(task_id)

    async def goes_on_alone(self) -> bool:
        """Return whether sessions continue when this process ends."""
        return self._fleet is not None or (await self.engine()).id is not None

    async def check_remaining(self, percent: float, agent: str) -> tuple[str, ...]:
        return await self.extras.account.check_remaining(percent, agent)

    async def used_up(self, directory: str | None, task_id: str) -> BudgetExceeded | None:
        return await self.extras.budgets.refusal(directory, task_id)

    async def defer_turn(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        extras = self.extras
        parts: tuple[Holder, ...] = extras.budgets.defer_turn, extras.worktree_setup.defer_turn
        if (gate := self.task_writer.gate(task_id)) is not None:
            at_gate = partial(extras.outcomes.defer_turn, gate)
            # A turn that only asks reaches no agent, so no budget and no set-up concerns it.
            parts = (at_gate,) if gate.only_asks else (*parts, at_gate)
        return await self._held_by(parts, session, task_id, go_on)

    async def _held_by(
        self, parts: Sequence[Holder], session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]
    ) -> bool:
        """Return whether one of these parts makes a turn wait. The next ones are asked when it releases the turn."""
        if not parts:
            return False
        first, *others = parts

        async def then() -> None:
            if not await self._held_by(others, session, task_id, go_on):
                await go_on()

        return await first(session, task_id, then) or await self._held_by(others, session, task_id, go_on)

    async def needs_session_first(self, task_id: str, directories: Sequence[Path]) -> bool:
        return self.task_writer.gate(task_id) is not None or await self.extras.worktree_setup.is_due(directories)

    def before_turn(self, session: Session, task_id: str, sandbox: str | None) -> Callable[[], Awaitable[None]]:
        return self.extras.snapshots.begin(session, task_id, sandbox)

    def after_turn(self, session: Session) -> None:
        self.extras.snapshots.ended(session)

    async def spent_by(self, session_id: str) -> Sequence[SpentTurn]:
        return await self.extras.usage.of_session(session_id)

    def check_spending(self, session: Session) -> None:
        self.extras.budgets.check(session)

    def resume_job(self, task: Task) -> None:
        self.extras.outcomes.resume(task)

    def intercept_event(self, session: Session, event: Event) -> bool:
        if event.agent_id is not None or not isinstance(event, TurnEnded | EngineGone):
            return False
        if session.own_question is not None:
            return isinstance(event, EngineGone)  # another engine can continue
        known = session.state.turn_id
        # The late end of an earlier turn does not end this one.
        if isinstance(event, EngineGone) or (known and event.turn_id not in (None, known)):
            return False
        extras = self.extras
        return any(part.asks(session, event) for part in (extras.budgets, extras.plans, extras.limits))


class _InProcess:
    """Service as the backend of a client in the same process."""

    is_connected = True
    is_lost = False

    def __init__(self, service: HelmsmanService) -> None:
        self._service = service

    @property
    def sessions(self) -> Mapping[str, Session]:
        return self._service.sessions

    async def call(self, verb: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return await getattr(self._service, verb)(*arguments, **named)

    def part(self, path: str) -> Any:
        return getattr(self._service, path)

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        return self._service.listen(listener)

    async def goes_on_alone(self) -> bool:
        return await self._service.goes_on_alone()
