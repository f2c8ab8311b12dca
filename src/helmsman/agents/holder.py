"""The engine of a service: opened at the first need, opened again when it was lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import anyio

from helmsman.agents.registry import open_engine, open_engine_again
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.agents.protocol import DetachedEngine, Engine
    from helmsman.settings import Settings

log = logging.getLogger(__name__)


class EngineHolder:
    """Holds at most one engine for new work. It ends with the task group it lives in."""

    def __init__(self, settings: Settings, env: Mapping[str, str] | None, tasks: TaskGroup) -> None:
        self._settings = settings
        self._env = env
        self._tasks = tasks
        self._engine: Engine | None = None
        self._opening: anyio.Event | None = None
        self._others: dict[str, DetachedEngine] = {}

    async def get(self) -> Engine:
        """The engine, opened if need be."""
        while not usable(self._engine):
            if self._opening is not None:
                await self._opening.wait()  # another caller is opening it; if that fails, it is our turn to try
                continue
            self._opening = anyio.Event()
            try:
                self._engine = await self._tasks.start(self._keep, open_engine(self._settings, self._env))
            finally:
                self._opening.set()
                self._opening = None
        assert self._engine is not None
        return self._engine

    async def reach(self, engine_id: str) -> DetachedEngine | None:
        """A detached engine in which something runs; None if it has ended."""
        for known in (self._engine, self._others.get(engine_id)):
            if known is not None and known.id == engine_id and usable(known):
                return cast("DetachedEngine", known)  # those that have an id are
        try:
            self._others[engine_id] = await self._tasks.start(self._keep, open_engine_again(self._settings, engine_id))
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
