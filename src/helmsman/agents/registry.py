"""Registry of agents, and of their engines for a service."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

import anyio
import anyio.to_thread

from helmsman.agents.acp.agent import KNOWN, AcpAgent, known_agents, read_own_agents
from helmsman.agents.claude.agent import ClaudeAgent
from helmsman.agents.codex.agent import CodexAgent
from helmsman.agents.protocol import Capability, NothingBegun
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.directory import try_attach
from helmsman.agents.supervisor.records import read_records
from helmsman.base.caller_context import environment
from helmsman.base.structs import replace
from helmsman.base.unknown_names import nearest
from helmsman.errors import ClientAway, EngineLost, EngineTimeout, HelmsmanError, InvalidInput, SessionLocked

__all__ = [
    "HOMES",
    "Agents",
    "EngineHolder",
    "Owner",
    "Spendings",
    "engine_in_use",
    "engine_overviews",
    "stop_engine",
    "supervisors",
    "usable",
]

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.agents.acp.agent import OwnWords
    from helmsman.agents.protocol import Agent, Capabilities, Engine, Opened, SessionIndex
    from helmsman.agents.spending import SessionSpending, SpendingIndex
    from helmsman.base.processes import Process
    from helmsman.model.options import SessionOptions
    from helmsman.settings import ConfigFile, Settings

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

HOMES: Final = frozenset({"HOME", *(home.variable for one in KNOWN if (home := one.home({})) is not None)})
"""Variables that decide where agents keep their sessions."""
_TRIED: Final = 3
"""Maximum number of engines to try, one after the other. If all of them end at the same time, the caller gets the error."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")

_OF_ITS_OWN: Final[Mapping[Capability, str]] = {
    Capability.MODEL: "Choose it in its own configuration.",
    Capability.MODELS: "Its own program lists them.",
    Capability.ACCOUNT: "Its own program shows it.",
    Capability.LOGIN: "Log in with its own program.",
    Capability.SKILLS: "Its own program lists them.",
    Capability.CONFIGURE: "Change its own configuration files.",
}
"""Capabilities that no other agent can substitute, with an alternative for each."""
_INSTEAD: Final[Mapping[Capability, str]] = {
    Capability.STEER: "Wait for the turn to end, or interrupt it and send the message then.",
    Capability.REVIEW: "It is shown the diff and asked for its findings instead (`helmsman review --agent {agent}`).",
    Capability.MOVE: "There the work starts anew from the files.",
}
"""Alternatives that Helmsman or the user has if an agent lacks a capability."""


