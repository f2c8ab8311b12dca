"""State that all clients of a process share: the sessions, the engines, the writer, and the background tasks.

A standalone `Helmsman` creates its own. A hub creates one, and each of its clients is a `Helmsman` on it, with the client's
settings, environment and directory.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import anyio

from helmsman.agents.environment import digest_of
from helmsman.agents.registry import Agents, EngineHolder, Owner
from helmsman.approvals.audit import AuditLog
from helmsman.base.caller_context import environment
from helmsman.base.concurrency import OnceEach, background_tasks, logging_failures
from helmsman.errors import NOT_OPEN, ClientAway, HelmsmanError, TooManySessions
from helmsman.model.events import EngineGone, MessageUnqueued, SettingsApplied, TurnEnded, TurnRequested, TurnStarted
from helmsman.notices.store import NoticeStore
from helmsman.schedules.store import ScheduleStore
from helmsman.sessions.session import Session
from helmsman.settings import RETENTION_DAYS
from helmsman.store.labels import LabelStore
from helmsman.tasks.agent_records import AgentRecords
from helmsman.tasks.writer import TaskWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
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
"""Opens a fleet for a client, which sends all its calls to it from then on (`helmsman.hub.service_client.Backend`)."""

# An engine is kept for a while: the next client would have to start it anew.
_LINGER_SECONDS: Final = 60.0
_ELSEWHERE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 30.0
"""Interval in seconds of the clock check: a timer does not count the time that a machine slept."""


class SessionRegistry:
    """Sessions of a process, for all clients, and the listeners to their events."""

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self.at_work: dict[str, Session] = {}
        """Sessions with a running turn or a queued message. Every start checks them, and they are few among many."""
        self.elsewhere: dict[str, Callable[[], Awaitable[None]]] = {}
        """Functions that refresh sessions with a turn in another process: only the store has the end of that turn."""
        self.has_elsewhere = anyio.Event()
        """Set when `elsewhere` gets an entry, for the task that waits for the first."""
        self.sending: set[str] = set()
        """Sessions with a first queued message that is about to be sent."""
        self.restored = OnceEach[Session]()
        self.listeners: list[Callable[[Session, Event], None]] = []

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for the events of all sessions, until the returned function is called. Calling it
        twice is safe.
        """

        def stop() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        self.listeners.append(listener)
        return stop

    def on_event(self, session: Session, _event: Event) -> None:
        """Keep `at_work` up to date."""
        if session.state.is_running or session.queue:
            self.at_work[session.id] = session
        else:
            self.at_work.pop(session.id, None)


