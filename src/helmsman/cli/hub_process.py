"""Hub's program, started by the first client: `python -I -m helmsman.cli.hub_process STATE_DIR`.

It closes inherited resources before importing anything, then registers the front ends with the hub.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection
    from pathlib import Path

    from helmsman.base.processes import Process
    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub, Serve, ServeHttp
    from helmsman.sessions.session import Verbs
    from helmsman.settings import ConfigFile
    from helmsman.steering.shared import OpenFleet, Shared
    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database, Fence
    from helmsman.tasks.calls import CallLog

    MakeServe = Callable[[Shared, CallLog], Serve]  # makes the server of a front end from shared resources

log = logging.getLogger(__name__)

T = TypeVar("T")

_loading_sdk = threading.Lock()
"""Lock for importing the SDK: its packages import each other, so two threads could deadlock."""


def main() -> None:
    from helmsman.hub.daemon import become_daemon
    from helmsman.hub.launch import LISTENER_FD, LOCK_FD

    # First of all: whatever was inherited must not stay open in a process that lives for days.
    become_daemon(LOCK_FD, LISTENER_FD)
    import gc

    gc.disable()  # faster imports, for which a client is waiting
    import anyio

    anyio.run(_run, os.path.abspath(sys.argv[1]))  # noqa: PTH100


async def _run(state: str) -> None:
    import gc
    from pathlib import Path

    from helmsman.agents.registry import Owner
    from helmsman.cli.consoles import PROCESS_LOG, log_to_stderr
    from helmsman.hub.control import replace_older
    from helmsman.hub.launch import NEXT, PIPES, REPLACE, start_command
    from helmsman.hub.notifier import Notifier, death_of
    from helmsman.hub.process import Hub
    from helmsman.hub.scheduler import Scheduler
    from helmsman.mcp.pipe import PROTOCOL as PIPE
    from helmsman.service import HelmsmanService
    from helmsman.steering.recovery import Recovery, WaitingTasks
    from helmsman.steering.shared import Shared
    from helmsman.store import open_store
    from helmsman.store.database import Fence
    from helmsman.tasks.calls import CallLog
    from helmsman.tasks.registry import REGISTRY_NAME

    log_to_stderr(PROCESS_LOG, "info")
    state_dir = Path(state)

    def supervisors() -> Collection[Process]:
        from helmsman.agents import registry

        return registry.supervisors(state_dir)

    # The starter says which front end will be asked first.
    words = sys.argv[2:]
    if PIPES in words or REPLACE in words:
        _load_pipes()
    if REPLACE in words:
        _load_http()  # clients of all kinds may already be waiting
    # Modules stay for ever, so the collector need not look at them again.
    gc.freeze()
    gc.enable()
    # Another newer hub was faster.
    if REPLACE in words and not replace_older(state):
        return
    files, days, store, is_observed = _own_settings(state_dir)
    with closing(open_store(state_dir / REGISTRY_NAME, store)) as database:
        hub = Hub(state_dir, supervisors, database.newest_epoch())
    hub.store = store

    # A write with an older epoch is refused: then another hub has taken over.
    def end(newer: int) -> None:
        hub.end(NEXT, f"a later one, of epoch {newer}, has taken its place")

    fence = Fence(hub.epoch, end, f"{platform.node()}:{state_dir}")
    owner = Owner(hub.epoch, start_command(state))
    async with Shared(state_dir, owner=owner, fence=fence, files=files, retention_days=days, store=store) as shared:
        shared.tasks.start_soon(_keep_lease, shared.task_writer.database, fence)
        shared.open_fleet = _open_fleet(shared)
        hub.on_stop = lambda: shared.need_engines(none=True)
        if is_observed:
            _observe(hub, shared)
        calls = CallLog(shared.task_writer)
        # Old calls are deleted in the background, so that the hub is ready sooner.
        shared.tasks.start_soon(_forget_gone, calls)
        waiting_tasks = WaitingTasks(shared, HelmsmanService)
        recovery = Recovery(shared, waiting_tasks)
        scheduler = Scheduler(shared, waiting_tasks)
        hub.work = shared.work
        hub.next_at = lambda: min(filter(None, (scheduler.next_at, shared.next_at())), default=None)
        notifier = Notifier(shared)
        # A crash is reported, because work may have been interrupted.
        if hub.follows_a_death:
            notifier.notify(death_of(hub.epoch))
        hub.notices = lambda: notifier.pending
        shared.tasks.start_soon(recovery.run)
        shared.tasks.start_soon(scheduler.run)
        shared.tasks.start_soon(notifier.run)
        await hub.run({PIPE: _serving(hub, _load_pipes, shared, calls)}, _serving_http(hub, shared, calls))


def _open_fleet(shared: Shared) -> OpenFleet:
    """Return the function that opens a fleet. Its modules are imported on first use."""
    opener: OpenFleet | None = None

    @asynccontextmanager
    async def open_fleet(helm: Verbs) -> AsyncIterator[Any]:
        nonlocal opener
        if opener is None:
            import anyio.to_thread

            from helmsman.cli.fleet import with_fleet

            with_fleet()

            def load() -> OpenFleet:
                from helmsman.fleet.backend import fleet_opener

                return fleet_opener(shared)

            opener = await anyio.to_thread.run_sync(load)
        async with opener(helm) as fleet:
            yield fleet

    return open_fleet


def _observe(hub: Hub, shared: Shared) -> None:
    """Send telemetry of all sessions, until the hub ends."""
    from helmsman.errors import InvalidSetting
    from helmsman.hub.telemetry import Telemetry

    try:
        sessions = shared.session_registry.by_id
        telemetry = Telemetry.by_environment(lambda: sum(len(one.queue) for one in list(sessions.values())))
    except InvalidSetting as error:
        # Without valid settings there is no telemetry, and the hub works all the same.
        log.warning("%s", error)
        return
    shared.session_registry.listeners.append(telemetry.on_event)
    hub.flush = telemetry.close


def _own_settings(state_dir: Path) -> tuple[tuple[ConfigFile, ...], int, str | None, bool]:
    """Return the user's file with agent definitions, the retention of transcripts in days, the address of the store, and
    whether telemetry is wanted.

    Clients report an invalid file. Retention is then the maximum, because the file may ask for more than the default.
    """
    from helmsman.agents.registry import Agents
    from helmsman.base.caller_context import STORE
    from helmsman.errors import InvalidSetting
    from helmsman.settings import LONGEST_RETENTION_DAYS, load_settings

    days, store, is_observed = LONGEST_RETENTION_DAYS, os.environ.get(STORE), False
    try:
        settings = load_settings({}, os.environ, state_dir)
        days, store, is_observed = settings.retention_days, settings.store, settings.otel
        Agents(files=settings.files)
    except InvalidSetting as error:
        # Without definitions rather than without sessions.
        log.warning("agents of your own are left out: %s", error)
        return (), days, store, is_observed
    return settings.files, days, store, is_observed


async def _keep_lease(database: Database, fence: Fence) -> None:
    """Renew the hub's lease of a store that other machines can reach."""
    import anyio
    import anyio.to_thread

    from helmsman.errors import RegistryUnavailable
    from helmsman.store.leases import HUB, renew

    # A local file has one hub; its lock is enough.
    seconds = database.lease_seconds
    if seconds is None:
        return

    def renew_lease(connection: StoreConnection) -> bool:
        return renew(connection, HUB, fence.epoch, seconds)

    while True:
        try:
            await anyio.to_thread.run_sync(database.write, renew_lease)
        except RegistryUnavailable as error:
            log.warning("the lease of the store is not renewed: %s", error)
        # Every third of the lease: two renewals may fail.
        await anyio.sleep(seconds / 3)


