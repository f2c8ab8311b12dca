"""Engines that tests open themselves, with the sandbox that is put around agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from helmsman import load_settings
from helmsman.agents.acp.dialect import AcpDialect
from helmsman.agents.acp.profile import Profile
from helmsman.agents.process_engine import LaunchConfig, ProcessEngine, open_process_engine
from helmsman.agents.sandbox import Sandbox, find_sandbox


def launch_config(argv: Sequence[str], env: Mapping[str, str], state_dir: Path) -> LaunchConfig:
    """Return what the processes of an engine with this state directory are started with."""
    state_dir.mkdir(parents=True, exist_ok=True)
    return LaunchConfig(argv=argv, env=env, state_dir=state_dir, sandbox=sandbox_for(state_dir))


@asynccontextmanager
async def acp_engine(
    profile: Profile, argv: Sequence[str], env: Mapping[str, str], state_dir: Path
) -> AsyncIterator[ProcessEngine]:
    """Open an engine whose processes are children of this one."""
    config = launch_config(argv, env, state_dir)
    async with open_process_engine(AcpDialect(profile, env), config, state_dir=state_dir, idle=900) as engine:
        yield engine


def sandbox_for(state_dir: Path) -> Callable[[], Awaitable[Sandbox]]:
    """Return what finds the sandbox of this machine, for an engine with this state directory."""
    return partial(find_sandbox, load_settings({"state_dir": str(state_dir)}), None)