class Shared:
    """Shared state of one process and state directory. Use it as an async context manager.

    A hub has an `owner`, for which its engines are opened, and a `fence`: the next hub runs the tasks that it acknowledges.
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
        self.agent_records = AgentRecords(self.agents)
        self.task_writer = TaskWriter(state_dir, self.agent_records, fence, timedelta(days=retention_days), store=store)
        self.schedules = ScheduleStore(self.task_writer.database)
        self.notices = NoticeStore(self.task_writer.database)
        self.labels = LabelStore(self.task_writer.database)
        self.audit = AuditLog(state_dir)
        self.session_registry = SessionRegistry()
        self.session_registry.listeners += (self.task_writer.log_event, self.task_writer.on_event)
        self.session_registry.listeners.append(self.session_registry.on_event)
        self.starting = 0
        """Number of turns that are starting, which `MAX_SESSIONS` counts beside those that run."""
        self.clients: list[Verbs] = []
        """Connected clients."""
        self.dashboards: list[str] = []
        """Addresses at which the dashboard is served now, oldest first."""
        self.on_room: list[Callable[[], None]] = []
        """Callbacks for when waiting work may be able to run: a client has connected, or a turn has ended."""
        self.is_recovered = anyio.Event()
        """Set once the work of an earlier hub is loaded. Until then a session may lack queued messages."""
        self._needed: dict[str, frozenset[str]] | None = None
        if fence is not None:
            self.session_registry.listeners.append(self._on_event)
        else:
            self.is_recovered.set()
        self.keys = OnceEach[Session]()
        """Sessions that are being started, or could not be registered, by idempotency key."""
        self.registering = set[str]()
        """Sessions with a turn that another program began and that is about to become a task."""
        self.open_fleet: OpenFleet | None = None
        """Opens the fleet of a client that has one. None if clients cannot reach any."""
        self._exit = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._engines: dict[str, EngineHolder] = {}
        """Engine holders by environment fingerprint."""
        self.linger = _LINGER_SECONDS

    async def __aenter__(self) -> Self:
        self._exit.push_async_callback(self.task_writer.close)  # last: turns end while the rest closes
        self._tasks = logging_failures(await self._exit.enter_async_context(background_tasks()))
        self._tasks.start_soon(self.task_writer.run)
        self._tasks.start_soon(self._close_unused_engines)
        self._tasks.start_soon(self._refresh_elsewhere)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._exit.aclose()
        self._tasks = None
        # Readers wait for events that will not come any longer.
        for session in self.session_registry.by_id.values():
            session.feed.close()

    @property
    def is_open(self) -> bool:
        return self._tasks is not None

    @property
    def is_at_work(self) -> bool:
        """Return whether it is open, and not about to close: new work will be done."""
        return self._tasks is not None and not self._tasks.cancel_scope.cancel_called

    @property
    def tasks(self) -> TaskGroup:
        """Task group for work that runs as long as this is open."""
        if self._tasks is None:
            raise NOT_OPEN.again()
        return self._tasks

    def engines(
        self, settings: Settings, env: Mapping[str, str] | None, environment_fingerprint: str, *, is_away: bool = False
    ) -> EngineHolder:
        """Return the engines for a client, shared with clients that would start them in the same way. See `leave`.

        `is_away`: the client is not connected, and these are neither its environment nor all of its settings.
        """
        holder, agents = self._engines.get(environment_fingerprint), self.agents.seen_from(settings.files)
        if holder is None:
            holder = self._engines[environment_fingerprint] = EngineHolder(
                agents, settings, env, self.tasks, is_away=is_away
            )
        elif not is_away:
            holder.bring(agents, settings, env)
        holder.users += 1
        return holder

    def leave(self, holder: EngineHolder) -> None:
        """Release the engines of a client that has left. Their turns are followed to the end; then the
        engines are closed.
        """
        holder.users -= 1

    def make_room(self) -> None:
        """Let waiting work begin, now that there may be room for it."""
        for tell in self.on_room:
            tell()

    def work(self) -> int:
        """Return the number of sessions with a running turn or a queued message that a connected client can send, plus the
        jobs.
        """
        return len(self.task_writer.jobs) + sum(
            session.state.is_running
            or any(not queued.is_early and not session.is_away(queued) for queued in session.queue)
            for session in self.session_registry.at_work.values()
        )

    def next_at(self) -> datetime | None:
        """Return the time at which the next queued message may start."""
        queued = (one for session in self.session_registry.at_work.values() for one in session.queue)
        return min((one.not_before for one in queued if one.not_before is not None), default=None)

    def run_later(self, session: Session, task_id: str, run: Callable[[], None]) -> None:
        """Call `run` at the earliest time of a queued message."""
        self.session_registry.at_work[session.id] = session
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
        """Tell the supervisors of the engines with work, and no others, that they need a hub.

        With `none`, no engine needs one: this hub ends, and the turns continue without it.
        """
        needed: dict[str, frozenset[str]] = {}
        for session in () if none else self.session_registry.at_work.values():
            if session.engine is not None and session.engine.id is not None:
                agent = session.options.agent
                needed[agent] = needed.get(agent, frozenset()) | {session.engine.id}
        before, self._needed = self._needed, needed
        for one in self.agents.of_all_clients():
            if before is None or needed.get(one.name) != before.get(one.name):
                one.need_engines(self.state_dir, needed.get(one.name, frozenset()))

    async def _refresh_elsewhere(self) -> None:
        """Poll the turns that other processes run, for clients that watch them here."""
        while True:
            if not self.session_registry.elsewhere:  # an idle hub need not wake up every second
                self.session_registry.has_elsewhere = anyio.Event()
                await self.session_registry.has_elsewhere.wait()
            await anyio.sleep(_ELSEWHERE_SECONDS)
            for session_id, look in list(self.session_registry.elsewhere.items()):
                try:
                    await look()
                except HelmsmanError as error:
                    log.info("session %s is no longer refreshed: %s", session_id, error)
                    self.session_registry.elsewhere.pop(session_id, None)

    async def _close_unused_engines(self) -> None:
        """Close engines that were unused at two checks in a row: at the first one a turn may just be ending in them."""
        unused: set[str] = set()
        while True:
            await anyio.sleep(self.linger)
            in_use = [session.engine for session in self.session_registry.at_work.values()]
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
                for session in self.session_registry.by_id.values():
                    if session.engine is not None and holder.holds(session.engine):
                        session.engine.detach(session.id)  # no event in it is of interest
                        session.detach()
                holder.close()


async def run_next(session_registry: SessionRegistry) -> None:
    """Send the messages that wait for the end of a turn, or for room."""
    for session in list(session_registry.at_work.values()):
        if session.id not in session_registry.sending:
            # Two ends of turns at the same moment must not send one message twice.
            session_registry.sending.add(session.id)
            try:
                while await _send_first(session):
                    pass
            finally:
                session_registry.sending.discard(session.id)


async def _send_first(session: Session) -> bool:
    """Send the first waiting message of an idle session. Return whether the next one may be sent."""
    if not session.queue or session.state.is_running or session.queue[0].is_early:
        return False
    task_id = session.queue[0].task_id
    queued = session.queued_turn(task_id)
    if queued is None:
        return False  # recovery, or another process, sends it
    try:
        await queued.run(session, task_id, queued)
    except (TooManySessions, ClientAway) as error:  # of the client that sent it; others may do better
        log.debug("a queued message of session %s waits: %s", session.id, error)
        return False
    except Exception as error:  # the session has the error; the other sessions continue
        is_known = isinstance(error, HelmsmanError)
        log.warning("a queued message of session %s was not sent: %s", session.id, error, exc_info=not is_known)
    if any(one.task_id == task_id for one in session.queue):
        session.apply(MessageUnqueued(session_id=session.id, task_id=task_id))
    return True


def fingerprint_of(settings: Settings, env: Mapping[str, str] | None) -> str:
    """Return a fingerprint of the environment in which an engine for a client would start. It reveals no values."""
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
    known = [digest_of(environment() if env is None else env), *map(str, parts)]
    return hashlib.sha256(json.dumps(known).encode("utf-8", "surrogateescape")).hexdigest()


_OF_HUB: Final = "hub:"


def hub_fingerprint(settings: Settings) -> str:
    """Return the fingerprint for work that the hub begins: its own environment, which may change from hub to hub."""
    return _OF_HUB + fingerprint_of(settings, {})


def is_of_hub(environment_fingerprint: str) -> bool:
    """Return whether the fingerprint is the hub's own, so that no client has to be connected."""
    return environment_fingerprint.startswith(_OF_HUB)