class Agents:
    """Agents of a service: those that come with Helmsman, and those that its caller adds."""

    def __init__(
        self, brought: Iterable[Agent] = (), owner: Owner | None = None, files: Iterable[ConfigFile] = ()
    ) -> None:
        """`files` are the configuration files, which may name agents of the user's own."""
        known = known_agents(owner)
        self._any_acp = known[0]
        self._always: dict[str, Agent] = {}
        # Built-in agents first: no other may take their name.
        for agent in (CodexAgent(owner), ClaudeAgent(owner), *known, *brought):
            self._refuse_name(agent.name, is_taken=agent.name in self._always)
            self._always[agent.name] = agent
        self._own: dict[tuple[str, OwnWords], Agent] = {}
        """All agents from the configuration files of all clients."""
        self._by_name = self._always
        self.reaching = defaultdict[str, anyio.Lock](anyio.Lock)
        """Locks by engine, shared by all clients. Of several clients that look for an engine, the first opens it for all."""
        self.having(files)

    def seen_from(self, files: Iterable[ConfigFile]) -> Agents:
        """Return the agents of a client, whose files may define others. Identical definitions of two clients are one
        agent.

        Raises:
            InvalidSetting: A value under `[agents]` is invalid.
        """
        return copy(self).having(files)

    def having(self, files: Iterable[ConfigFile]) -> Agents:
        """Return the agents with the definitions in these files."""
        named = dict(self._always)
        for name, words in read_own_agents(files).items():
            known = named.get(name, self._any_acp)
            self._refuse_name(name, is_taken=not isinstance(known, AcpAgent))
            # One object for equal definitions, so that their engines are shared.
            if (name, words) not in self._own and isinstance(known, AcpAgent):
                self._own[name, words] = known.said(name, words)
            named[name] = self._own[name, words]
        self._by_name = named
        return self

    def _refuse_name(self, name: str, *, is_taken: bool) -> None:
        if not _NAME.fullmatch(name) or is_taken:
            raise InvalidInput(
                f"An agent cannot be called {name!r:.80}: a name is lower case and taken once. Choose another one."
            )

    def of_all_clients(self) -> Iterator[Agent]:
        """Iterate over these agents and those that only other clients have."""
        return iter((*self._always.values(), *self._own.values()))

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Agent:
        """Return an agent by its name.

        Raises:
            InvalidInput: No agent has that name.
        """
        if name not in self._by_name:
            meant = nearest(name, self._by_name)
            hint = "" if meant is None else f" Did you mean {meant}?"
            raise InvalidInput(
                f"There is no agent {name!r:.80}.{hint} Use one of: {', '.join(sorted(self._by_name))}.",
                parameter="agent",
            )
        return self._by_name[name]

    def get(self, name: str) -> Agent | None:
        """Return an agent by its name, even one of another client; None if the agent of a task is not available now."""
        brought = (agent for agent in self._own.values() if agent.name == name)
        return self._by_name.get(name) or next(brought, None)

    def title(self, name: str) -> str:
        """Return an agent's name in sentences, even if the agent is not available now."""
        agent = self.get(name)
        return name.capitalize() if agent is None else agent.title

    def require(self, engine: Engine, *needed: Capability) -> None:
        """Raise if an engine lacks one of these capabilities.

        Raises:
            Unsupported: It cannot; the message names the agents that can.
        """
        self.explained(engine.capabilities).require(*needed)

    def explained(self, can: Capabilities) -> Capabilities:
        """Add to each missing capability of an engine the agents that have it and an alternative."""
        return replace(can, lacking={one: self._instead(can.agent, one, hint) for one, hint in can.lacking.items()})

    def _instead(self, name: str, capability: Capability, hint: str) -> str:
        if capability in _OF_ITS_OWN:
            return hint or _OF_ITS_OWN[capability]
        agent = self.get(name)
        if agent is not None and capability in agent.able:
            return hint  # another version or engine of it can
        others = [agent.title for agent in self if agent.name != name and capability in agent.able]
        who = " and ".join(filter(None, (", ".join(others[:-1]), *others[-1:])))
        return " ".join(filter(None, (who and f"{who} can.", hint or _INSTEAD.get(capability, "").format(agent=name))))

    def here(self, settings: Settings, env: Mapping[str, str] | None) -> list[Agent]:
        """Return the agents whose programs exist. None is started, so the list includes broken ones. Blocks briefly."""
        return [agent for agent in self if agent.is_here(settings, env)]

    def indexes(self, settings: Settings, env: Mapping[str, str] | None = None) -> Mapping[str, SessionIndex]:
        """Return the session index of each agent, by these settings and this environment (default: the current one)."""
        return _Indexes(self, settings, environment() if env is None else env)


class _Indexes(Mapping[str, "SessionIndex"]):
    """Session indexes of agents. Their readers are imported on first access, so that no service waits for the import."""

    def __init__(self, agents: Agents, settings: Settings, env: Mapping[str, str]) -> None:
        self._agents = agents
        self._settings = settings
        self._env = env
        self._lock = Lock()
        self._found: dict[str, SessionIndex] | None = None

    def _indexes(self) -> dict[str, SessionIndex]:
        with self._lock:
            if self._found is None:
                found = {agent.name: agent.sessions(self._settings, self._env) for agent in self._agents}
                self._found = {name: index for name, index in found.items() if index is not None}
            return self._found

    def __getitem__(self, name: str) -> SessionIndex:
        return self._indexes()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexes())

    def __len__(self) -> int:
        return len(self._indexes())


def engine_overviews(state_dir: Path) -> list[dict[str, Any]]:
    """Return the supervised processes of all agents, oldest first. Blocks for a few seconds if one does not answer."""
    return sorted((record.overview() for record in read_records(state_dir)), key=lambda engine: engine["startedAt"])


def stop_engine(state_dir: Path, engine_id: str) -> None:
    """End a supervised process and all that it has started. Blocks for a bounded time."""
    for record in read_records(state_dir):
        if record.id == engine_id:
            record.stop()


def _drain(state_dir: Path, engine_id: str) -> None:
    for record in read_records(state_dir):
        if record.id == engine_id:
            record.drain()


