"""What all doors of a process share: the sessions, the engines, the ledger, and the tasks in the background.

A `Helmsman` by itself makes its own. A hub makes one, and each of its doors is a `Helmsman` on it, with the door's settings,
environment and directory.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from helmsman.agents.registry import Agents, EngineHolder, fingerprint
from helmsman.approvals.audit import AuditLog
from helmsman.base.concurrency import OnceEach, background_tasks
from helmsman.base.surroundings import environment
from helmsman.errors import HelmsmanError
from helmsman.sessions.session import Session
from helmsman.steering.known import Roster
from helmsman.tasks.ledger import Ledger
from helmsman.tasks.truth import TaskTruth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.protocol import Agent
    from helmsman.settings import Settings

_LINGER_SECONDS: Final = 60.0


class Shared:
    """One for each process and state directory. Use it as an async context manager."""

    def __init__(self, state_dir: Path, agents: Iterable[Agent] = ()) -> None:
        self.state_dir = state_dir
        self.agents = Agents(agents)
        self.truth = TaskTruth(self.agents)
        self.ledger = Ledger(state_dir, self.truth)
        self.audit = AuditLog(state_dir)
        self.roster = Roster()
        self.roster.listeners.append(self.ledger.on_event)
        self.roster.listeners.append(self.roster.on_event)
        self.keys = OnceEach[Session]()
        self._exit = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._engines: dict[tuple[Settings, str], EngineHolder] = {}
        self.linger = _LINGER_SECONDS

    async def __aenter__(self) -> Self:
        self._exit.push_async_callback(self.ledger.close)  # the last of all: ends are told while the rest closes
        self._tasks = await self._exit.enter_async_context(background_tasks())
        self._tasks.start_soon(self.ledger.run)
        self._tasks.start_soon(self._let_go)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._exit.aclose()
        for session in self.roster.by_id.values():
            session.feed.close()

    @property
    def is_open(self) -> bool:
        return self._tasks is not None

    @property
    def tasks(self) -> TaskGroup:
        """What runs for as long as this is open."""
        if self._tasks is None:
            raise NOT_OPEN.again()
        return self._tasks

    def engines(self, settings: Settings, env: Mapping[str, str] | None) -> EngineHolder:
        """The engines for a door: shared with those for which they would be started in the same way. See `leave`."""
        key = _for_engines(settings), fingerprint(environment() if env is None else env)
        holder = self._engines.get(key)
        if holder is None:
            holder = self._engines[key] = EngineHolder(self.agents, settings, env, self.tasks)
        holder.users += 1
        return holder

    def leave(self, holder: EngineHolder) -> None:
        """A door that had these engines has gone. What runs in them is followed to its end; then they are let go of."""
        holder.users -= 1

    async def _let_go(self) -> None:
        """Let go of engines that nobody has needed between two looks: something may just be ending in them at the first."""
        unused: set[tuple[Settings, str]] = set()
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
                        session.engine = None
                holder.close()


def _for_engines(settings: Settings) -> Settings:
    """The settings without what makes no difference to an engine."""
    return replace(
        settings,
        approval_timeout=0,
        max_sessions=0,
        event_buffer_size=0,
        log_level="info",
        tools=(),
        expose_primitives=False,
        first_event_timeout=0,
        hub_idle=0,
        inactivity_timeout=0,
        files=(),
        ignored=(),
    )


NOT_OPEN: Final = HelmsmanError("This Helmsman is not open. Use it as `async with Helmsman() as helm:`.")
