"""Which engine a Helmsman gets: the one place above the engines that knows their names."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from helmsman.codex.binary import find_codex
from helmsman.codex.rollouts import RolloutIndex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from helmsman.codex.binary import CodexBinary
    from helmsman.engine import Engine
    from helmsman.settings import Settings


async def find_agent(settings: Settings, env: Mapping[str, str] | None) -> CodexBinary:
    """The Codex these settings mean.

    Raises:
        CodexNotFound: There is none.
    """
    return await find_codex(explicit=settings.codex_path, env=env, state_dir=settings.state_dir)


@asynccontextmanager
async def open_engine(settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[Engine]:
    """The engine these settings mean, for the length of the block. `auto` prefers the app-server."""
    binary = await find_agent(settings, env)
    if settings.engine == "exec" or (settings.engine == "auto" and not binary.has_app_server):
        from helmsman.codex.exec import open_exec_engine

        async with open_exec_engine(binary, codex_home=settings.codex_home, env=env) as exec_engine:
            yield exec_engine
    else:
        from helmsman.codex.app_server_engine import open_app_server

        async with open_app_server(binary, codex_home=settings.codex_home, env=env) as app_server:
            yield app_server


def session_index(settings: Settings) -> RolloutIndex:
    """The sessions on disk."""
    return RolloutIndex(settings.codex_home)
