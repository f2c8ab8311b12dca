"""Streamable HTTP: the same server for several clients at once, behind a token.

Every request needs the bearer token, which is made at the first start and kept in the state directory, readable by its
owner only (`guard.py` lets it in). Other interfaces than loopback need TLS or an explicit word.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import anyio
from mcp.server.transport_security import TransportSecuritySettings

from helmsman.errors import InvalidSetting
from helmsman.httpd.guard import Guard, refused
from helmsman.mcp.server import build_server
from helmsman.settings import ensure_state_dir
from helmsman.web.login import Logins
from helmsman.web.proof import Challenges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from helmsman.service import Helmsman

log = logging.getLogger(__name__)

MCP_PATH: Final = "/mcp"
TOKEN_NAME: Final = "http-token"  # noqa: S105 - the name of the file
_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
_ANY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - to recognise them
_MAX_BODY_BYTES: Final = 32 * 1024 * 1024
_SHUTDOWN_SECONDS: Final = 3
_KEEP_ALIVE_SECONDS: Final = 75
"""Longer than clients keep an idle connection, so that none sends a request just as we close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where to listen, and how. `other_names` are hosts that clients may call the server by, beside `host`."""

    host: str = "127.0.0.1"
    port: int = 0
    other_names: frozenset[str] = frozenset()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    allow_plain_http: bool = False

    def check(self) -> ssl.SSLContext | None:
        """What TLS is spoken with. Refuses to be reachable from elsewhere without, unless that was asked for outright.

        Raises:
            InvalidSetting: It would be, or the certificate cannot be used.
        """
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidSetting("TLS needs a certificate and its key. Give both --tls-cert and --tls-key.")
        if not is_loopback(self.host) and self.tls_certificate is None and not self.allow_plain_http:
            raise InvalidSetting(
                f"On {self.host} others could read the token on its way. Listen on 127.0.0.1 and use an SSH tunnel, give "
                "--tls-cert and --tls-key, or say --allow-plain-http if the network is yours."
            )
        if self.tls_certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidSetting(
                f"The TLS certificate {self.tls_certificate} and key {self.tls_key} cannot be used: {error}. Give a "
                "certificate and its own key, both as PEM files."
            ) from error
        return context

    def answers_to(self, host: str | None) -> bool:
        """Whether a request that names this host is meant for us, and not led here by somebody's DNS."""
        if host is None:
            return False
        if host in {*_LOOPBACK_NAMES, self.host.lower(), *map(str.lower, self.other_names)}:
            return True
        return self.host in _ANY_ADDRESS and _is_address(host)  # an address cannot be rebound, a name can

    @property
    def scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"

    def address(self, listener: socket.socket) -> str:
        """Where MCP clients find a server that listens there."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{shown}:{listener.getsockname()[1]}{MCP_PATH}"


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def http_token(state_dir: Path) -> str:
    """The token of this installation, made when there is none yet."""
    path = ensure_state_dir(state_dir) / TOKEN_NAME
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        known = path.read_text(encoding="utf-8").strip()
        if len(known) < 20:
            raise InvalidSetting(f"{path} holds no usable token. Remove the file; a new one is made then.") from None
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise InvalidSetting(f"Others can read {path}. Remove the file; a new token is made then.") from None
        return known
    except OSError as error:
        raise _no_place(path, error) from error
    token = secrets.token_urlsafe(32)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
    except OSError as error:  # a full disk: half a token would be in the way of the next start
        path.unlink(missing_ok=True)
        raise _no_place(path, error) from error
    return token


def _no_place(path: Path, error: OSError) -> InvalidSetting:
    return InvalidSetting(
        f"The token for clients cannot be kept in {path}: {error.strerror}. Make room and make the directory writable, or "
        "set HELMSMAN_STATE_DIR to one that is."
    )


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
    helm: Helmsman,
    *,
    token: str,
    options: HttpOptions,
    logins: Logins | None = None,
    before_mcp: Callable[..., ASGIApp] | None = None,
) -> Starlette:
    """The web application: MCP at `/mcp`, the dashboard at `/`, behind the guard.

    `before_mcp` makes what stands before the MCP endpoint, given that.
    """
    from helmsman.web.app import dashboard_routes

    logins = logins or Logins(secure=options.scheme == "https")
    app = build_server(helm).streamable_http_app(
        streamable_http_path=MCP_PATH,
        max_request_body_size=_MAX_BODY_BYTES,
        # The guard has looked at Host and Origin already, for every path.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        custom_starlette_routes=dashboard_routes(helm, logins, Challenges(token)),
    )
    if before_mcp is not None:
        app.add_middleware(before_mcp)
    app.add_middleware(Guard, token=token, answers_to=options.answers_to, logins=logins)
    return app


async def serve_http(
    helm: Helmsman,
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


def listen(options: HttpOptions) -> socket.socket:
    """A socket that listens where the options say.

    Raises:
        InvalidSetting: Somebody else has the port, or there is no such interface.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere this would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen()  # from here on clients can connect, before the server is ready to answer
    except OSError as error:
        listener.close()
        raise InvalidSetting(
            f"Cannot listen on {options.host} port {options.port}: {error.strerror}. Choose another --port, or 0 for any."
        ) from error
    return listener
