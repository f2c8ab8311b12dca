"""Streamable HTTP: the same server for several clients at once, behind a token.

Every request needs the bearer token, which is made at the first start and kept in the state directory, readable by its
owner only (`guard.py` lets it in). Other interfaces than loopback need TLS or an explicit word.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from mcp.server.transport_security import TransportSecuritySettings

from helmsman.httpd.guard import Guard, refused
from helmsman.httpd.listening import MCP_PATH, TOKEN_NAME, http_token, listen
from helmsman.mcp.server import build_server
from helmsman.web.login import Logins
from helmsman.web.proof import Challenges

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from helmsman.httpd.listening import HttpOptions
    from helmsman.service import HelmsmanService

log = logging.getLogger(__name__)

_MAX_BODY_BYTES: Final = 32 * 1024 * 1024
_SHUTDOWN_SECONDS: Final = 3
_KEEP_ALIVE_SECONDS: Final = 75
"""Longer than clients keep an idle connection, so that none sends a request just as we close it."""


class Closable:
    """Ends the responses that are still open, in order: a client's event stream would otherwise hold up the end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[anyio.CancelScope] = set()

    def close(self) -> None:
        for request in self._open:
            request.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = finished = False

        async def send_on(message: Message) -> None:
            nonlocal started, finished
            started = True
            finished = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        with anyio.CancelScope() as request:
            self._open.add(request)
            try:
                await self._app(scope, receive, send_on)
            finally:
                self._open.discard(request)
        if request.cancelled_caught and not finished:
            if started:
                await send({"type": "http.response.body", "body": b""})
            else:
                await refused(503, "closing", "The server is ending. Start it again.")(scope, receive, send)


def build_app(
    helm: HelmsmanService,
    *,
    token: str,
    options: HttpOptions,
    logins: Logins | None = None,
    before_mcp: Callable[..., ASGIApp] | None = None,
) -> Starlette:
    """The web application: MCP at `/mcp`, the dashboard at `/`, behind the guard.

    `before_mcp` makes what stands before the MCP endpoint, given that.
    """
    from starlette.routing import Route

    from helmsman.web.api import api_routes
    from helmsman.web.static_files import static_file

    logins = logins or Logins(secure=options.scheme == "https")
    app = build_server(helm).streamable_http_app(
        streamable_http_path=MCP_PATH,
        max_request_body_size=_MAX_BODY_BYTES,
        # The guard has looked at Host and Origin already, for every path.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        custom_starlette_routes=[
            *api_routes(helm, logins, Challenges(token)),
            Route("/{path:path}", static_file, methods=["GET"]),
        ],
    )
    if before_mcp is not None:
        app.add_middleware(before_mcp)
    app.add_middleware(Guard, token=token, answers_to=options.answers_to, logins=logins)
    return app


async def serve_http(
    helm: HelmsmanService,
    options: HttpOptions,
    announce: Callable[[str, Path], None],
    logins: Logins | None = None,
    listener: socket.socket | None = None,
    before_mcp: Callable[..., ASGIApp] | None = None,
) -> None:
    """Serve until cancelled. `announce` is told the address and where the token is, once clients can connect.

    `logins` are the dashboard's, for a caller that hands out codes itself. `listener` is a socket that listens already;
    `before_mcp` as in `build_app`.
    """
    import uvicorn

    from helmsman.httpd.limits import ACCEPTED_AT_ONCE, BoundedBody, BoundedConnection, TlsDoor

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # they belong to the command, which has Codex to end as well

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listener in sockets or ():
                listener.listen()  # few are accepted in one turn, but many may wait for theirs

    tls = options.check()
    token = http_token(helm.settings.state_dir)
    app = Closable(BoundedBody(build_app(helm, token=token, options=options, logins=logins, before_mcp=before_mcp)))
    with listener or listen(options) as listener:
        config = uvicorn.Config(
            app,
            http=BoundedConnection if tls is None else partial(TlsDoor, tls),  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        server = Server(config)

        async def serve() -> None:
            with anyio.CancelScope(shield=True):
                await server.serve(sockets=[listener])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            announce(options.address(listener), helm.settings.state_dir / TOKEN_NAME)
            try:
                await anyio.sleep_forever()
            finally:
                app.close()
                server.should_exit = True
