"""HTTP on TCP: the application for several clients, behind a token.

Every request needs the bearer token, which is created at the first start and stored in the state directory, readable by
its owner only (`guard.py` checks it). Interfaces other than loopback need TLS or an explicit option.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.httpd.application import build_app
from helmsman.httpd.guard import refused
from helmsman.httpd.listening import TOKEN_NAME, http_token, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from helmsman.httpd.listening import HttpOptions
    from helmsman.service import HelmsmanService
    from helmsman.tasks.calls import CallLog
    from helmsman.web.login import Logins

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


async def serve_http(
    helm: HelmsmanService,
    options: HttpOptions,
    announce: Callable[[str, Path], None],
    logins: Logins | None = None,
    listener: socket.socket | None = None,
    calls: CallLog | None = None,
    epoch: int | None = None,
) -> None:
    """Serve until cancelled. `announce` gets the address and the path of the token, once clients can connect.

    `logins` are the dashboard's, for a caller that issues codes itself. `listener` is a socket that listens already.
    The rest is as in `build_app`.
    """
    import uvicorn

    from helmsman.httpd.limits import ACCEPTED_AT_ONCE, BoundedBody, BoundedConnection, TlsConnection

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
    app = Closable(BoundedBody(build_app(helm, token=token, options=options, logins=logins, calls=calls, epoch=epoch)))
    with listener or listen(options) as listener, helm.serves_dashboard(options.page(listener)):
        config = uvicorn.Config(
            app,
            http=BoundedConnection if tls is None else partial(TlsConnection, tls),  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        server = Server(config)

        async def serve() -> None:
            # `should_exit` ends it in order. A cancellation would cut the open responses.
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
