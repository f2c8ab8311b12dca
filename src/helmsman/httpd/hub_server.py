"""HTTP of the hub: its Unix socket, control of the hub, and the addresses on which it listens for others.

Only processes of the user may use the socket, and no command that an agent runs (`helmsman.hub.admission`). Control is on
the socket alone: a client over TCP may do what the settings of its listener allow.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import uvicorn
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from helmsman._version import __version__
from helmsman.base.caller_context import CallerContext
from helmsman.base.concurrency import OnceEach
from helmsman.base.structs import replace
from helmsman.httpd.api import Application, api_app
from helmsman.httpd.limits import BoundedBody
from helmsman.httpd.listeners import HttpListeners
from helmsman.httpd.listening import http_token
from helmsman.httpd.operation_routes import problem
from helmsman.httpd.programs import ProgramRoutes
from helmsman.httpd.unix_connection import UnixConnection, connection_of
from helmsman.hub.control import BRIDGES_PATH, HUB_PATH, LISTEN_PATH, PROGRAMS_PATH, RESTART_PATH, STAY_PATH, STOP_PATH
from helmsman.hub.launch import LATER, NEXT, is_newer
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.steering.shared import hub_fingerprint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub
    from helmsman.settings import Settings
    from helmsman.steering.shared import Shared
    from helmsman.tasks.calls import CallLog

_KEEP_ALIVE_SECONDS: Final = 30
_FLUSH_SECONDS: Final = 5.0


class HubServer:
    """Serves the connections of the hub's socket that speak HTTP."""

    def __init__(self, hub: Hub, shared: Shared, calls: CallLog, routes: Sequence[Route] = ()) -> None:
        """`routes` are further ones of the socket, under `/v1`."""
        self._hub = hub
        self._shared = shared
        self._calls = calls
        self._front: OnceEach[ASGIApp] = OnceEach()
        control = [
            Route(HUB_PATH, self._status, methods=["GET"]),
            Route(STOP_PATH, self._stop, methods=["POST"]),
            Route(RESTART_PATH, self._restart, methods=["POST"]),
            Route(STAY_PATH, self._stay, methods=["GET"]),
            Route(LISTEN_PATH, HttpListeners(hub, shared, calls), methods=["POST"]),
            *routes,
        ]
        self._application = Application(api_app(self._service, shared.task_writer, calls, control), self._serve_front)
        self._programs = ProgramRoutes(hub, shared, calls)
        self._config = uvicorn.Config(
            BoundedBody(self._admitted),
            http=H11Protocol,
            ws="none",
            # MCP's is entered by `_open_front`, when it is first needed.
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._state = ServerState()

    async def serve(self, connection: Connection, refused: str | None) -> None:
        """Serve one connection, to its end."""
        connected, read, descriptors = connection.hand_on()
        http = UnixConnection(self._config, self._state, refused, read, descriptors)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: http, connected)
        await http.is_over.wait()

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = connection_of(scope).refused
        if refused is not None:
            await problem(403, "not_served", f"This process is not served: {refused}.")(scope, receive, send)
            return
        is_program = scope["path"].startswith((PROGRAMS_PATH, BRIDGES_PATH))
        await (self._programs.app if is_program else self._application)(scope, receive, send)

    async def _serve_front(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._front.get("", self._open_front))(scope, receive, send)

    async def _open_front(self) -> ASGIApp:
        """Open MCP and the dashboard on the socket, for as long as the hub lives."""
        from helmsman.httpd.application import Front  # MCP takes long to import, and the API can do without

        is_open = anyio.Event()
        front: Front | None = None

        async def keep_open() -> None:
            nonlocal front
            async with self._service() as helm:
                front = Front(helm, http_token(self._hub.state_dir), epoch=self._hub.epoch)
                async with front.opened():
                    is_open.set()
                    await anyio.sleep_forever()

        self._shared.tasks.start_soon(keep_open)
        await is_open.wait()
        assert front is not None
        return front

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[HelmsmanService]:
        """Open the service for programs without their own settings and environment: it uses the user's settings and the
        hub's environment.

        Raises:
            InvalidSetting: The user's settings cannot be used.
        """
        settings = await anyio.to_thread.run_sync(self._settings)
        environment, home = dict(os.environ), Path.home()
        with CallerContext(environment, home).entered():
            place = hub_fingerprint(settings)
            async with HelmsmanService(settings, env=environment, shared=self._shared, in_place_of=place) as helm:
                yield helm

    def _settings(self) -> Settings:
        state_dir = self._hub.state_dir
        # This hub serves its own directory, whatever the settings say by now.
        return replace(load_settings({}, os.environ, state_dir), state_dir=state_dir)

    async def _status(self, _request: Request) -> Response:
        return JSONResponse(_status(self._hub))

    async def _stop(self, _request: Request) -> Response:
        return JSONResponse(_status(self._hub), background=BackgroundTask(self._end, LATER, "helmsman hub stop"))

    async def _restart(self, request: Request) -> Response:
        """End, so that the next client starts a hub. A client may ask for it because its version is newer."""
        body = await request.body()
        version = (await request.json()).get("version") if body else None
        if version is not None and not is_newer(str(version), __version__):
            return problem(409, "not_newer", f"This hub is of version {__version__}. It stays.")
        reason = "helmsman hub restart" if version is None else f"version {version} takes its place"
        return JSONResponse(_status(self._hub), background=BackgroundTask(self._end, NEXT, reason))

    async def _end(self, word: bytes, reason: str) -> None:
        # A store that cannot be written must not keep the hub from ending.
        with anyio.move_on_after(_FLUSH_SECONDS):
            await self._shared.task_writer.write()
        self._hub.end(word, reason)

    async def _stay(self, request: Request) -> Response:
        """Keep the hub for as long as the client reads. The last event says whether the client starts the next one."""
        connection = connection_of(request.scope)
        self._hub.clients[connection] = _Stays(request.query_params.get("pid", "?"))

        async def events() -> AsyncIterator[str]:
            try:
                yield "event: hello\ndata: {}\n\n"
                await anyio.sleep_forever()
            finally:
                self._hub.clients.pop(connection, None)

        return StreamingResponse(events(), media_type="text/event-stream")


class _Stays:
    """Process that keeps the hub running."""

    def __init__(self, pid: str) -> None:
        self.description: Mapping[str, Any] = {"kind": "run", "pid": pid, "version": __version__, "directory": "/"}


def _status(hub: Hub) -> dict[str, Any]:
    return {
        "version": __version__,
        "pid": os.getpid(),
        "epoch": hub.epoch,
        "stateDirectory": str(hub.state_dir),
        "uptimeSeconds": round(time.time() - hub.started_at, 1),
        "memoryBytes": _memory(),
        "sessionsAtWork": hub.work(),
        "nextScheduleAt": None if (next_at := hub.next_at()) is None else next_at.isoformat(timespec="seconds"),
        "noticesPending": hub.notices(),
        "clients": [dict(client.description) for client in hub.clients.values()],
    }


def _memory() -> int | None:
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file on a disk
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
