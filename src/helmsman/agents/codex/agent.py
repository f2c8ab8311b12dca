"""Codex as an agent: the engine that its settings select, and its files on disk."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from helmsman.agents.codex.binary import (
    CODEX,
    CodexBinary,
    app_server_capabilities,
    codex_is_here,
    exec_capabilities,
    find_codex,
)
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.processes import commands_left, end_commands
from helmsman.agents.codex.storage import CodexSessions
from helmsman.agents.found_programs import Installed, login_in
from helmsman.agents.protocol import (
    Agent,
    Capabilities,
    Capability,
    Engine,
)
from helmsman.agents.supervisor.records import read_records
from helmsman.base.caller_context import environment
from helmsman.base.structs import replace
from helmsman.errors import EngineLost
from helmsman.settings import Settings, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from helmsman.agents.codex.app_servers import EngineRequest
    from helmsman.agents.codex.engine import AppServerEngine
    from helmsman.agents.codex.storage import CodexTranscripts
    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.model.events import Failure
    from helmsman.model.options import SessionOptions


class _OpenEngine:
    """A detached engine, and how many other clients of this process use it."""

    def __init__(self, engine: AppServerEngine) -> None:
        assert engine.id is not None
        self.id = engine.id
        self.engine = engine
        self._users = 0
        self._unused = anyio.Event()
        self._unused.set()

    @contextmanager
    def used(self, roots: Sequence[Path]) -> Iterator[AppServerEngine]:
        """Use the engine for the length of the block, confined to other roots."""
        if self._users == 0:
            self._unused = anyio.Event()
        self._users += 1
        try:
            yield self.engine.confined_to(roots)
        finally:
            # A supervised engine can only be left when its other users in this process are done.
            self._users -= 1
            if self._users == 0:
                self._unused.set()

    async def until_unused(self) -> None:
        while self._users:
            await self._unused.wait()


class CodexAgent(Agent):
    """See `helmsman.agents.protocol.Agent`. `owner` is the hub, which engines may outlive; without one they end with us."""

    able = frozenset(Capability)

    def __init__(self, owner: Owner | None = None) -> None:
        self._owner = owner
        self._open: dict[str, _OpenEngine] = {}
        """The detached engines that this process owns, by id."""
        self._needed: frozenset[str] | None = None
        """The engines that were last reported to need an owner."""

    @property
    def name(self) -> str:
        return CODEX

    async def installed(self, settings: Settings, env: Mapping[str, str] | None) -> Installed:
        binary = await agent_in_use(settings, env)
        if binary.remote is not None:
            return Installed(version=str(binary.version), path=settings.codex_remote or binary.remote)
        variables = ("CODEX_API_KEY", "OPENAI_API_KEY")
        login = login_in(environment() if env is None else env, variables, (settings.codex_home / "auth.json",))
        # Either variable, or the file of `codex login`, is a login.
        return Installed(version=str(binary.version), path=str(binary.path), login=login)

    def is_here(self, settings: Settings, env: Mapping[str, str] | None) -> bool:
        return settings.codex_remote is not None or codex_is_here(settings.codex_path, env)

    def reaches_network(self, options: SessionOptions) -> bool:
        """Its own sandbox keeps commands off the network where the session's configuration does not say otherwise."""
        table = options.config.get("sandbox_workspace_write")
        nested = table.get("network_access") if isinstance(table, dict) else None
        return options.config.get("sandbox_workspace_write.network_access", nested) is True

    async def capabilities(self, settings: Settings, env: Mapping[str, str] | None) -> Capabilities:
        binary = await agent_in_use(settings, env)
        if binary.remote is not None:
            return app_server_capabilities(binary, detached=True)
        if _uses_exec(settings, binary):
            return exec_capabilities()
        return app_server_capabilities(binary, detached=self._owner is not None and _detaches(settings, binary))

    @asynccontextmanager
    async def open_engine(self, settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[Engine]:
        """`auto` prefers the app-server. An engine of a hub outlives the block, where this Codex supports it."""
        # The remote engine comes first: no Codex needs to be installed here.
        if settings.codex_remote is not None:
            from helmsman.agents.codex.app_servers import open_remote_engine

            async with open_remote_engine(settings) as remote:
                yield remote
            return
        binary = await find_agent(settings, env)
        if _uses_exec(settings, binary):
            from helmsman.agents.codex.exec import open_exec_engine

            roots = settings.session_roots
            async with open_exec_engine(
                binary, codex_home=settings.codex_home, env=env, allowed_roots=roots
            ) as exec_engine:
                yield exec_engine
        else:
            # A second engine would be a second supervised process, while this one is idle.
            for opened in list(self._open.values()):
                if await self.takes_work(settings, env, opened.id):
                    with opened.used(settings.session_roots) as view:
                        yield view
                    return
            async with self._shared(self._open_app_server(settings, binary, env)) as app_server:
                yield app_server

    @asynccontextmanager
    async def _open_app_server(
        self, settings: Settings, binary: CodexBinary, env: Mapping[str, str] | None
    ) -> AsyncIterator[AppServerEngine]:
        from helmsman.agents.codex.app_servers import open_detached
        from helmsman.agents.codex.engine import open_app_server
        from helmsman.agents.codex.processes import command_path_options, snapshot_options

        home = settings.codex_home

        async def options() -> tuple[str, ...]:
            paths = await anyio.to_thread.run_sync(command_path_options, binary, home, env)
            return (*await snapshot_options(settings.shell_snapshots, binary, codex_home=home), *paths)

        roots = settings.session_roots
        if self._owner is not None and _detaches(settings, binary):
            await anyio.to_thread.run_sync(ensure_state_dir, settings.state_dir)
            engine = open_detached(await self._request(settings, binary, env), options=options, allowed_roots=roots)
        else:
            engine = open_app_server(binary, codex_home=home, env=env, options=await options(), allowed_roots=roots)
        async with engine as app_server:
            yield app_server

    async def _request(self, settings: Settings, binary: CodexBinary, env: Mapping[str, str] | None) -> EngineRequest:
        from helmsman.agents.codex.app_servers import NO_OWNER, EngineRequest

        # `NO_OWNER` compares as a client without a lease.
        owner, home = self._owner or NO_OWNER, settings.codex_home
        return await EngineRequest.of(binary, home, settings.state_dir, env, idle=settings.engine_idle, owner=owner)

    @asynccontextmanager
    async def _shared(self, opening: AbstractAsyncContextManager[AppServerEngine]) -> AsyncIterator[AppServerEngine]:
        """Open an engine that other clients of this process use too: a supervised process has one owner."""
        async with opening as engine:
            if engine.id is None:
                # An engine without an id is a child of this block and cannot be shared.
                yield engine
                return
            opened = self._open[engine.id] = _OpenEngine(engine)
            try:
                yield engine
            finally:
                # Leaving the block detaches, so wait for other users, also when cancelled.
                with anyio.CancelScope(shield=True):
                    await opened.until_unused()
                if self._open.get(engine.id) is opened:
                    del self._open[engine.id]

    @asynccontextmanager
    async def reopen_engine(self, settings: Settings, engine_id: str) -> AsyncIterator[Engine]:
        from helmsman.agents.codex.app_servers import open_daemon, open_recorded, open_remote_engine, remote_id

        if engine_id == remote_id(settings):
            async with open_remote_engine(settings) as remote:
                yield remote
            return
        if engine_id == self.persons_engine(settings):
            async with open_daemon(settings) as daemon:
                yield daemon
            return
        # This process owns it already: attaching a second time would fence the first.
        if (opened := self._open.get(engine_id)) is not None and opened.engine.lost is None:
            with opened.used(settings.session_roots) as view:
                yield view
            return
        record = await anyio.to_thread.run_sync(_record, settings, engine_id)
        if record is None:
            raise EngineLost(f"Engine {engine_id} has ended. Send the session a message to continue.")
        epoch = 0 if self._owner is None else self._owner.epoch
        async with self._shared(open_recorded(record, settings.session_roots, epoch=epoch)) as engine:
            yield engine

    async def takes_work(self, settings: Settings, env: Mapping[str, str] | None, engine_id: str) -> bool:
        record = await anyio.to_thread.run_sync(_record, settings, engine_id)
        if record is None or ((opened := self._open.get(engine_id)) is not None and opened.engine.lost is not None):
            return False
        return (await self._request(settings, await find_agent(settings, env), env)).fits(record)

    def need_engines(self, state_dir: Path, engine_ids: Collection[str]) -> None:
        before, self._needed = self._needed, frozenset(engine_ids)
        if before == self._needed:
            return
        for record in read_records(state_dir, CODEX):
            if before is None or record.id in self._needed ^ before:  # an earlier hub may have needed any
                record.need(needed=record.id in self._needed)

    def engine_is_alive(self, settings: Settings, engine_id: str) -> bool:
        from helmsman.agents.codex.app_servers import remote_answers, remote_id

        if engine_id == remote_id(settings):
            return remote_answers(settings)
        return engine_id == self.persons_engine(settings) or _record(settings, engine_id) is not None

    def persons_engine(self, settings: Settings) -> str | None:
        if settings.codex_remote is not None or os.name != "posix":
            return None
        from helmsman.agents.codex.app_servers import daemon_id, daemon_socket

        return None if daemon_socket(settings.codex_home) is None else daemon_id(settings.codex_home)

    def resets_at(self, failure: Failure) -> datetime | None:
        from helmsman.agents.codex.normalise import resets_at

        said_at = (failure.at or datetime.now(UTC)).astimezone()
        return resets_at(failure.message, said_at.replace(tzinfo=None))  # Codex names the clock on the wall

    def sessions(self, settings: Settings, env: Mapping[str, str] | None) -> CodexSessions:
        return CodexSessions(settings.codex_home)

    async def transcripts(self, settings: Settings, env: Mapping[str, str] | None) -> CodexTranscripts | None:
        from helmsman.agents.codex.storage import CodexTranscripts

        if settings.codex_remote is not None:
            return None
        return CodexTranscripts(settings.codex_home, (await find_agent(settings, env)).version)

    def spending(self, settings: Settings, env: Mapping[str, str] | None) -> CodexSessions:
        return self.sessions(settings, env)

    def commands_left(self, session_ids: Collection[str], directory: Path) -> tuple[str, ...]:
        return commands_left(session_ids, directory)

    def end_commands(self, session_ids: Collection[str], directory: Path) -> None:
        end_commands(session_ids, directory)


async def agent_in_use(settings: Settings, env: Mapping[str, str] | None) -> CodexBinary:
    """The Codex that runs turns: the remote one, where one is set.

    Raises:
        CodexNotFound: It does not exist.
        EngineLost: The remote one does not answer.
    """
    from helmsman.agents.codex.app_servers import find_remote

    return await (find_agent(settings, env) if settings.codex_remote is None else find_remote(settings))


async def find_agent(settings: Settings, env: Mapping[str, str] | None) -> CodexBinary:
    """Return the Codex that these settings mean here.

    Raises:
        CodexNotFound: It does not exist.
        InvalidSetting: The state directory cannot be used.
    """
    binary = await find_codex(explicit=settings.codex_path, env=env, state_dir=settings.state_dir)
    return await anyio.to_thread.run_sync(_with_bubblewrap, binary, settings, environment() if env is None else env)


def _with_bubblewrap(binary: CodexBinary, settings: Settings, env: Mapping[str, str]) -> CodexBinary:
    from helmsman.agents.codex.sandbox import bubblewrap_directory, hiding_directories
    from helmsman.agents.sandbox_view import hidden_from_commands

    directory = bubblewrap_directory(binary.path, settings.state_dir)
    if directory is None or not binary.can(Feature.PATH_BUBBLEWRAP):
        # Older versions do not search PATH for bubblewrap.
        return replace(binary, bubblewrap=directory)
    places = hidden_from_commands(settings, env, binary.path)
    hiding = hiding_directories(directory, settings.state_dir, places)
    return replace(binary, bubblewrap=directory, hiding_bubblewraps=hiding)


def _uses_exec(settings: Settings, binary: CodexBinary) -> bool:
    # `auto` falls back to exec only where there is no app-server.
    return settings.engine == "exec" or (settings.engine == "auto" and not binary.can(Feature.APP_SERVER))


def _detaches(settings: Settings, binary: CodexBinary) -> bool:
    from helmsman.agents.codex.app_servers import can_detach

    return settings.detach and can_detach(binary)


def _record(settings: Settings, engine_id: str) -> ProcessRecord | None:
    return next((record for record in read_records(settings.state_dir, CODEX) if record.id == engine_id), None)
