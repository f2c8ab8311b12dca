"""Claude Code as an agent: its engine and its files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from helmsman.agents.environment import digest_of, launch_environment
from helmsman.agents.found_programs import Installed, login_in
from helmsman.agents.supervised_agent import Prepared, SupervisedAgent
from helmsman.base.caller_context import environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.claude.storage import ClaudeSessions
    from helmsman.agents.process_engine import AgentDialect
    from helmsman.agents.protocol import Capabilities
    from helmsman.agents.transcripts import CarriedTranscripts
    from helmsman.settings import Settings


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

    async def prepare(self, settings: Settings, env: Mapping[str, str] | None) -> Prepared:
        from helmsman.agents.claude.dialect import ClaudeDialect
        from helmsman.agents.process_engine import LaunchConfig
        from helmsman.agents.sandbox import find_sandbox

        binary, given = await anyio.to_thread.run_sync(find_claude, settings, env), launch_environment(env)
        digest, roots = digest_of(given, binary.identity, str(binary.home)), [*map(str, settings.session_roots)]
        return Prepared(
            ClaudeDialect(_sessions_in(binary.home), binary, settings.session_roots),
            LaunchConfig(
                argv=(str(binary.path),),
                env=given,
                state_dir=settings.state_dir,
                sandbox=partial(find_sandbox, settings, env),
            ),
            {"claude_home": str(binary.home), "version": binary.version, "roots": roots, "digest": digest},
        )

    def dialect_of(self, settings: Settings, about: Mapping[str, Any]) -> AgentDialect:
        from helmsman.agents.claude.dialect import ClaudeDialect

        home = Path(str(about["claude_home"]))
        binary = ClaudeBinary(path=Path(CLAUDE), version=str(about["version"]), home=home)
        return ClaudeDialect(_sessions_in(home), binary, tuple(map(Path, about["roots"])))

    def sessions(self, settings: Settings, env: Mapping[str, str] | None) -> ClaudeSessions:
        return _sessions_in(settings.claude_home)

    async def transcripts(self, settings: Settings, env: Mapping[str, str] | None) -> CarriedTranscripts:
        from helmsman.agents.claude.access import own_project
        from helmsman.agents.transcripts import OneFile

        projects = settings.claude_home / PROJECTS

        def directory_of(directory: Path) -> Path | None:
            own = own_project(settings.claude_home, directory)
            # All sessions in one directory cannot be told apart by project.
            return None if own == projects else own

        return OneFile(lambda session_id: projects.glob(f"*/{session_id}.jsonl"), directory_of)

    spending = sessions


def _sessions_in(home: Path) -> ClaudeSessions:
    from helmsman.agents.claude.storage import ClaudeSessions

    return ClaudeSessions(home)
