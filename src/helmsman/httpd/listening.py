"""Address of the HTTP server and its token. Imports little, because the command that owns the port is not a server."""

from __future__ import annotations

import os
import secrets
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from helmsman.base.addresses import is_loopback
from helmsman.base.files import create_once
from helmsman.base.structs import Value
from helmsman.errors import InvalidSetting
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    import ssl

MCP_PATH: Final = "/mcp"
TOKEN_NAME: Final = "http-token"  # noqa: S105 - the name of the file
_TOKEN_CHARS: Final = 20
"""Minimum length of a token. A shorter one could be guessed."""
_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
_ANY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - to recognise them


class HttpOptions(Value, frozen=True, kw_only=True):
    """Address and TLS options. `other_names` are additional host names that clients may use."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    other_names: frozenset[str] = frozenset()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    allow_plain_http: bool = False

    def check(self) -> ssl.SSLContext | None:
        """Return the TLS context. Refuse to listen on other interfaces without TLS, unless the user allows plain HTTP.

        Raises:
            InvalidSetting: The server would be reachable without TLS, or the certificate cannot be used.
        """
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidSetting("TLS needs a certificate and its key. Give both --tls-cert and --tls-key.")
        if not is_loopback(self.host) and self.tls_certificate is None and not self.allow_plain_http:
            raise InvalidSetting(
                f"On {self.host} others could read the token on its way. Listen on 127.0.0.1 and use an SSH tunnel, or "
                "give --tls-cert and --tls-key."
            )
        if self.tls_certificate is None:
            return None
        import ssl

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
        """Return whether a request's Host names this server. Other names may come from DNS rebinding."""
        if host is None:
            return False
        if host in {*_LOOPBACK_NAMES, self.host.lower(), *map(str.lower, self.other_names)}:
            return True
        return self.host in _ANY_ADDRESS and _is_address(host)  # an address cannot be rebound, a name can

    @property
    def scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"

    def address(self, listener: socket.socket) -> str:
        """Return the address of the server for MCP clients."""
        return self._base(listener, self.host) + MCP_PATH

    def page(self, listener: socket.socket) -> str:
        """Return the address of the dashboard for a browser on this machine."""
        return self._base(listener, "127.0.0.1" if self.host in _ANY_ADDRESS else self.host)

    def _base(self, listener: socket.socket, host: str) -> str:
        shown = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{shown}:{listener.getsockname()[1]}"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def http_token(state_dir: Path) -> str:
    """Return the token of this installation. Create it on first use."""
    path = ensure_state_dir(state_dir) / TOKEN_NAME
    try:
        token = create_once(path, secrets.token_urlsafe(32) + "\n").strip()
        is_shared = os.name == "posix" and path.stat().st_mode & 0o077
    except OSError as error:
        raise _no_place(path, error) from error
    if len(token) < _TOKEN_CHARS:
        raise InvalidSetting(f"{path} holds no usable token. Remove the file; a new one is made then.")
    if is_shared:
        raise InvalidSetting(f"Others can read {path}. Remove the file; a new token is made then.")
    return token


def _no_place(path: Path, error: OSError) -> InvalidSetting:
    return InvalidSetting(
        f"The token for clients cannot be kept in {path}: {error.strerror or error}. Make room and make the directory "
        "writable, or set HELMSMAN_STATE_DIR to one that is."
    )


def listen(options: HttpOptions) -> socket.socket:
    """Return a socket that listens at the address of the options.

    Raises:
        InvalidSetting: The port is in use, or the interface does not exist.
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