async def _forget_gone(calls: CallLog) -> None:
    """Delete calls of clients that are gone."""
    from helmsman.errors import RegistryUnavailable

    try:
        await calls.forget_gone()
    except RegistryUnavailable as error:
        log.warning("%s", error)


def _load_pipes() -> MakeServe:
    with _loading_sdk:
        from helmsman.mcp.pipe_server import PipeLogs, PipeServer
    import logging

    from helmsman.cli.consoles import COMMAND_LOG, in_form, log_level

    def make(shared: Shared, calls: CallLog) -> Serve:
        # Records of one client's work go to this client.
        logs = in_form(PipeLogs(), COMMAND_LOG)
        logging.getLogger().addHandler(logs)
        return PipeServer(shared, calls, logs, log_level).serve

    return make


def _load_http() -> Callable[[Hub, Shared, CallLog], ServeHttp]:
    with _loading_sdk:
        from starlette.routing import Route

        from helmsman.cli.rendering import TextRenderer
        from helmsman.cli.thin import TEXT_PATH
        from helmsman.httpd.hub_server import HubServer

    def make(hub: Hub, shared: Shared, calls: CallLog) -> ServeHttp:
        text = Route(TEXT_PATH, TextRenderer(hub, shared).render, methods=["POST"])
        return HubServer(hub, shared, calls, [text]).serve

    return make


def _when_first_asked(load: Callable[[], Callable[..., T]], *arguments: object) -> Callable[[], Awaitable[T]]:
    """Import a front end on its first connection, and make it. Only that connection waits for the import."""
    from helmsman.base.concurrency import OnceEach

    loaded: OnceEach[T] = OnceEach()

    async def make() -> T:
        import gc

        import anyio.to_thread

        # Collecting makes the import slower, for which a connection waits.
        gc.disable()
        try:
            # On a thread, so that other connections are served.
            made = await anyio.to_thread.run_sync(load)
        finally:
            gc.enable()
        return made(*arguments)

    return lambda: loaded.get("", make)


def _serving(hub: Hub, load: Callable[[], MakeServe], shared: Shared, calls: CallLog) -> Serve:
    front_end = _when_first_asked(load, shared, calls)

    async def serve(_hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
        await (await _or_end(hub, front_end))(hub, connection, fields, refused)

    return serve


def _serving_http(hub: Hub, shared: Shared, calls: CallLog) -> ServeHttp:
    server = _when_first_asked(_load_http, hub, shared, calls)

    async def serve(connection: Connection, refused: str | None) -> None:
        await (await _or_end(hub, server))(connection, refused)

    return serve


async def _or_end(hub: Hub, front_end: Callable[[], Awaitable[T]]) -> T:
    """Return a front end. If our files were removed or replaced, end: the next hub runs a consistent version."""
    from helmsman.hub.launch import NEXT

    try:
        return await front_end()
    except Exception:
        log.exception("a front end cannot be loaded")
        hub.end(NEXT, "it cannot load its own code")


if __name__ == "__main__":
    main()
