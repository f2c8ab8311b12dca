"""HTTP API under `/v1`: operations as resources, and the events of a session as a stream.

The hub serves it on its Unix socket, `curl --unix-socket … http://hub/v1/sessions`, and on TCP behind the token. Errors
are `application/problem+json` (RFC 9457) with a stable `code`.
"""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import Route

from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.httpd.limits import CONNECTION
from helmsman.httpd.operation_routes import EVENTS_PATH, OPENAPI_PATH, VERSION_PATH, problem, problem_of, routes_of
from helmsman.model.events import SessionFact
from helmsman.tasks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from helmsman.httpd.operation_routes import OpenService
    from helmsman.sessions.session import Session
    from helmsman.tasks.calls import CallLog
    from helmsman.tasks.writer import TaskWriter

log = logging.getLogger(__name__)

_UNWRITTEN_SECONDS: Final = 1.0
_EVENTS_BYTES: Final = 256 * 1024
"""Bytes of events that are read from the store together. A slow reader holds no more than this."""
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
_MAX_REQUESTS: Final = 1000
"""Limit of requests that run at a time, waits and streams included."""
_REQUESTS_PER_SECOND: Final = 500
"""Sustained limit. A client may send as many in one burst."""
_READ_SECONDS: Final = 60.0
"""Time in which a client must read a piece of a response."""


def api_app(open_service: OpenService, writer: TaskWriter, calls: CallLog, control: Sequence[Route] = ()) -> ASGIApp:
    """Return the application under `/v1`. `control` are the routes to the hub itself."""
    events = Route(EVENTS_PATH, _Events(open_service, writer).follow, methods=["GET"])
    routes = [*control, events, *routes_of(open_service, calls)]
    return BoundedRequests(Starlette(routes=routes, exception_handlers={HTTPException: _not_found}))


class BoundedRequests:
    """Limits requests in size, number and rate, and drops clients that do not read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running = 0
        self._allowed = float(_REQUESTS_PER_SECOND)
        self._counted_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > _MAX_BODY_BYTES:
            await _too_large()(scope, receive, send)
        elif self._running >= _MAX_REQUESTS or not self._is_in_time():
            await _too_many()(scope, receive, send)
        else:
            self._running += 1
            try:
                await self._serve(scope, receive, send)
            finally:
                self._running -= 1

    def _is_in_time(self) -> bool:
        """Count a request. Return whether it is within the rate (token bucket)."""
        now = time.monotonic()
        self._allowed = min(
            self._allowed + (now - self._counted_at) * _REQUESTS_PER_SECOND, float(_REQUESTS_PER_SECOND)
        )
        self._counted_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = _MAX_BODY_BYTES
        is_started = is_dropped = False

        # A chunked body announces no length, so its bytes are counted.
        async def receive_on() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                serving.cancel()
                # Raises the cancellation here, before the application gets the message.
                await anyio.lowlevel.checkpoint()
            return message

        async def send_on(message: Message) -> None:
            nonlocal is_started, is_dropped
            is_started = True
            with anyio.move_on_after(_READ_SECONDS) as reading:
                await send(message)
            if reading.cancelled_caught:
                is_dropped = True
                serving.cancel()
                await anyio.lowlevel.checkpoint()

        with anyio.CancelScope() as serving:
            await self._app(scope, receive_on, send_on)
        if is_dropped:
            log.warning("a client of the API did not read its response: its connection was closed")
            # A close would wait until the client has read what is buffered.
            scope["state"][CONNECTION].transport.abort()
        elif serving.cancelled_caught and not is_started:
            await _too_large()(scope, receive, send)


def _too_large() -> Response:
    return problem(413, "too_large", f"Send at most {_MAX_BODY_BYTES} bytes.")


def _too_many() -> Response:
    refusal = problem(429, "too_many_requests", "Too many requests at a time. Try again in a second.", retryable=True)
    refusal.headers["Retry-After"] = "1"
    return refusal


class Application:
    """HTTP application: the API, and `front` on all other paths."""

    def __init__(self, api: ASGIApp, front: ASGIApp) -> None:
        self._api = api
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_api = path == VERSION_PATH or path.startswith(f"{VERSION_PATH}/")
        await (self._api if is_api else self._front)(scope, receive, send)


class _Events:
    """Streams the events of a session from a cursor on, for as long as the client reads."""

    def __init__(self, open_service: OpenService, writer: TaskWriter) -> None:
        self._open_service = open_service
        self._writer = writer

    async def follow(self, request: Request) -> Response:
        try:
            cursor = _cursor(request)
            async with self._open_service() as helm:
                session = await helm.session(request.path_params["sessionId"])
        except HelmsmanError as error:
            return problem_of(error)
        return StreamingResponse(self._since(session, cursor), media_type="text/event-stream")

    async def _since(self, session: Session, cursor: int) -> AsyncIterator[str]:
        """Yield the events in the log, then those that are appended."""
        yield ": the events follow\n\n"
        while not session.feed.closed:
            # Published events may not be committed yet, and only the log gives them their final numbers.
            await self._writer.write()
            stored = await self._writer.registry(
                partial(Registry.events, session_id=session.id, since=cursor, most_bytes=_EVENTS_BYTES)
            )
            for number, event in enumerate(stored.events, stored.cursor - len(stored.events) + 1):
                if not isinstance(event, SessionFact):
                    yield f"id: {number}\nevent: {event.event_type()}\ndata: {json.dumps(event.to_json())}\n\n"
            cursor = max(cursor, stored.cursor)
            if not stored.events and session.feed.cursor > cursor:
                await anyio.sleep(_UNWRITTEN_SECONDS)  # the store cannot be written just now
            while session.feed.cursor <= cursor and not session.feed.closed:
                await session.feed.changed()


def _cursor(request: Request) -> int:
    given = request.query_params.get("since") or request.headers.get("Last-Event-ID") or "0"
    if not given.isdecimal():
        raise InvalidInput(f"{given!r:.50} is not the number of an event.", parameter="since")
    return int(given)


async def _not_found(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "bad_request"
    return problem(error.status_code, code, f"{error.detail}. {OPENAPI_PATH} lists all paths.")
