"""An agent with a process for each session, which is in a keeper where a hub owns it: what outlives us is found again."""

from __future__ import annotations

import os
import secrets
import sys
from abc import abstractmethod
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio.to_thread

from helmsman.agents.protocol import Agent
from helmsman.errors import ClientAway, EngineLost
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from helmsman.agents.keeper.owner import Owner
    from helmsman.agents.kept_records import KeptRecord
    from helmsman.agents.protocol import Engine
    from helmsman.settings import Settings

MeansT = TypeVar("MeansT")


def brought(means: MeansT | None) -> MeansT:
    """What the processes of an engine are started with, which an engine that was found has only of a client.

    Raises:
        ClientAway: None has come.
    """
    if means is None:
        raise ClientAway(
            "Nobody is connected who has the environment this session was begun in. It goes on when such a client comes."
        )
    return means


class KeptAgent(Agent):
    """See `helmsman.agents.protocol.Agent`. `owner` is the hub whose sessions outlive it; without one they end with us."""

    def __init__(self, owner: Owner | None = None, engines: dict[str, Engine] | None = None) -> None:
        self._owner = owner
        self._engines = {} if engines is None else engines
        """Those that are open here, by their ids."""

    def detaches(self, settings: Settings) -> bool:
        """Whether what is begun goes on without us."""
        return self._owner is not None and settings.detach and os.name == "posix" and bool(sys.executable)

    async def new_engine_id(self, settings: Settings) -> str | None:
        """The id of an engine that is about to be opened; None of one that ends with us."""
        from helmsman.agents.kept_records import clear_away

        if not self.detaches(settings):
            return None
        await anyio.to_thread.run_sync(ensure_state_dir, settings.state_dir)
        await anyio.to_thread.run_sync(clear_away, settings.state_dir)
        return f"{self.name}-{secrets.token_hex(4)}"

    @asynccontextmanager
    async def reopen_engine(self, settings: Settings, engine_id: str) -> AsyncIterator[Engine]:
        """One that is open here already is handed out again: its keepers have one owner, and another would find nothing."""
        if (engine := self.open_here(engine_id)) is not None:
            yield engine
            return
        left = await self.left(settings, engine_id)
        async with self.open_left(settings, engine_id, left) as engine:
            with self.listed(engine):
                yield engine

    @abstractmethod
    def open_left(
        self, settings: Settings, engine_id: str, left: list[KeptRecord]
    ) -> AbstractAsyncContextManager[Engine]:
        """An engine for what others have left of one, for the length of the block."""

    async def left(self, settings: Settings, engine_id: str) -> list[KeptRecord]:
        """What runs of an engine that we, or others, have left.

        Raises:
            EngineLost: Nothing does.
        """
        found = await anyio.to_thread.run_sync(self._left, settings.state_dir, engine_id)
        if not found:
            raise EngineLost(f"Engine {engine_id} has ended. Send the session a message to go on.")
        return found

    def _left(self, state_dir: Path, engine_id: str) -> list[KeptRecord]:
        from helmsman.agents.kept_records import read_records

        records = read_records(state_dir, self.name)
        return [record for record in records if record.engine_id == engine_id and record.is_kept]

    def need_engines(self, state_dir: Path, engine_ids: Collection[str]) -> None:
        from helmsman.agents.kept_records import read_records

        for record in read_records(state_dir, self.name):
            record.need(needed=record.engine_id in engine_ids)

    def engine_is_alive(self, settings: Settings, engine_id: str) -> bool:
        return bool(self._left(settings.state_dir, engine_id))

    def open_here(self, engine_id: str) -> Engine | None:
        """An engine that is open here, and can be used."""
        engine = self._engines.get(engine_id)
        return None if engine is None or engine.lost is not None else engine

    @contextmanager
    def listed(self, engine: Engine) -> Iterator[None]:
        """For the length of the block it can be found by its id."""
        if engine.id is None:
            yield
            return
        self._engines[engine.id] = engine
        try:
            yield
        finally:
            if self._engines.get(engine.id) is engine:
                del self._engines[engine.id]
