"""HTTP connection on the hub's Unix socket."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

from helmsman.httpd.limits import CONNECTION
from helmsman.hub.control import last_event

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import Scope
    from uvicorn.server import ServerState


class UnixConnection(H11Protocol):
    """`refused` says why its process may not use the hub."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, refused: str | None, read: bytes, descriptors: list[int]
    ) -> None:
        """`read` are the bytes that the hub has read already, `descriptors` came with them."""
        # uvicorn passes this state on to the scope of each request.
        super().__init__(config, state, {CONNECTION: self})
        self.refused = refused
        self.descriptors = descriptors
        self.is_over = asyncio.Event()
        self._read_before = read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._read_before:  # a client may hang up without a word, and uvicorn never ends with no bytes
            self.data_received(self._read_before)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.is_over.set()

    def last_word(self, word: bytes) -> None:
        """Tell the reader of a stream that the hub ends."""
        self.transport.write(last_event(word))


def connection_of(scope: Scope) -> UnixConnection:
    """Return the connection of a request."""
    connection: UnixConnection = scope["state"][CONNECTION]
    return connection
