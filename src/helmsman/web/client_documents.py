"""Client ID Metadata Documents: who an OAuth client is, by the document at the address that is its id.

The address comes from a stranger, so it is fetched only for a user who has logged in, and only from public addresses: each
name is resolved once, every address of it must be public, and the connection goes to the address that was checked. There
are no redirects, no proxies, no other port than 443, and bounds on time and size.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread

from helmsman.base.addresses import is_loopback
from helmsman.base.sanitize import one_line
from helmsman.base.structs import Value
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

MAX_BYTES: Final = 16 * 1024
_SECONDS: Final = 8.0
_MAX_URIS: Final = 50
_MAX_ADDRESS: Final = 500
_NAME_CHARS: Final = 80
# NAT64 leads to IPv4 addresses, which may be private.
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


class InvalidClient(HelmsmanError):
    """OAuth client cannot be identified, or asks for what it may not have."""


class OAuthClient(Value, frozen=True, kw_only=True):
    """OAuth client, as its document describes it."""

    id: str
    name: str
    redirect_uris: tuple[str, ...]

    def may_redirect_to(self, uri: str) -> bool:
        """Return whether the document lists this address. At a loopback address any port will do (RFC 8252, 7.3)."""
        return any(uri == known or _is_same_program(uri, known) for known in self.redirect_uris)


def _is_same_program(uri: str, known: str) -> bool:
    try:
        given, listed = urlsplit(uri), urlsplit(known)
        port = given.port
    except ValueError:
        return False
    # Only plain HTTP: a program on this machine has no certificate.
    if "http" not in (given.scheme, listed.scheme) or given.scheme != listed.scheme or port is None:
        return False
    is_same_host = given.hostname == listed.hostname and is_loopback(listed.hostname or "")
    # A listed port is meant exactly.
    is_plain = given.username is None and listed.port is None
    return is_same_host and is_plain and given[2:] == listed[2:]


def client_address(client_id: str) -> SplitResult:
    """Return the parts of a client's id.

    Raises:
        InvalidClient: It is not an address that may be fetched.
    """
    refused = InvalidClient(
        f"{one_line(client_id)[:_MAX_ADDRESS]!r} is no client ID metadata document. Use an https address with a path, at "
        "port 443, without user, query, fragment and dots."
    )
    try:
        parts = urlsplit(client_id)
        # Reading the port raises ValueError if it is none.
        is_good = parts.scheme == "https" and bool(parts.hostname) and parts.port in (None, 443)
    except ValueError:
        raise refused from None
    is_plain = client_id.isascii() and client_id.isprintable() and not {" ", "\\", "#", "?", "@"} & {*client_id}
    # Decoded, because %2e%2e is a way up as well.
    path = unquote(parts.path).split("/")
    has_path = len(path) > 1 and path[-1] != "" and not {".", ".."} & {*path}
    if not is_good or not is_plain or not has_path or len(client_id) > _MAX_ADDRESS:
        raise refused
    return parts


async def fetch_client(client_id: str) -> OAuthClient:
    """Fetch the document of a client.

    Raises:
        InvalidClient: There is none, or it is not the document of this client.
    """
    parts = client_address(client_id)
    try:
        with anyio.fail_after(_SECONDS):
            # Abandoned on cancellation: a resolver may block for longer than the limit.
            content = await anyio.to_thread.run_sync(_fetch, parts, abandon_on_cancel=True)
    except (OSError, TimeoutError, http.client.HTTPException, ValueError) as error:
        raise InvalidClient(
            f"The document of the client at {parts.hostname} cannot be read: {one_line(str(error))[:200]}"
        ) from error
    return read_client(client_id, content)


def read_client(client_id: str, content: bytes) -> OAuthClient:
    """Read the document of a client.

    Raises:
        InvalidClient: It is not the document of this client, or the client needs what is not offered.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidClient("The client's document is not JSON.") from None
    # The document has to name its own address, or any page could speak for a client.
    if not isinstance(document, dict) or document.get("client_id") != client_id:
        raise InvalidClient("The client's document is for another client: its client_id is not its address.")
    uris: Any = document.get("redirect_uris")
    if not isinstance(uris, list) or not 0 < len(uris) <= _MAX_URIS or not all(isinstance(uri, str) for uri in uris):
        raise InvalidClient("The client's document has no redirect_uris.")
    # Secrets would have to be stored. Public clients prove themselves by PKCE.
    if document.get("token_endpoint_auth_method", "none") != "none" or "client_secret" in document:
        raise InvalidClient(
            "The client wants to authenticate itself by a secret or a key. Only public clients are served."
        )
    name = document.get("client_name")
    # The name is shown on a page that grants access, so it is cut and cleaned.
    shown = one_line(name)[:_NAME_CHARS].strip() if isinstance(name, str) else ""
    return OAuthClient(id=client_id, name=shown or "A program without a name", redirect_uris=tuple(uris))


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is one of the internet, also where it stands for an IPv4 address."""
    if isinstance(address, IPv6Address):
        if any(address in network for network in _NAT64):
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved


def _fetch(
    parts: SplitResult, may_connect: Callable[[IPv4Address | IPv6Address], bool] = is_public, port: int = 443
) -> bytes:
    """Fetch a document. Blocks."""
    until = time.monotonic() + _SECONDS
    host = str(parts.hostname)
    found = {str(place[4][0]) for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    # Every address must be public: a name with both kinds could be answered by the private one.
    if not found or not all(may_connect(ip_address(one.partition("%")[0])) for one in found):
        raise ValueError("its address is not public")
    # Connecting to the name would resolve it again, perhaps to another address.
    connection = _PinnedConnection(host, min(found), port)
    try:
        connection.request("GET", parts.path, headers={"Accept": "application/json", "Connection": "close"})
        response = connection.getresponse()
        media_type = response.headers.get_content_type()
        if response.status != 200:
            # No redirects: a target would have to be checked like the first address.
            raise ValueError(f"it answers {response.status}")
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise ValueError(f"its type is {media_type}")
        content = b""
        # Read in parts, because the size that the server claims may be wrong.
        while part := response.read1(MAX_BYTES):
            content += part
            if len(content) > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES} bytes")
            if time.monotonic() > until:
                raise TimeoutError("it comes too slowly")
        return content
    finally:
        connection.close()


class _PinnedConnection(http.client.HTTPSConnection):
    """Connection to an address that was checked, with the certificate of the name."""

    def __init__(self, host: str, address: str, port: int) -> None:
        self._context_of_us = ssl.create_default_context()
        super().__init__(host, port, timeout=_SECONDS / 2, context=self._context_of_us)
        self._address = address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._context_of_us.wrap_socket(plain, server_hostname=self.host)
