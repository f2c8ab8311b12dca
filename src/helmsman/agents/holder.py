"""The engines of a service: opened at the first need, opened again when they were lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.agents.protocol import Engine
    from helmsman.agents.registry import Agents
    from helmsman.settings import Settings

log = logging.getLogger(__name__)


class EngineHolder:
    """Holds at most one engine of each agent for new work. They end with the task group it lives in."""

    def __init__(self, agents: Agents, settings: Settings, env: Mapping[str, str] | None, tasks: TaskGroup) -> None:
        self._agents = agents
        self._settings = settings
        self._env = env
        self._tasks = tasks
        self._engines: dict[str, Engine] = {}
        self._opening: dict[str, anyio.Event] = {}
        self._others: dict[str, Engine] = {}

    async def get(self, name: str) -> Engine:
        """The engine of an agent, opened if need be."""
        agent = self._agents[name]
        while not usable(engine := self._engines.get(name)):
            if name in self._opening:
                await self._opening[name].wait()  # another caller is opening it; if that fails, it is our turn to try
                continue
            opening = self._opening[name] = anyio.Event()
            try:
                self._engines[name] = await self._tasks.start(self._keep, agent.open_engine(self._settings, self._env))
            finally:
                opening.set()
                del self._opening[name]
        assert engine is not None
        return engine

    async def reach(self, name: str, engine_id: str) -> Engine | None:
        """A detached engine of an agent in which something runs; None if it has ended."""
        for known in (self._engines.get(name), self._others.get(engine_id)):
            if known is not None and known.id == engine_id and usable(known):
                return known
        try:
            opening = self._agents[name].reopen_engine(self._settings, engine_id)
            self._others[engine_id] = await self._tasks.start(self._keep, opening)
        except HelmsmanError as error:
            log.debug("engine %s is not reached: %s", engine_id, error)
            return None
        return self._others[engine_id]

    async def _keep(self, opening: AbstractAsyncContextManager[Engine], *, task_status: TaskStatus[Engine]) -> None:
        opened = False
        try:
            async with opening as engine:
                task_status.started(engine)
                opened = True
                await engine.until_lost()
        except Exception:
            if not opened:
                raise
            log.exception("the engine failed")  # its sessions are told when its block ends; the service goes on


def usable(engine: Engine | None) -> bool:
    return engine is not None and engine.lost is None
