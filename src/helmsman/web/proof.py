"""Two programs of one user prove to each other that they have the same token, without telling it.

Whoever takes a free port is asked whatever its clients ask there, so nothing secret may be sent before the server has proved
who it is. Each side signs the other's random number with a key made from the token, and the **place**: address and port of
the connection, as its own end of the socket has them. A thief on another port who passes everything on to the real server
gets a proof for the real server's port, which the client does not take, and cannot use the client's, which is for his own.
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
"""From the server's proof to the client's."""


def new_nonce() -> str:
    return secrets.token_urlsafe(32)


def place(host: str, port: int) -> str:
    """The listening end of a connection, in words that both ends come to by themselves.

    A loopback address is another place on every machine, and a home directory, with the token in it, may be on several.
    """
    address = ip_address(host.partition("%")[0])
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
    """The server's side. A challenge is remembered only once it was answered rightly: asking for many costs nothing."""

    def __init__(self, token: str, *, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._key = secrets.token_hex(32)
        self._clock = clock
        self._used: dict[str, float] = {}

    def answer(self, nonce: str, place: str) -> tuple[str, str]:
        """A challenge for the client, and the proof that this is its server."""
        content = f"{self._clock() + _SECONDS:.3f}~{new_nonce()}"
        challenge = f"{content}~{_signed(self._key, content, nonce)}"
        return challenge, server_proof(self._token, nonce, challenge, place)

    def accept(self, nonce: str, challenge: str, proof: str, place: str) -> bool:
        """Return whether the client has proved itself, for the first time with this challenge."""
        content, _, signature = challenge.rpartition("~")
        if not is_proof(signature, _signed(self._key, content, nonce)):
            return False  # not a challenge of ours
        now, ends_at = self._clock(), float(content.partition("~")[0])
        self._used = {used: end for used, end in self._used.items() if end > now}
        if ends_at <= now or challenge in self._used:
            return False
        if not is_proof(proof, client_proof(self._token, nonce, challenge, place)):
            return False
        self._used[challenge] = ends_at
        return True


def _signed(key: str, *parts: str) -> str:
    """The parts are told apart by their lengths: none can be taken for another."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.new(key.encode(), b"helmsman proof " + text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