@contextmanager
def engine_in_use(state_dir: Path, engine_id: str | None) -> Iterator[None]:
    """Keep a supervised process from ending for want of a client, for the length of the block."""
    record = next((one for one in read_records(state_dir) if one.id == engine_id), None)
    with nullcontext() if record is None else try_attach(record.directory):
        yield


def supervisors(state_dir: Path) -> Collection[Process]:
    """Return the supervisors of all agents."""
    return {record.supervisor for record in read_records(state_dir)}


class Spendings:
    """Spending of the sessions of all agents on disk. May be used from several threads; calls block."""

    def __init__(self, agents: Agents, settings: Settings, env: Mapping[str, str]) -> None:
        self._agents = agents
        self._settings = settings
        self._env = env
        self._lock = Lock()
        self._indexes: dict[str, SpendingIndex] | None = None

    def sessions(self, since: float | None = None, stored: Mapping[str, float] | None = None) -> list[SessionSpending]:
        """See `helmsman.agents.spending.SpendingIndex`."""
        return [session for index in self._opened().values() for session in index.sessions(since, stored)]

    def names(self, agent: str, turn_id: str) -> bool:
        """Return whether the files of this agent use this id for a turn (`helmsman.agents.spending.SpendingFiles`)."""
        index = self._opened().get(agent)
        return index is not None and index.names(turn_id)

    def _opened(self) -> dict[str, SpendingIndex]:
        if self._indexes is not None:  # asked for each turn: the lock would take longer than the rest
            return self._indexes
        from helmsman.agents.spending import SpendingIndex

        # Opened once, although several threads may ask at the same time.
        with self._lock:
            if self._indexes is None:
                sources = {agent.name: agent.spending(self._settings, self._env) for agent in self._agents}
                self._indexes = {
                    name: SpendingIndex(source, self._settings.state_dir)
                    for name, source in sources.items()
                    if source is not None
                }
            return self._indexes


