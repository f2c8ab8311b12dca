"""Which engine a Helmsman gets: the one place above the engines that knows their names."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.detached.records import read_records
from helmsman.agents.codex.engine.left_running import commands_left, end_commands
from helmsman.agents.codex.storage.rollout_end import read_turn as past_turn
from helmsman.agents.codex.storage.rollout_end import turns_of as past_turns
from helmsman.agents.codex.storage.rollout_usage import SessionSpending
from helmsman.agents.codex.storage.rollouts import RolloutIndex
from helmsman.agents.codex.storage.spending_index import SpendingIndex
from helmsman.errors import EngineLost
from helmsman.settings import ensure_state_dir

__all__ = [
    "SessionIndex",
    "SessionSpending",
    "SpendingIndex",
    "commands_left",
    "end_commands",
    "engine_is_alive",
    "engine_overviews",
    "find_agent",
    "open_engine",
    "open_engine_again",
    "past_turn",
    "past_turns",
    "session_index",
    "spending_index",
]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.detached.records import EngineRecord
    from helmsman.agents.protocol import DetachedEngine, Engine
    from helmsman.settings import Settings


async def find_agent(settings: Settings, env: Mapping[str, str] | None) -> CodexBinary:
    """The Codex these settings mean.

    Raises:
        CodexNotFound: There is none.
    """
    return await find_codex(explicit=settings.codex_path, env=env, state_dir=settings.state_dir)


@asynccontextmanager
async def open_engine(settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[Engine]:
    """The engine these settings mean, for the length of the block. `auto` prefers the app-server.

    With `settings.detach`, where this Codex can, it goes on after the block; the next to open it finds it again.
    """
    binary = await find_agent(settings, env)
    if settings.engine == "exec" or (settings.engine == "auto" and not binary.has_app_server):
        from helmsman.agents.codex.exec.engine import open_exec_engine

        roots = settings.session_roots
        async with open_exec_engine(
            binary, codex_home=settings.codex_home, env=env, allowed_roots=roots
        ) as exec_engine:
            yield exec_engine
    else:
        async with _open_app_server(settings, binary, env) as app_server:
            yield app_server


@asynccontextmanager
async def _open_app_server(
    settings: Settings, binary: CodexBinary, env: Mapping[str, str] | None
) -> AsyncIterator[Engine]:
    from helmsman.agents.codex.access.shell_profile import snapshot_options
    from helmsman.agents.codex.detached.engines import can_detach, open_detached

    home = settings.codex_home
    options = partial(
        snapshot_options,
        settings.shell_snapshots,
        binary,
        codex_home=home,
        state_dir=settings.state_dir,
        env=os.environ if env is None else env,
    )
    roots = settings.session_roots
    if settings.detach and can_detach(binary):
        state_dir = await anyio.to_thread.run_sync(ensure_state_dir, settings.state_dir)
        engine = open_detached(
            binary,
            codex_home=home,
            state_dir=state_dir,
            env=env,
            idle=settings.engine_idle,
            options=options,
            allowed_roots=roots,
        )
    else:
        from helmsman.agents.codex.engine.app_server_engine import open_app_server

        engine = open_app_server(binary, codex_home=home, env=env, options=await options(), allowed_roots=roots)
    async with engine as app_server:
        yield app_server


def engine_is_alive(settings: Settings, engine_id: str) -> bool:
    """Whether a detached engine still runs."""
    return _record(settings, engine_id) is not None


@asynccontextmanager
async def open_engine_again(settings: Settings, engine_id: str) -> AsyncIterator[DetachedEngine]:
    """A detached engine that is known to run something, for the length of the block, also one that takes no new work.

    Raises:
        EngineLost: It has ended.
    """
    from helmsman.agents.codex.detached.engines import open_recorded

    record = await anyio.to_thread.run_sync(_record, settings, engine_id)
    if record is None:
        raise EngineLost(f"Engine {engine_id} has ended. Send the session a message to go on.")
    async with open_recorded(record, settings.session_roots) as engine:
        yield engine


def engine_overviews(settings: Settings) -> list[dict[str, Any]]:
    """The detached engines that run, oldest first. Blocks for a few seconds where one does not answer."""
    from helmsman.agents.codex.detached.overview import engine_overviews

    return engine_overviews(settings.state_dir)


def _record(settings: Settings, engine_id: str) -> EngineRecord | None:
    return next((record for record in read_records(settings.state_dir) if record.id == engine_id), None)


SessionIndex = RolloutIndex
"""The sessions on disk, as they can be listed and found."""


def session_index(settings: Settings) -> SessionIndex:
    """The sessions on disk."""
    return RolloutIndex(settings.codex_home)


def spending_index(settings: Settings) -> SpendingIndex:
    """What the sessions on disk have spent."""
    return SpendingIndex(settings.codex_home, settings.state_dir)
