"""`Helmsman`: the one service that every front door calls.

The core (`helmsman.steering`) with what stands on it (`helmsman.capabilities`). It decides; front doors parse, call and
format. It is the same class whether it holds the service itself, as in a hub, or asks the user's hub for all of it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Never, Protocol, Self, TypeAlias, cast

from helmsman.base.concurrency import require_asyncio
from helmsman.base.surroundings import environment
from helmsman.capabilities.service import AgentService
from helmsman.errors import InvalidInput, InvalidSetting, NotOpen
from helmsman.hub.verbs import PAGE, PAGE_CHANGES, VERBS
from helmsman.model.events import EngineGone, TurnEnded
from helmsman.model.inputs import refuse_placement
from helmsman.steering.core import Steering

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.protocol import Agent
    from helmsman.capabilities import Extras
    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.errors import BudgetExceeded
    from helmsman.hub.away import AwayWork
    from helmsman.hub.hosts import OtherHost
    from helmsman.hub.links import Links
    from helmsman.model.events import Event
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.settings import Settings
    from helmsman.steering.session_loader import SpentTurn
    from helmsman.steering.shared import Shared
    from helmsman.tasks.model import Task


log = logging.getLogger(__name__)

Holder: TypeAlias = "Callable[[Session, str, Callable[[], Awaitable[None]]], Awaitable[bool]]"


class Elsewhere(Protocol):
    """Who has the service in place of a Helmsman: the user's hub, or a fleet for a door of that."""

    listeners: list[Callable[[Session, Event], None]]

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def is_lost(self) -> bool: ...

    async def call(self, verb: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Have one of the verbs done."""
        ...

    def part(self, path: str) -> Any:
        """What stands on the verbs: `tasks` or `extras`."""
        ...


class Helmsman(AgentService):
    """Runs agents, under asyncio. Use it as an async context manager; in notebooks, `await open()` and `await close()`.

    In a script without an event loop use `helmsman.SyncHelmsman`.

    Where agents may outlive this process (`Settings.detach`, the default where Codex can), the user's hub has the service,
    and whatever is started goes on there when the block is left. Else, or with `inside`, or with agents of your own, it runs
    in this process, and leaving the block stops everything.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_question: QuestionHandler | None = None,
        agents: Iterable[Agent] = (),
        shared: Shared | None = None,
        in_place_of: str | None = None,
        is_door: bool = True,
        inside: bool = False,
        host: str | None = None,
    ) -> None:
        """`host` is another machine of yours (`helmsman hosts`): its hub does everything, with what is installed there.

        `shared`, `in_place_of` and `is_door` are for the hub: see `helmsman.steering.turn_runner.TurnRunner`.

        Raises:
            InvalidInput: There is no such host, or it is given what only holds on this machine.
        """
        agents = tuple(agents)
        self._host = None if host is None else _other_host(host, has_more=bool(settings or env or agents or inside))
        super().__init__(
            settings,
            env=env,
            on_question=on_question,
            agents=agents,
            shared=shared,
            in_place_of=in_place_of,
            is_door=is_door,
        )
        may_outlive = self.settings.detach and not agents and not inside and os.name == "posix"
        self._may_ask_hub = self._is_alone and (may_outlive or self._host is not None)
        self._hub: Elsewhere | None = None
        self._life: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    def __enter__(self) -> Never:
        raise TypeError(
            "Use `async with Helmsman()`, or `with helmsman.SyncHelmsman()` in a script without an event loop."
        )

    def __exit__(self, *exc: object) -> None:
        """There for Python to get to `__enter__`, which says what to use."""

    async def open(self) -> Self:
        """Open it without a block, as in one cell of a notebook; `close` closes it in another. Once is enough.

        Raises:
            NeedsAsyncio: There is no event loop of asyncio.
            NotOpen: It was closed, and is of no use any more.
        """
        require_asyncio()
        if self._leaving.is_set():
            raise NotOpen("This Helmsman was closed. Make a new one: Helmsman().")
        if self._life is None:
            opened = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(opened), name="helmsman")
            try:
                await asyncio.shield(opened)
            except asyncio.CancelledError:
                await self.close()
                raise
            except BaseException:
                self._life = None
                raise
        return self

    async def close(self) -> None:
        """Close what `open` opened. Closed already, or never opened, nothing happens."""
        life, self._life = self._life, None
        if life is not None:
            self._leaving.set()
            await asyncio.shield(life)

    async def _live(self, opened: asyncio.Future[None]) -> None:
        """Be open until somebody closes it, in a task of its own: what is open here has to be left where it was entered."""
        try:
            await self.__aenter__()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        try:
            opened.set_result(None)
            await self._leaving.wait()
        finally:
            self._leaving.set()
            await self.__aexit__(*sys.exc_info())

    async def __aenter__(self) -> Self:
        require_asyncio()
        if self._may_ask_hub:
            from helmsman.hub.client import HubClient

            env = self._surroundings.environment if self._env is None else self._env
            hub = HubClient(self, self.settings, env, self._on_question, self._host)
            if await hub.connect():
                self._hub = await self._exit.enter_async_context(hub)
                for note in self.settings.ignored:
                    log.warning("%s", note)
                return self
        if self.settings.fleet_url is not None and (self._is_door or self._is_alone):
            if self._shared.open_fleet is None:
                raise InvalidSetting(
                    "A fleet is reached through the hub, and this Helmsman does without (HELMSMAN_DETACH=0, --bound, "
                    "inside, or agents of its own). Leave that out, or unset HELMSMAN_FLEET_URL to have it done here."
                )
            self._hub = await self._exit.enter_async_context(self._shared.open_fleet(self))
            return self
        return await super().__aenter__()

    async def __aexit__(self, *exc: Any) -> None:
        if self._hub is None:
            await super().__aexit__(*exc)
        else:
            await self._exit.aclose()

    @cached_property
    def tasks(self) -> Tasks:
        """All tasks: those of this Helmsman, those of others on this machine, and those in the cloud."""
        if self._hub is not None:
            return cast("Tasks", self._hub.part("tasks"))
        from helmsman.capabilities.all_tasks import Tasks

        return Tasks(self, env=self._env)

    @cached_property
    def extras(self) -> Extras:
        """What Codex can do beyond start and say."""
        if self._hub is not None:
            return cast("Extras", self._hub.part("extras"))
        from helmsman.capabilities import Extras

        return Extras(self, self.tasks)

    @cached_property
    def hosts(self) -> Links[Helmsman]:
        """The user's other machines, each a Helmsman of its own, open for as long as this one is."""
        from helmsman.hub.links import Links

        links = Links(self.environment, lambda name: Helmsman(host=name), is_bounded=bool(self.allowed_roots))
        self._exit.push_async_callback(links.close)
        return links

    async def page(self, method: str, path: str, query: str, body: str) -> tuple[int, Any]:
        """For the dashboard: have that of another machine answer a request; the status, and what is JSON."""
        assert self._hub is not None
        return cast("tuple[int, Any]", await self._hub.call(PAGE, (method, path, query, body), {}))

    async def page_changes(self, last_event_id: str | None) -> Mapping[str, Any]:
        """For the dashboard: what has changed on another machine since; waits for a while if nothing has."""
        assert self._hub is not None
        return cast("Mapping[str, Any]", await self._hub.call(PAGE_CHANGES, (last_event_id,), {}))

    @property
    def is_connected(self) -> bool:
        """Whether the hub that is asked for everything can be reached just now."""
        return self._hub is not None and self._hub.is_connected

    @property
    def is_lost(self) -> bool:
        """Whether the hub of another machine cannot be reached any more: make a new one."""
        return self._hub is not None and self._hub.is_lost

    @cached_property
    def workspaces(self) -> AwayWork:
        """What is done on the machine `host` with trees of this one, which `start` was told to `bring` there.

        Raises:
            InvalidInput: This Helmsman is not another machine's.
        """
        from helmsman.hub.away import AwayWork
        from helmsman.hub.client import HubClient

        if self._host is None or not isinstance(self._hub, HubClient):
            raise InvalidInput("Only a Helmsman of another machine brings trees there: Helmsman(host=…).")
        return AwayWork(self._hub, self._host.name, self.settings)

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions that were started or looked up here."""
        return super().sessions if self._hub is None else self._hub.sessions

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Be told of every event of every session; the answer ends it. A listener must not block or raise."""
        if self._hub is None:
            return super().listen(listener)
        listeners = self._hub.listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    @property
    def asks_hub(self) -> bool:
        """Whether somebody else has the service: the user's hub, or a fleet."""
        return self._hub is not None

    async def goes_on_alone(self) -> bool:
        """Whether what is started goes on when this process ends."""
        return self._hub is not None or (await self.engine()).id is not None

    async def check_remaining(self, percent: float, agent: str) -> tuple[str, ...]:
        return await self.extras.account.check_remaining(percent, agent)

    async def used_up(self, directory: str | None, task_id: str) -> BudgetExceeded | None:
        return await self.extras.budgets.refusal(directory, task_id)

    async def holds(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        extras = self.extras
        parts: tuple[Holder, ...] = extras.budgets.holds, extras.worktree_setup.holds
        if (gate := self.task_writer.gate(task_id)) is not None:
            at_gate = partial(extras.outcomes.holds, gate)
            parts = (at_gate,) if gate.only_asks else (*parts, at_gate)
        return await self._held_by(parts, session, task_id, go_on)

    async def _held_by(
        self, parts: Sequence[Holder], session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]
    ) -> bool:
        """Whether one of these has a turn wait; those after it are asked when it lets the turn go on."""
        if not parts:
            return False
        first, *others = parts

        async def then() -> None:
            if not await self._held_by(others, session, task_id, go_on):
                await go_on()

        return await first(session, task_id, then) or await self._held_by(others, session, task_id, go_on)

    async def needs_session_first(self, task_id: str, directory: Path) -> bool:
        return self.task_writer.gate(task_id) is not None or await self.extras.worktree_setup.is_due(directory)

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

    def holds_back(self, session: Session, event: Event) -> bool:
        if event.agent_id is not None or not isinstance(event, TurnEnded | EngineGone):
            return False
        if session.own_question is not None:
            return isinstance(event, EngineGone)  # another engine can go on
        known = session.state.turn_id
        if isinstance(event, EngineGone) or (known and event.turn_id not in (None, known)):
            return False
        extras = self.extras
        return any(part.asks(session, event) for part in (extras.budgets, extras.plans, extras.limits))


def _other_host(name: str, *, has_more: bool) -> OtherHost:
    from helmsman.hub.hosts import HostFailed, named_host

    if os.name != "posix":
        raise InvalidInput("Other machines can be reached from Linux and macOS only.")
    if has_more:
        raise InvalidInput(
            "With `host` everything is that machine's own: leave out settings, env, agents and inside, and set there what "
            "should hold there."
        )
    try:
        return named_host(name, environment())
    except HostFailed as error:
        raise InvalidInput(str(error)) from error


def _in_hub(name: str) -> Callable[..., Any]:
    """A verb that the hub does, where there is one."""
    here = getattr(Steering, name)

    @functools.wraps(here)
    def verb(self: Helmsman, *arguments: Any, **named: Any) -> Awaitable[Any]:
        if self._hub is None:
            refuse_placement(named.get("placement"))
        done_here = here(self, *arguments, **named)  # a wrong argument is an error of the call itself
        if self._hub is None:
            return cast("Awaitable[Any]", done_here)
        done_here.close()
        if named.get("bring") is not None:
            return self.workspaces.start(arguments, named)
        return self._hub.call(name, arguments, named)

    return verb


for _name in VERBS:
    setattr(Helmsman, _name, _in_hub(_name))
