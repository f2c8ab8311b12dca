"""The hub's HTTP API, on its Unix socket: `curl --unix-socket … http://hub/v1/hub`.

Only processes of the user may connect, and no command that an agent runs (`helmsman.hub.admission`). Errors are
`application/problem+json` (RFC 9457) with a stable `code`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from helmsman._version import __version__
from helmsman.httpd.limits import BoundedBody
from helmsman.hub.control import HUB_PATH, RESTART_PATH, STAY_PATH, STOP_PATH, last_event
from helmsman.hub.launch import LATER, NEXT, is_newer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from helmsman.hub.process import Hub

_KEEP_ALIVE_SECONDS: Final = 30
_FLUSH_SECONDS: Final = 5.0
_MAX_BODY_BYTES: Final = 64 * 1024
_CONNECTION: Final = "helmsman.connection"


def problem(status: int, code: str, detail: str) -> Response:
    """Return an error as RFC 9457 describes it. Its `detail` says what to do next."""
    content = {"status": status, "title": code.replace("_", " ").capitalize(), "code": code, "detail": detail}
    return JSONResponse(content, status, media_type="application/problem+json")


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

    def __init__(self, hub: Hub, flush: Callable[[], Awaitable[None]]) -> None:
        """`flush` writes what the hub knows and has yet to write, before it ends."""
        self._hub = hub
        self._flush = flush
        app = Starlette(
            routes=[
                Route(HUB_PATH, self._status, methods=["GET"]),
                Route(STOP_PATH, self._stop, methods=["POST"]),
                Route(RESTART_PATH, self._restart, methods=["POST"]),
                Route(STAY_PATH, self._stay, methods=["GET"]),
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
            await self._flush()
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


class _Stays:
    """A process for which the hub stays, whether or not anything else needs it."""

    def __init__(self, pid: str) -> None:
        self.description: Mapping[str, Any] = {"kind": "run", "pid": pid, "version": __version__, "directory": "/"}


async def _not_found(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "bad_request"
    return problem(error.status_code, code, f"{error.detail}. The API begins at {HUB_PATH}.")


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