class EngineHolder:
    """Holds at most one engine of each agent for new work. They end with the task group it lives in, or with `close`.

    `users` are the clients it has now. Before the first client connects, with `is_away` set, the environment for starting an
    engine is unknown: only running engines can be used.
    """

    def __init__(
        self,
        agents: Agents,
        settings: Settings,
        env: Mapping[str, str] | None,
        tasks: TaskGroup,
        *,
        is_away: bool = False,
    ) -> None:
        self._agents = agents
        self._is_away = is_away
        self._settings = settings
        self._env = env
        self._tasks = tasks
        self._engines: dict[str, Engine] = {}
        self._opening: dict[str, anyio.Event] = {}
        self._others: dict[str, Engine] = {}
        self._ending: WeakSet[Engine] = WeakSet()
        """Engines that take no new work. Their running turns continue."""
        self._persons: dict[str, Engine] = {}
        """Engines of agents' own programs: never for new sessions."""
        self._keeping = set[anyio.CancelScope]()
        self.users = 0

    def bring(self, agents: Agents, settings: Settings, env: Mapping[str, str] | None) -> None:
        """Accept a client's settings and environment, so that engines can be started with them."""
        if self._is_away:
            self._agents, self._settings, self._env, self._is_away = agents, settings, env, False

    def known(self, name: str) -> str | None:
        """Return the name of the detached engine for new work of an agent, if there is one."""
        return self._engines[name].id if self.is_open(name) else None

    def is_open(self, name: str) -> bool:
        """Return whether an engine is open for new work of an agent."""
        engine = self._engines.get(name)
        return engine is not None and usable(engine) and not self.is_ending(engine)

    def is_ending(self, engine: Engine) -> bool:
        """Return whether an engine is usable but takes no new work."""
        return engine in self._ending and usable(engine)

    def holds(self, engine: Engine | None) -> bool:
        """Return whether this holder has the engine."""
        held = (*self._engines.values(), *self._others.values(), *self._persons.values())
        return engine is not None and engine in held

    def close(self) -> None:
        """Release all engines. Engines that outlive the hub keep running, and end after a while without use."""
        for scope in self._keeping:
            scope.cancel()

    async def get(self, name: str) -> Engine:
        """Return the engine of an agent, opened if necessary."""
        agent = self._agents[name]
        while not self.is_open(name):
            if name in self._opening:
                await self._opening[name].wait()  # another caller is opening it; if that fails, it is our turn to try
                continue
            opening = self._opening[name] = anyio.Event()
            try:
                # An engine that was found running comes first, as a second one would compete for its sessions.
                self._engines[name] = await self._reached(agent) or await self._tasks.start(
                    self._keep, agent.open_engine(self._settings, self._env)
                )
            finally:
                # Also after a failure, so that waiting callers try themselves.
                opening.set()
                del self._opening[name]
        return self._engines[name]

    async def try_in(self, engine: Engine, do: Callable[[Engine], Awaitable[ResultT]]) -> ResultT:
        """Begin work in an engine, or in another one of the same agent if that one takes no new work.

        Raises:
            NothingBegun: None of the engines that were tried takes it.
        """
        for _ in range(_TRIED - 1):
            try:
                return await do(engine)
            except NothingBegun as error:
                log.info("another engine takes the place of %s: %s", engine.id or engine.name, error)
                engine = await self._instead_of(engine)
        # The last attempt reports its error.
        return await do(engine)

    async def _instead_of(self, engine: Engine) -> Engine:
        """Return another engine for new work. Running turns stay in the old one."""
        name = engine.capabilities.agent
        self._ending.add(engine)
        if engine.id is not None:
            # Its running turns are still followed.
            self._others[engine.id] = engine
            await anyio.to_thread.run_sync(_drain, self._settings.state_dir, engine.id)
        return await self.get(name)

    async def _reached(self, agent: Agent) -> Engine | None:
        """Return an engine that was found with running work, if it takes new work: an agent may have only one owner.

        Raises:
            ClientAway: No engine is open, and the environment for starting one is unknown.
        """
        # A copy, since engines may be lost while this waits.
        for engine_id, engine in list(self._others.items()):
            if not usable(engine) or engine in self._ending or engine.capabilities.agent != agent.name:
                continue
            if self._is_away or await agent.takes_work(self._settings, self._env, engine_id):
                return engine
        self.require(agent.name)
        return None

    def require(self, name: str) -> None:
        """Make sure that an engine of an agent is open, or that the environment for starting one is known.

        Raises:
            ClientAway: Neither.
        """
        here = (*self._engines.values(), *self._others.values())
        if self._is_away and not any(usable(one) and one.capabilities.agent == name for one in here):
            raise ClientAway(
                "No client with the environment of this request is connected. It begins when one connects."
            )

    async def reach(self, name: str, engine_id: str) -> Engine | None:
        """Return a detached engine of an agent with running work; None if it has ended."""
        # The lock is per engine and shared: two clients would attach to it together and fence each other.
        async with self._agents.reaching[engine_id]:
            for known in (self._engines.get(name), self._others.get(engine_id), self._persons.get(engine_id)):
                if known is not None and known.id == engine_id and usable(known):
                    return known
            try:
                agent = self._agents.get(name) or self._agents[name]
                opening = agent.reopen_engine(self._settings, engine_id)
                engine: Engine = await self._tasks.start(self._keep, opening)
            except HelmsmanError as error:
                log.debug("engine %s is not reached: %s", engine_id, error)
                return None
            # A user's own engine never takes new sessions.
            (self._persons if engine.is_of_a_person else self._others)[engine_id] = engine
            return engine

    async def resume(self, engine: Engine, session_id: str, options: SessionOptions) -> tuple[Engine, Opened]:
        """Let an engine load a session; one that a person has open in the agent's own program is joined there instead.

        Raises:
            SessionLocked: Another process has it, and it cannot be joined.
        """
        try:
            return engine, await engine.resume(session_id, options)
        except SessionLocked as locked:
            name = engine.capabilities.agent
            engine_id = await anyio.to_thread.run_sync(self._agents[name].persons_engine, self._settings)
            persons = None if engine_id is None else await self.reach(name, engine_id)
            if persons is None:
                raise
            try:
                return persons, await persons.resume(session_id, options)
            except (EngineLost, EngineTimeout, SessionLocked):
                raise locked from None

    async def _keep(self, opening: AbstractAsyncContextManager[Engine], *, task_status: TaskStatus[Engine]) -> None:
        opened = False
        with anyio.CancelScope() as scope:
            self._keeping.add(scope)
            try:
                async with opening as engine:
                    # Handed over while open. The block ends when the engine is lost or released.
                    task_status.started(engine)
                    opened = True
                    await engine.until_lost()
            except Exception:
                if not opened:
                    raise
                log.exception("the engine failed")  # leaving its block informs its sessions; the service keeps running
            finally:
                self._keeping.discard(scope)


def usable(engine: Engine | None) -> bool:
    return engine is not None and engine.lost is None
