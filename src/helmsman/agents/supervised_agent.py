"""An agent with one process per session. In a hub each has a supervisor, so that the next hub can attach to it again."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from abc import abstractmethod
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import anyio.to_thread

from helmsman.agents.protocol import Agent
from helmsman.agents.supervisor.records import clear_away, read_records
from helmsman.base.surroundings import UMASK
from helmsman.errors import ClientAway, EngineLost
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from helmsman.agents.protocol import Engine
    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.supervisor.records import ProcessRecord
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


class SupervisedAgent(Agent):
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
        if not self.detaches(settings):
            return None
        await anyio.to_thread.run_sync(ensure_state_dir, settings.state_dir)
        await anyio.to_thread.run_sync(clear_away, settings.state_dir)
        return f"{self.name}-{secrets.token_hex(4)}"

    @asynccontextmanager
    async def reopen_engine(self, settings: Settings, engine_id: str) -> AsyncIterator[Engine]:
        """Attach again to the processes of an engine. One that is open here is shared: a process has one owner."""
        if (engine := self.open_here(engine_id)) is not None:
            yield engine
            return
        left = await self.left(settings, engine_id)
        async with self.open_left(settings, engine_id, left) as engine:
            with self.listed(engine):
                yield engine

    @abstractmethod
    def open_left(
        self, settings: Settings, engine_id: str, left: list[ProcessRecord]
    ) -> AbstractAsyncContextManager[Engine]:
        """An engine for what others have left of one, for the length of the block."""

    async def left(self, settings: Settings, engine_id: str) -> list[ProcessRecord]:
        """What runs of an engine that we, or others, have left.

        Raises:
            EngineLost: Nothing does.
        """
        found = await anyio.to_thread.run_sync(self._left, settings.state_dir, engine_id)
        if not found:
            raise EngineLost(f"Engine {engine_id} has ended. Send the session a message to go on.")
        return found

    def _left(self, state_dir: Path, engine_id: str) -> list[ProcessRecord]:
        records = read_records(state_dir, self.name)
        return [record for record in records if record.engine_id == engine_id and record.is_supervised]

    def need_engines(self, state_dir: Path, engine_ids: Collection[str]) -> None:
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


# --- the environment -------------------------------------------------------------------------------------------------

_NAMES: Final = frozenset({UMASK, "HOME", "PATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV"})
_PREFIXES: Final = ("AWS_", "AZURE_", "GOOGLE_", "SSL_CERT_", "NODE_EXTRA_", "XDG_")
_NO_PREFIXES: Final = ("XDG_SESSION_", "XDG_RUNTIME_", "XDG_CURRENT_", "XDG_SEAT", "XDG_VTNR", "XDG_MENU_")
"""Different for every login."""
_SUFFIXES: Final = ("_API_KEY", "_BASE_URL", "_PROXY")


def digest_of(env: Mapping[str, str], prefixes: tuple[str, ...], *more: object) -> str:
    """Return a fingerprint of what an agent is started with. Work that needs something else gets another engine.

    It covers the variables that say where programs, files, accounts and the network are, and those that begin with
    `prefixes`. The rest differs from window to window.
    """
    chosen = {name: value for name, value in env.items() if _matters(name.upper(), prefixes)}
    content = json.dumps([chosen, *more], sort_keys=True, default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()


def _matters(name: str, prefixes: tuple[str, ...]) -> bool:
    if name.startswith(_NO_PREFIXES):
        return False
    return name in _NAMES or name.startswith((*_PREFIXES, *prefixes)) or name.endswith(_SUFFIXES)
