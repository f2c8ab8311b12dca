"""Claude Code as an agent: its engine, and what it keeps on disk."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.agents.claude.binary import (
    ABLE,
    CLAUDE,
    PROJECTS,
    TITLE,
    ClaudeBinary,
    capabilities,
    claude_is_here,
    find_claude,
)
from helmsman.agents.found_programs import Installed, login_in
from helmsman.agents.supervised_agent import SupervisedAgent
from helmsman.base.surroundings import environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from helmsman.agents.claude.spending import ClaudeSpending
    from helmsman.agents.claude.storage import ClaudeSessions
    from helmsman.agents.protocol import Capabilities, Engine
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.agents.transcripts import CarriedTranscripts
    from helmsman.settings import Settings

_PREFIXES: Final = ("ANTHROPIC_", "CLAUDE_CODE_USE_", "CLAUDE_CODE_OAUTH_")
"""Of the environment, what only Claude Code reads."""


class ClaudeAgent(SupervisedAgent):
    """See `helmsman.agents.protocol.Agent`."""

    able = ABLE

    @property
    def name(self) -> str:
        return CLAUDE

    @property
    def title(self) -> str:
        return TITLE

    async def installed(self, settings: Settings, env: Mapping[str, str] | None) -> Installed:
        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        variables = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
        login = login_in(environment() if env is None else env, variables, (binary.home / ".credentials.json",))
        return Installed(version=binary.version, path=str(binary.path), login=login)

    async def try_sandbox(self, settings: Settings, env: Mapping[str, str] | None) -> str:
        from helmsman.agents.sandbox import HELD, find_sandbox

        await find_sandbox(settings, env)
        return HELD

    def is_here(self, settings: Settings, env: Mapping[str, str] | None) -> bool:
        return claude_is_here(settings, env)

    async def capabilities(self, settings: Settings, env: Mapping[str, str] | None) -> Capabilities:
        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        return capabilities(binary)

    @asynccontextmanager
    async def open_engine(self, settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[Engine]:
        from helmsman.agents.claude.about import Means
        from helmsman.agents.claude.engine import open_claude

        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        engine_id = await self.new_engine_id(settings)
        opening = open_claude(
            _sessions_in(settings.claude_home),
            means=Means(settings=settings, binary=binary, env=env),
            can=capabilities(binary),
            roots=settings.session_roots,
            engine_id=engine_id,
            owner=None if engine_id is None else self._owner,
            about=_about(binary, env),
        )
        async with opening as engine:
            with self.listed(engine):
                yield engine

    def open_left(
        self, settings: Settings, engine_id: str, left: list[ProcessRecord]
    ) -> AbstractAsyncContextManager[Engine]:
        from helmsman.agents.claude.engine import open_claude

        about = {key: str(left[0].about[key]) for key in ("claude_home", "version", "digest")}
        home = Path(about["claude_home"])
        binary = ClaudeBinary(path=Path(CLAUDE), version=about["version"], home=home)
        return open_claude(
            _sessions_in(home),
            means=None,
            can=capabilities(binary),
            roots=settings.session_roots,
            engine_id=engine_id,
            owner=self._owner,
            about=about,
            left=left,
        )

    async def takes_work(self, settings: Settings, env: Mapping[str, str] | None, engine_id: str) -> bool:
        """An engine that was found again can start nothing by itself: whoever comes to use it brings what that takes."""
        from helmsman.agents.claude.about import Means
        from helmsman.agents.claude.engine import ClaudeEngine

        engine = self.open_here(engine_id)
        if not isinstance(engine, ClaudeEngine) or engine.roots != settings.session_roots:
            return False
        binary = await anyio.to_thread.run_sync(find_claude, settings, env)
        if engine.about != _about(binary, env):
            return False
        engine.means = engine.means or Means(settings=settings, binary=binary, env=env)
        return True

    def sessions(self, settings: Settings, env: Mapping[str, str] | None) -> ClaudeSessions:
        return _sessions_in(settings.claude_home)

    async def transcripts(self, settings: Settings, env: Mapping[str, str] | None) -> CarriedTranscripts:
        from helmsman.agents.claude.access import own_project
        from helmsman.agents.transcripts import OneFile

        projects = settings.claude_home / PROJECTS

        def directory_of(directory: Path) -> Path | None:
            own = own_project(settings.claude_home, directory)
            return None if own == projects else own

        return OneFile(lambda session_id: projects.glob(f"*/{session_id}.jsonl"), directory_of)

    def spending(self, settings: Settings, env: Mapping[str, str] | None) -> ClaudeSpending:
        from helmsman.agents.claude.spending import ClaudeSpending

        return ClaudeSpending(settings.claude_home)


def _about(binary: ClaudeBinary, env: Mapping[str, str] | None) -> dict[str, Any]:
    """What an engine is for: work with another Claude Code, or in another environment, is none for it."""
    from helmsman.agents.supervised_agent import digest_of

    digest = digest_of(environment() if env is None else env, _PREFIXES, binary.identity, str(binary.home))
    return {"claude_home": str(binary.home), "version": binary.version, "digest": digest}


def _sessions_in(home: Path) -> ClaudeSessions:
    from helmsman.agents.claude.storage import ClaudeSessions

    return ClaudeSessions(home)
