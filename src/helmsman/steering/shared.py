"""What all doors of a process share: the sessions, the engines, the ledger, and the tasks in the background.

A `Helmsman` by itself makes its own. A hub makes one, and each of its doors is a `Helmsman` on it, with the door's settings,
environment and directory.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import anyio

from helmsman.agents.registry import Agents, EngineHolder, Owner, fingerprint
from helmsman.approvals.audit import AuditLog
from helmsman.base.concurrency import OnceEach, background_tasks, logging_failures
from helmsman.base.surroundings import environment
from helmsman.errors import HelmsmanError, NotOpen
from helmsman.model.events import EngineGone, SettingsApplied, TurnEnded, TurnRequested, TurnStarted
from helmsman.notices.store import NoticeStore
from helmsman.schedules.store import ScheduleStore
from helmsman.sessions.session import Session
from helmsman.settings import RETENTION_DAYS
from helmsman.steering.known import Roster
from helmsman.steering.room import Room
from helmsman.tasks.ledger import Ledger
from helmsman.tasks.truth import TaskTruth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.protocol import Agent
    from helmsman.model.events import Event
    from helmsman.sessions.session import Verbs
    from helmsman.settings import ConfigFile, Settings
    from helmsman.store.database import Fence

log = logging.getLogger(__name__)

OpenFleet: TypeAlias = "Callable[[Verbs], AbstractAsyncContextManager[Any]]"
"""Opens a fleet for a door, which asks it for everything from then on (`helmsman.service.Elsewhere`)."""

_LINGER_SECONDS: Final = 60.0
_ELSEWHERE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 30.0
"""How often the clock is looked at: the time that a machine slept is not waited for."""


class Shared:
    """One for each process and state directory. Use it as an async context manager.

    A hub has an `owner`, which its engines are opened for, and a `fence`: what it acknowledges, the next one runs.
    """

    def __init__(
        self,
        state_dir: Path,
        agents: Iterable[Agent] = (),
        *,
        owner: Owner | None = None,
        fence: Fence | None = None,
        files: Iterable[ConfigFile] = (),
        retention_days: int = RETENTION_DAYS,
        store: str | None = None,
    ) -> None:
        self.state_dir = state_dir
        self.fence = fence
        self.agents = Agents(agents, owner, files)
        self.truth = TaskTruth(self.agents)
        self.ledger = Ledger(state_dir, self.truth, fence, timedelta(days=retention_days), store=store)
        self.schedules = ScheduleStore(self.ledger.database)
        self.notices = NoticeStore(self.ledger.database)
        self.audit = AuditLog(state_dir)
        self.roster = Roster()
        self.roster.listeners += (self.ledger.log_event, self.ledger.on_event)
        self.roster.listeners.append(self.roster.on_event)
        self.room = Room()
        self.doors: list[Verbs] = []
        """Those that are connected."""
        self.on_room: list[Callable[[], None]] = []
        """Who is told that something that waited may be able to run: a door has come, or a turn has ended."""
        self.is_recovered = anyio.Event()
        """Set once what an earlier hub left is known here: until then a session may lack what waits in it."""
        self._needed: dict[str, frozenset[str]] | None = None
        if fence is not None:
            self.roster.listeners.append(self._on_event)
        else:
            self.is_recovered.set()
        self.keys = OnceEach[Session]()
        """What is being begun, or could not be registered, by its idempotency key."""
        self.registering = set[str]()
        """The sessions whose turn somebody else began, and is about to be a task."""
        self.open_fleet: OpenFleet | None = None
        """Opens the fleet of a door that has one. None where doors cannot reach any."""
        self._exit = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._engines: dict[str, EngineHolder] = {}
        """By what they are started with."""
        self.linger = _LINGER_SECONDS

    async def __aenter__(self) -> Self:
        self._exit.push_async_callback(self.ledger.close)  # the last of all: ends are told while the rest closes
        self._tasks = logging_failures(await self._exit.enter_async_context(background_tasks()))
        self._tasks.start_soon(self.ledger.run)
        self._tasks.start_soon(self._close_unused_engines)
        self._tasks.start_soon(self._refresh_elsewhere)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._exit.aclose()
        self._tasks = None
        for session in self.roster.by_id.values():
            session.feed.close()

    @property
    def is_open(self) -> bool:
        return self._tasks is not None

    @property
    def is_at_work(self) -> bool:
        """Whether it is open, and not about to close: what is begun now is done."""
        return self._tasks is not None and not self._tasks.cancel_scope.cancel_called

    @property
    def tasks(self) -> TaskGroup:
        """What runs for as long as this is open."""
        if self._tasks is None:
            raise NOT_OPEN.again()
        return self._tasks

    def engines(
        self, settings: Settings, env: Mapping[str, str] | None, surroundings: str, *, is_away: bool = False
    ) -> EngineHolder:
        """The engines for a door: shared with those for which they would be started in the same way. See `leave`.

        `is_away`: the door is not there, and these are neither its environment nor all of its settings.
        """
        holder, agents = self._engines.get(surroundings), self.agents.seen_from(settings.files)
        if holder is None:
            holder = self._engines[surroundings] = EngineHolder(agents, settings, env, self.tasks, is_away=is_away)
        elif not is_away:
            holder.bring(agents, settings, env)
        holder.users += 1
        return holder

    def leave(self, holder: EngineHolder) -> None:
        """A door that had these engines has gone. What runs in them is followed to its end; then they are let go of."""
        holder.users -= 1

    def make_room(self) -> None:
        """Something that waited may be able to run now."""
        for tell in self.on_room:
            tell()

    def work(self) -> int:
        """How many sessions have a turn under way, or a message queued that somebody who is here can send; and jobs."""
        return len(self.ledger.jobs) + sum(
            session.state.is_running
            or any(not queued.is_early and not session.is_away(queued) for queued in session.queue)
            for session in self.roster.at_work.values()
        )

    def next_at(self) -> datetime | None:
        """When something that waits in a session is to go on by itself."""
        queued = (one for session in self.roster.at_work.values() for one in session.queue)
        return min((one.not_before for one in queued if one.not_before is not None), default=None)

    def run_later(self, session: Session, task_id: str, run: Callable[[], None]) -> None:
        """Call `run` when what waits in a session, and may not begin before its time, may begin."""
        self.roster.at_work[session.id] = session
        self.tasks.start_soon(self._run_later, session, task_id, run)

    async def _run_later(self, session: Session, task_id: str, run: Callable[[], None]) -> None:
        while (queued := next((one for one in session.queue if one.task_id == task_id), None)) is not None:
            if not queued.is_early or queued.not_before is None:
                run()
                return
            left = (queued.not_before - datetime.now(UTC)).total_seconds()
            await anyio.sleep(min(max(left, 0.01), _LOOK_SECONDS))

    def _on_event(self, session: Session, event: Event) -> None:
        if isinstance(event, TurnRequested | SettingsApplied | TurnEnded | EngineGone):
            self.need_engines()
        elif isinstance(event, TurnStarted) and self._needed:
            agent = self.agents.get(session.options.agent)
            if agent is not None:
                # A process may have been started for this turn.
                agent.need_engines(self.state_dir, self._needed.get(agent.name, frozenset()))

    def need_engines(self, *, none: bool = False) -> None:
        """Tell the supervisors of the engines in which something is under way, and no others, that a hub has to be there.

        With `none`, that none has to be: this one ends, and whatever runs goes on without.
        """
        needed: dict[str, frozenset[str]] = {}
        for session in () if none else self.roster.at_work.values():
            if session.engine is not None and session.engine.id is not None:
                agent = session.options.agent
                needed[agent] = needed.get(agent, frozenset()) | {session.engine.id}
        before, self._needed = self._needed, needed
        for one in self.agents.of_all_doors():
            if before is None or needed.get(one.name) != before.get(one.name):
                one.need_engines(self.state_dir, needed.get(one.name, frozenset()))

    async def _refresh_elsewhere(self) -> None:
        """See what becomes of turns that other processes run, for whoever looks at them here."""
        while True:
            if not self.roster.elsewhere:  # an idle hub need not wake up every second
                self.roster.has_elsewhere = anyio.Event()
                await self.roster.has_elsewhere.wait()
            await anyio.sleep(_ELSEWHERE_SECONDS)
            for session_id, look in list(self.roster.elsewhere.items()):
                try:
                    await look()
                except HelmsmanError as error:
                    log.info("session %s is not looked at any more: %s", session_id, error)
                    self.roster.elsewhere.pop(session_id, None)

    async def _close_unused_engines(self) -> None:
        """Let go of engines that nobody has needed between two looks: something may just be ending in them at the first."""
        unused: set[str] = set()
        while True:
            await anyio.sleep(self.linger)
            in_use = [session.engine for session in self.roster.at_work.values()]
            before, unused = (
                unused,
                {
                    key
                    for key, holder in self._engines.items()
                    if holder.users == 0 and not any(map(holder.holds, in_use))
                },
            )
            for key in before & unused:
                holder = self._engines.pop(key)
                for session in self.roster.by_id.values():
                    if session.engine is not None and holder.holds(session.engine):
                        session.engine.detach(session.id)  # nothing happens in it that anybody is to be told of
                        session.detach()
                holder.close()


def surroundings_of(settings: Settings, env: Mapping[str, str] | None) -> str:
    """What an engine for a door would be started with, as a fingerprint: it tells nothing, and is good for comparing."""
    parts = (
        settings.codex_path,
        settings.codex_home,
        settings.claude_path,
        settings.claude_home,
        settings.engine,
        settings.detach,
        settings.engine_idle,
        settings.shell_snapshots,
        settings.codex_remote,
        settings.codex_remote_token,
        *settings.allowed_roots,
        *(
            json.dumps(file.content["agents"], default=str)
            for file in settings.files
            if file.trusted and "agents" in file.content
        ),
    )
    known = [fingerprint(environment() if env is None else env), *map(str, parts)]
    return hashlib.sha256(json.dumps(known).encode("utf-8", "surrogateescape")).hexdigest()


_OF_HUB: Final = "hub:"


def surroundings_of_hub(settings: Settings) -> str:
    """The surroundings of what the hub begins by itself: its own environment, which may change from hub to hub."""
    return _OF_HUB + surroundings_of(settings, {})


def is_of_hub(surroundings: str) -> bool:
    """Whether these are the hub's own, so that nobody has to be there."""
    return surroundings.startswith(_OF_HUB)


NOT_OPEN: Final = NotOpen(
    "This Helmsman is not open. Use `async with Helmsman() as helm:`, or `await helm.open()` first."
)
