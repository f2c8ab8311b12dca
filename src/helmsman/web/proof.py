"""Mutual proof that two programs of one user have the same token, without sending it.

A program that takes a free port receives the requests of its clients, so nothing secret may be sent before the server
has proved its identity. Each side signs the other's nonce with a key derived from the token, together with the
**place**: address and port of the connection, as its own socket has them. An attacker on another port who relays
everything gets a proof for the real server's port, which the client rejects, and a proof of the client for the
attacker's port, which is useless.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PROOF_PATH: Final = "/api/proof"
CODE_PATH: Final = "/api/proof/code"

_SECONDS: Final = 30
"""Seconds between the server's proof and the client's."""


def new_nonce() -> str:
    return secrets.token_urlsafe(32)


def place(host: str, port: int) -> str:
    """Return the listening end of a connection in a form that both ends derive.

    Loopback addresses exist on every machine, and a home directory with the token may be shared between machines.
    """
    address = ip_address(host.partition("%")[0])
    # A server that listens for IPv6 sees IPv4 clients in mapped form.
    address = getattr(address, "ipv4_mapped", None) or address
    machine = socket.gethostname() if address.is_loopback else ""
    return f"{address} {port} {machine}"


def server_proof(token: str, nonce: str, challenge: str, place: str) -> str:
    return _signed(token, "server", nonce, challenge, place)


def client_proof(token: str, nonce: str, challenge: str, place: str) -> str:
    return _signed(token, "client", nonce, challenge, place)


def is_proof(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


class Challenges:
    """Server side. A challenge is stored only once it was answered correctly, so requesting many costs nothing."""

    def __init__(self, token: str, *, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._key = secrets.token_hex(32)
        self._clock = clock
        self._used: dict[str, float] = {}

    def answer(self, nonce: str, place: str) -> tuple[str, str]:
        """Return a challenge for the client, and the server's own proof."""
        # The time is inside the challenge, so nothing has to be stored for it.
        content = f"{self._clock() + _SECONDS:.3f}~{new_nonce()}"
        challenge = f"{content}~{_signed(self._key, content, nonce)}"
        return challenge, server_proof(self._token, nonce, challenge, place)

    def accept(self, nonce: str, challenge: str, proof: str, place: str) -> bool:
        """Return whether the client has proved that it has the token, for the first time with this challenge."""
        return self.redeem(
            nonce, challenge, lambda: is_proof(proof, client_proof(self._token, nonce, challenge, place))
        )

    def redeem(self, nonce: str, challenge: str, is_proved: Callable[[], bool]) -> bool:
        """Return whether this is a challenge of ours, in time, and proved for the first time."""
        content, _, signature = challenge.rpartition("~")
        if not is_proof(signature, _signed(self._key, content, nonce)):
            return False  # not one of our challenges
        now, ends_at = self._clock(), float(content.partition("~")[0])
        # Used ones are remembered only until they would have expired.
        self._used = {used: end for used, end in self._used.items() if end > now}
        if ends_at <= now or challenge in self._used:
            return False
        # Only a correct proof uses a challenge up, so that a stranger cannot spend it.
        if not is_proved():
            return False
        self._used[challenge] = ends_at
        return True


def _signed(key: str, *parts: str) -> str:
    """Sign the parts with their lengths, so that they cannot be confused."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.new(key.encode(), b"helmsman proof " + text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
