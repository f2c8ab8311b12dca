"""Whether an address leaves this machine."""

from __future__ import annotations


def is_loopback(host: str) -> bool:
    from ipaddress import ip_address  # only here: hardly anybody needs it

    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
