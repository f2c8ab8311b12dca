"""Transport for the JSON-RPC peer over a connection to or from a hub."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from helmsman.errors import EngineLost, EngineProtocolError
from helmsman.hub.verbs import LAST_WORDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from helmsman.hub.connection import Connection


class ConnectionTransport:
    """Lines of a connection."""

    resumed = None

    def __init__(self, connection: Connection, most: float = math.inf) -> None:
        """`most` is the longest line that is taken, where the other side is not as trustworthy as a hub of our own."""
        self._connection = connection
        self._most = most
        self.last_word: bytes | None = None

    async def messages(self) -> AsyncIterator[Sequence[bytes]]:
        while (line := await self._connection.line(self._most)) is not None:
            if line in LAST_WORDS:
                self.last_word = line
                return
            if self._most < math.inf and not line.startswith(b"{"):
                raise EngineProtocolError(f"it said {line[:40]!a}, which means nothing")
            yield (line,)
        if self._connection.is_too_long:
            raise EngineProtocolError(f"it said more than {self._most} bytes at once")

    async def send(self, message: str, answering: object = None) -> None:
        self._connection.put(message.encode())

    async def loss(self) -> EngineLost:
        return EngineLost("The hub has ended. Try again: a new hub starts automatically.")
