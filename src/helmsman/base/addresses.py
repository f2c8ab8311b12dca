"""Addresses: whether one leaves this machine, and which an engine may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from urllib.parse import SplitResult

REMOTE_TOKEN: Final = "HELMSMAN_CODEX_REMOTE_TOKEN"  # noqa: S105 - its name
"""Variable with the token of a remote engine. No file can set it, and Helmsman passes it to no Codex that it starts."""


def is_loopback(host: str) -> bool:
    from ipaddress import ip_address  # only here: hardly anybody needs it

    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def engine_address(url: str) -> SplitResult:
    """Return the address of a remote engine: encrypted, or on this machine.

    Raises:
        InvalidSetting: It is not one to connect to.
    """
    from urllib.parse import urlsplit

    advice = "Use ws://127.0.0.1:PORT for an engine on this machine, or wss://HOST:PORT."
    try:
        parts = urlsplit(url)
        # Both raise for a bad port or a bad IPv6 address.
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidSetting(f"{url!r:.200} is not the address of an engine. {advice}") from None
    # Addresses appear in status pages, logs and error messages.
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidSetting(
            f"The address of an engine is shown and written down, so it may hold no secret. Set {REMOTE_TOKEN} instead."
        )
    if parts.scheme not in ("ws", "wss") or not host:
        raise InvalidSetting(f"{url!r:.200} is not the address of an engine. {advice}")
    if parts.scheme == "ws" and not is_loopback(host):
        raise InvalidSetting(f"Everything sent to {host} would travel unencrypted. {advice} An SSH tunnel is one, too.")
    return parts
