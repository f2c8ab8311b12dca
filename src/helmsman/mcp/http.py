"""Streamable HTTP: the same server for several clients at once, behind a token.

Every request needs the bearer token, which is made at the first start and kept in the state directory, readable by its
owner only. Host and Origin are checked before it, so that no web page in the user's browser gets as far as guessing
(DNS rebinding, cross-site requests). Other interfaces than loopback need TLS or an explicit word.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from dataclasses import dataclass
from hmac import compare_digest
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from helmsman.errors import InvalidSetting
from helmsman.mcp.server import build_server
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from helmsman.service import Helmsman

log = logging.getLogger(__name__)

MCP_PATH: Final = "/mcp"
TOKEN_NAME: Final = "http-token"  # noqa: S105 - the name of the file
_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
_MAX_BODY_BYTES: Final = 32 * 1024 * 1024
_SHUTDOWN_SECONDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where to listen, and how."""

    host: str = "127.0.0.1"
    port: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    allow_plain_http: bool = False

    def check(self) -> None:
        """Refuse to be reachable from elsewhere without TLS, unless that was asked for in so many words.

        Raises:
            InvalidSetting: It would be.
        """
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidSetting("TLS needs a certificate and its key. Give both --tls-cert and --tls-key.")
        if not is_loopback(self.host) and self.tls_certificate is None and not self.allow_plain_http:
            raise InvalidSetting(
                f"On {self.host} others could read the token on its way. Listen on 127.0.0.1 and use an SSH tunnel, give "
                "--tls-cert and --tls-key, or say --allow-plain-http if the network is yours."
            )

    @property
    def scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"


def is_loopback(host: str) -> bool:
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def http_token(state_dir: Path) -> str:
    """The token of this installation, made when there is none yet."""
    path = ensure_state_dir(state_dir) / TOKEN_NAME
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        known = path.read_text(encoding="utf-8").strip()
        if len(known) < 20:
            raise InvalidSetting(f"{path} holds no usable token. Remove the file; a new one is made then.") from None
        return known
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(token + "\n")
    return token


class Guard:
    """Lets a request through when its Host and Origin are ours and its token is right."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(headers)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        if _host_name(f"//{headers.get('host', '')}") not in self._hosts:
            return _refused(421, "wrong_host", "This server does not answer to that Host. Use the address it printed.")
        origin = headers.get("origin")
        if origin is not None and _host_name(origin) not in self._hosts:
            return _refused(403, "wrong_origin", "Web pages of other sites may not use this server.")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Compared as bytes and in constant time, also when the scheme is wrong: no answer comes faster than another.
        matches = compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)
        if scheme.lower() != "bearer" or not matches:
            return _refused(
                401, "wrong_token", f"Send the token of {TOKEN_NAME} in the state directory as a bearer token."
            )
        return None


def _refused(status: int, code: str, message: str) -> JSONResponse:
    headers = {"WWW-Authenticate": 'Bearer realm="helmsman"'} if status == 401 else None
    return JSONResponse({"code": code, "message": message}, status_code=status, headers=headers)


def _host_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def build_app(helm: Helmsman, *, token: str, host: str) -> Starlette:
    """The web application: MCP at `/mcp`, behind the guard."""
    app = build_server(helm).streamable_http_app(
        streamable_http_path=MCP_PATH,
        max_request_body_size=_MAX_BODY_BYTES,
        # The guard has looked at Host and Origin already, for every path.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    hosts = frozenset(_LOOPBACK_NAMES) if is_loopback(host) else frozenset({*_LOOPBACK_NAMES, host})
    app.add_middleware(Guard, token=token, hosts=hosts)
    return app


async def serve_http(helm: Helmsman, options: HttpOptions, announce: Callable[[str], None]) -> None:
    """Serve until a signal ends it. `announce` is told the address once it listens."""
    import uvicorn

    options.check()
    token = http_token(helm.settings.state_dir)
    with _listener(options) as listener:
        port = listener.getsockname()[1]
        shown = f"[{options.host}]" if ":" in options.host else options.host
        config = uvicorn.Config(
            build_app(helm, token=token, host=options.host),
            log_config=None,
            access_log=False,
            ws="none",
            ssl_certfile=options.tls_certificate,
            ssl_keyfile=options.tls_key,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        announce(f"{options.scheme}://{shown}:{port}{MCP_PATH}")
        await uvicorn.Server(config).serve(sockets=[listener])


def _listener(options: HttpOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise InvalidSetting(
            f"Cannot listen on {options.host} port {options.port}: {error.strerror}. Choose another --port, or 0 for any."
        ) from error
    return listener
