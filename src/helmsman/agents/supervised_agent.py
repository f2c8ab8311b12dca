"""Agent with one process per session. In a hub each has a supervisor, so that the next hub can attach to it."""

from __future__ import annotations

import os
import secrets
import sys
from abc import abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio.to_thread

from helmsman.agents.protocol import Agent
from helmsman.agents.supervisor.records import clear_away, read_records
from helmsman.base.json_values import mapping
from helmsman.errors import EngineLost
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.process_engine import AgentDialect, LaunchConfig
    from helmsman.agents.protocol import Engine
    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.settings import Settings


class Prepared(NamedTuple):
    """Inputs of opening an engine.

    `about` describes it: work with another program or environment needs another engine. One that was found again has no
    `config` until a client brings it.
    """

    dialect: AgentDialect
    config: LaunchConfig | None
    about: Mapping[str, Any]


ABOUT: Final = "engine"
"""Field of a process record that describes the engine of the process."""


class SupervisedAgent(Agent):
    """Agent (`helmsman.agents.protocol.Agent`).

    `owner` is the hub whose sessions outlive it; without one they end with this process.
    """

    def __init__(self, owner: Owner | None = None, engines: dict[str, Engine] | None = None) -> None:
        self._owner = owner
        self._engines = {} if engines is None else engines
        """Engines that are open here, by id."""

    async def _new_engine_id(self, settings: Settings) -> str | None:
        """Return the id for a new engine; None for one that ends with this process."""
        if self._owner is None or not settings.detach or os.name != "posix" or not sys.executable:
            return None
        await anyio.to_thread.run_sync(ensure_state_dir, settings.state_dir)
        # Left behind by supervisors that were killed.
        await anyio.to_thread.run_sync(clear_away, settings.state_dir)
        return f"{self.name}-{secrets.token_hex(4)}"

    @abstractmethod
    async def prepare(self, settings: Settings, env: Mapping[str, str] | None) -> Prepared:
        """Return what opens an engine.

        Raises:
            AgentNotFound: The agent's program is missing.
        """

    @abstractmethod
    def dialect_of(self, settings: Settings, about: Mapping[str, Any]) -> AgentDialect:
        """Return the dialect of an engine that an earlier hub has left, as the records of its processes describe it."""

    @asynccontextmanager
    async def open_engine(self, settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[Engine]:
        prepared = await self.prepare(settings, env)
        async with self._opened(settings, prepared, await self._new_engine_id(settings)) as engine:
            yield engine

    @asynccontextmanager
    async def reopen_engine(self, settings: Settings, engine_id: str) -> AsyncIterator[Engine]:
        """Attach again to the processes of an engine. One that is open here is shared: a process has one owner."""
        # Attaching again would fence the owner that is open here.
        if (engine := self.open_here(engine_id)) is not None:
            yield engine
            return
        left = await anyio.to_thread.run_sync(self._left, settings.state_dir, engine_id)
        if not left:
            raise EngineLost(f"Engine {engine_id} has ended. Send the session a message to continue.")
        # All processes of an engine describe it alike.
        about = mapping(left[0].about.get(ABOUT))
        found = Prepared(self.dialect_of(settings, about), None, about)
        async with self._opened(settings, found, engine_id, left) as engine:
            yield engine

    @asynccontextmanager
    async def _opened(
        self, settings: Settings, prepared: Prepared, engine_id: str | None, left: Sequence[ProcessRecord] = ()
    ) -> AsyncIterator[Engine]:
        from helmsman.agents.process_engine import Supervision, open_process_engine
        from helmsman.agents.supervisor.client import Owner

        dialect, config, about = prepared
        supervision = None
        if engine_id is not None:
            supervision = Supervision(engine_id=engine_id, owner=self._owner or Owner(), about=about)
        opening = open_process_engine(
            dialect,
            config,
            state_dir=settings.state_dir,
            idle=settings.engine_idle,
            supervision=supervision,
            left=left,
        )
        async with opening as engine:
            if engine_id is None:
                yield engine
                return
            self._engines[engine_id] = engine
            try:
                yield engine
            finally:
                if self._engines.get(engine_id) is engine:
                    del self._engines[engine_id]

    async def takes_work(self, settings: Settings, env: Mapping[str, str] | None, engine_id: str) -> bool:
        """Return whether an engine takes this work. One that was found again gets its launch configuration here."""
        from helmsman.agents.process_engine import ProcessEngine

        engine = self.open_here(engine_id)
        if not isinstance(engine, ProcessEngine):
            return False
        _, config, about = await self.prepare(settings, env)
        # Another program or environment is other work, even if the agent is the same.
        if engine.about != about:
            return False
        # A reopened engine has no environment until a client brings the same one.
        engine.config = engine.config or config
        return True

    def _left(self, state_dir: Path, engine_id: str) -> list[ProcessRecord]:
        """Return the running processes of an engine that an earlier owner has left."""
        records = read_records(state_dir, self.name)
        return [record for record in records if record.engine_id == engine_id and record.is_supervised]

    def need_engines(self, state_dir: Path, engine_ids: Collection[str]) -> None:
        for record in read_records(state_dir, self.name):
            # Each process has its own mark, as each has its own supervisor.
            record.need(needed=record.engine_id in engine_ids)

    def engine_is_alive(self, settings: Settings, engine_id: str) -> bool:
        return bool(self._left(settings.state_dir, engine_id))

    def open_here(self, engine_id: str) -> Engine | None:
        """Return an engine that is open here and usable."""
        engine = self._engines.get(engine_id)
        return None if engine is None or engine.lost is not None else engine
