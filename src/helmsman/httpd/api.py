"""The hub's HTTP API, on its Unix socket: `curl --unix-socket … http://hub/v1/sessions`.

The operations are in `operation_routes`; here are the hub itself and the events of a session, as a stream. Only processes of
the user may connect, and no command that an agent runs (`helmsman.hub.admission`). Errors are `application/problem+json`
(RFC 9457) with a stable `code`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from helmsman._version import __version__
from helmsman.base.structs import replace
from helmsman.base.surroundings import Whereabouts
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.httpd.limits import BoundedBody
from helmsman.httpd.operation_routes import EVENTS_PATH, OPENAPI_PATH, problem, problem_of, routes_of
from helmsman.hub.control import HUB_PATH, RESTART_PATH, STAY_PATH, STOP_PATH, last_event
from helmsman.hub.launch import LATER, NEXT, is_newer
from helmsman.model.events import SessionFact
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.steering.shared import surroundings_of_hub
from helmsman.tasks.registry import Registry

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from helmsman.hub.process import Hub
    from helmsman.sessions.session import Session
    from helmsman.settings import Settings
    from helmsman.steering.shared import Shared
    from helmsman.tasks.calls import CallLog

_KEEP_ALIVE_SECONDS: Final = 30
_FLUSH_SECONDS: Final = 5.0
_UNWRITTEN_SECONDS: Final = 1.0
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
_CONNECTION: Final = "helmsman.connection"


class _Connection(H11Protocol):
    """A connection on the Unix socket. `refused` says why its process may not use the hub."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, refused: str | None) -> None:
        super().__init__(config, server_state, {_CONNECTION: self})
        self.refused = refused
        self.is_over = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_over.set()

    def last_word(self, word: bytes) -> None:
        """Tell the reader of a stream that the hub ends."""
        self.transport.write(last_event(word))


class _Admission:
    """Refuses every request of a process that may not use the hub, and bodies that are too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _connection(scope).refused
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if refused is not None:
            await problem(403, "not_served", f"This process is not served: {refused}.")(scope, receive, send)
        elif not length.isdigit() or int(length) > _MAX_BODY_BYTES:
            await problem(413, "too_large", f"Send at most {_MAX_BODY_BYTES} bytes.")(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _connection(scope: Scope) -> _Connection:
    connection: _Connection = scope["state"][_CONNECTION]
    return connection


class ApiServer:
    """Serves the connections of the hub's socket that speak HTTP."""

    def __init__(self, hub: Hub, shared: Shared, calls: CallLog) -> None:
        self._hub = hub
        self._shared = shared
        app = Starlette(
            routes=[
                Route(HUB_PATH, self._status, methods=["GET"]),
                Route(STOP_PATH, self._stop, methods=["POST"]),
                Route(RESTART_PATH, self._restart, methods=["POST"]),
                Route(STAY_PATH, self._stay, methods=["GET"]),
                Route(EVENTS_PATH, self._events, methods=["GET"]),
                *routes_of(self._service, calls),
            ],
            exception_handlers={HTTPException: _not_found},
        )
        self._config = uvicorn.Config(
            _Admission(BoundedBody(app)),
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._state = ServerState()

    async def serve(self, connected: socket.socket, refused: str | None) -> None:
        """Serve one connection, to its end."""
        connection = _Connection(self._config, self._state, refused)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, connected)
        await connection.is_over.wait()

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[HelmsmanService]:
        """Open the service for programs that bring no settings and environment of their own: the user's and the hub's.

        Raises:
            InvalidSetting: The user's settings cannot be used.
        """
        settings = await anyio.to_thread.run_sync(self._settings)
        environment, home = dict(os.environ), Path.home()
        with Whereabouts(environment, home).entered():
            place = surroundings_of_hub(settings)
            async with HelmsmanService(settings, env=environment, shared=self._shared, in_place_of=place) as helm:
                yield helm

    def _settings(self) -> Settings:
        state_dir = self._hub.state_dir
        return replace(load_settings({}, os.environ, state_dir), state_dir=state_dir)

    async def _events(self, request: Request) -> Response:
        """Stream the events of a session from a cursor on, for as long as the client reads."""
        try:
            cursor = _cursor(request)
            async with self._service() as helm:
                session = await helm.session(request.path_params["sessionId"])
        except HelmsmanError as error:
            return problem_of(error)
        return StreamingResponse(self._events_since(session, cursor), media_type="text/event-stream")

    async def _events_since(self, session: Session, cursor: int) -> AsyncIterator[str]:
        """Yield what the log has, and what is appended from then on."""
        writer = self._shared.task_writer
        yield ": the events follow\n\n"
        while not session.feed.closed:
            await writer.write()
            stored = await writer.registry(partial(Registry.events, session_id=session.id, since=cursor))
            for number, event in enumerate(stored.events, stored.cursor - len(stored.events) + 1):
                if not isinstance(event, SessionFact):
                    yield f"id: {number}\nevent: {event.event_type()}\ndata: {json.dumps(event.to_json())}\n\n"
            cursor = max(cursor, stored.cursor)
            if not stored.events and session.feed.cursor > cursor:
                await anyio.sleep(_UNWRITTEN_SECONDS)  # the store cannot be written just now
            while session.feed.cursor <= cursor and not session.feed.closed:
                await session.feed.changed()

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
        with anyio.move_on_after(_FLUSH_SECONDS):
            await self._shared.task_writer.write()
        self._hub.end(word, reason)

    async def _stay(self, request: Request) -> Response:
        """Keep the hub for as long as the client reads. The last event says whether the client starts the next one."""
        connection = _connection(request.scope)
        self._hub.doors[connection] = _Stays(request.query_params.get("pid", "?"))

        async def events() -> AsyncIterator[str]:
            try:
                yield "event: hello\ndata: {}\n\n"
                await anyio.sleep_forever()
            finally:
                self._hub.doors.pop(connection, None)

        return StreamingResponse(events(), media_type="text/event-stream")


def _cursor(request: Request) -> int:
    given = request.query_params.get("since") or request.headers.get("Last-Event-ID") or "0"
    if not given.isdecimal():
        raise InvalidInput(f"{given!r:.50} is not the number of an event.", parameter="since")
    return int(given)


class _Stays:
    """A process for which the hub stays, whether or not anything else needs it."""

    def __init__(self, pid: str) -> None:
        self.description: Mapping[str, Any] = {"kind": "run", "pid": pid, "version": __version__, "directory": "/"}


async def _not_found(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "bad_request"
    return problem(error.status_code, code, f"{error.detail}. {OPENAPI_PATH} lists what there is.")


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
        "doors": [dict(door.description) for door in hub.doors.values()],
    }


def _memory() -> int | None:
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file on a disk
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
