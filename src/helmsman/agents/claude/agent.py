"""Claude Code as an agent: its engine, and what it keeps on disk."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.agents.claude.binary import CLAUDE, TITLE, ClaudeBinary, capabilities, find_claude
from helmsman.agents.protocol import Agent, Capabilities, Installed
from helmsman.base.surroundings import environment
from helmsman.errors import EngineLost
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping

    from helmsman.agents.claude.engine import ClaudeEngine
    from helmsman.agents.claude.records import KeptRecord
    from helmsman.agents.claude.storage import ClaudeSessions
    from helmsman.agents.keeper.owner import Owner
    from helmsman.agents.protocol import Engine
    from helmsman.settings import Settings

_NAMES: Final = frozenset({"HOME", "PATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV"})
_PREFIXES: Final = (
    "ANTHROPIC_",
    "AWS_",
    "CLAUDE_CODE_USE_",
    "CLAUDE_CODE_OAUTH_",
    "GOOGLE_",
    "SSL_CERT_",
    "NODE_EXTRA_",
)
_SUFFIXES: Final = ("_API_KEY", "_BASE_URL", "_PROXY")


class ClaudeAgent(Agent):
    """See `helmsman.agents.protocol.Agent`. `owner` is the hub whose sessions outlive it; without one they end with us."""

    def __init__(self, owner: Owner | None = None) -> None:
        self._owner = owner
        self._engines: dict[str, ClaudeEngine] = {}
        """Those that are open here, by their ids."""

    @property
    def name(self) -> str:
        return CLAUDE

    @property
    def title(self) -> str:
        return TITLE

    async def installed(self, settings: Settings, env: Mapping[str, str] | None) -> Installed:
        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        return Installed(version=binary.version, path=str(binary.path))

    async def try_sandbox(self, settings: Settings, env: Mapping[str, str] | None) -> str:
        from helmsman.agents.sandbox import HELD, find_sandbox

        await find_sandbox(settings, env)
        return HELD

    async def capabilities(self, settings: Settings, env: Mapping[str, str] | None) -> Capabilities:
        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        return capabilities(binary, detached=self._detaches(settings))

    def _detaches(self, settings: Settings) -> bool:
        return self._owner is not None and settings.detach and os.name == "posix" and bool(sys.executable)

    @asynccontextmanager
    async def open_engine(self, settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[Engine]:
        from helmsman.agents.claude.engine import Means, open_claude
        from helmsman.agents.claude.records import clear_away

        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        is_detached = self._detaches(settings)
        engine_id = f"claude-{secrets.token_hex(4)}" if is_detached else None
        if is_detached:
            await anyio.to_thread.run_sync(ensure_state_dir, settings.state_dir)
            await anyio.to_thread.run_sync(clear_away, settings.state_dir)
        opening = open_claude(
            self.sessions(settings),
            means=Means(settings=settings, binary=binary, env=env),
            can=capabilities(binary, detached=is_detached),
            roots=settings.session_roots,
            engine_id=engine_id,
            owner=self._owner if is_detached else None,
            about=_about(binary, env),
        )
        async with opening as engine:
            with self._listed(engine):
                yield engine

    @asynccontextmanager
    async def reopen_engine(self, settings: Settings, engine_id: str) -> AsyncIterator[Engine]:
        from helmsman.agents.claude.engine import open_claude

        left = await anyio.to_thread.run_sync(_left, settings.state_dir, engine_id)
        if not left:
            raise EngineLost(f"Engine {engine_id} has ended. Send the session a message to go on.")
        about = {key: str(left[0].about[key]) for key in ("claude_home", "claude_version", "digest")}
        home = Path(about["claude_home"])
        binary = ClaudeBinary(path=Path(CLAUDE), version=about["claude_version"], home=home)
        opening = open_claude(
            _sessions_in(home),
            means=None,
            can=capabilities(binary, detached=True),
            roots=settings.session_roots,
            engine_id=engine_id,
            owner=self._owner,
            about=about,
            left=left,
        )
        async with opening as engine:
            with self._listed(engine):
                yield engine

    async def takes_work(self, settings: Settings, env: Mapping[str, str] | None, engine_id: str) -> bool:
        """An engine that was found again can start nothing by itself: whoever comes to use it brings what that takes."""
        from helmsman.agents.claude.engine import Means

        engine = self._engines.get(engine_id)
        if engine is None or engine.lost is not None:
            return False
        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        if engine.about != _about(binary, env):
            return False
        engine.means = engine.means or Means(settings=settings, binary=binary, env=env)
        return True

    def need_engines(self, state_dir: Path, engine_ids: Collection[str]) -> None:
        from helmsman.agents.claude.records import read_records

        for record in read_records(state_dir):
            record.need(needed=record.engine_id in engine_ids)

    def engine_is_alive(self, settings: Settings, engine_id: str) -> bool:
        return bool(_left(settings.state_dir, engine_id))

    def sessions(self, settings: Settings) -> ClaudeSessions:
        return _sessions_in(settings.claude_home)

    @contextmanager
    def _listed(self, engine: ClaudeEngine) -> Iterator[None]:
        if engine.id is None:
            yield
            return
        self._engines[engine.id] = engine
        try:
            yield
        finally:
            if self._engines.get(engine.id) is engine:
                del self._engines[engine.id]


def _left(state_dir: Path, engine_id: str) -> list[KeptRecord]:
    from helmsman.agents.claude.records import read_records

    return [record for record in read_records(state_dir) if record.engine_id == engine_id and record.is_kept]


def _about(binary: ClaudeBinary, env: Mapping[str, str] | None) -> dict[str, Any]:
    """What an engine is for: work with another Claude Code, or in another environment, is none for it."""
    given = environment() if env is None else env
    chosen = {name: value for name, value in given.items() if _matters(name)}
    told = json.dumps([binary.identity, str(binary.home), chosen], sort_keys=True)
    digest = hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()
    return {"claude_home": str(binary.home), "claude_version": binary.version, "digest": digest}


def _matters(name: str) -> bool:
    name = name.upper()
    return name in _NAMES or name.startswith(_PREFIXES) or name.endswith(_SUFFIXES)


def _sessions_in(home: Path) -> ClaudeSessions:
    from helmsman.agents.claude.storage import ClaudeSessions

    return ClaudeSessions(home)
