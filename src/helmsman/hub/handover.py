"""An upgrade while work runs: the hub of a newer door takes over from the one that is there.

The newer hub imports everything first and then asks; the older one writes down what it knows, hands over lock and listening
socket, tells its doors to come back, and is gone. Nobody ever finds the socket closed. Only the newer door's own hub can
begin this, and only a newer version gets it: if a hub simply ended for an upgrade, the next door to come might be an old one
and start the old version again, and two installations could hand over back and forth for ever.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from helmsman._version import __version__
from helmsman.hub.launch import LISTENER_FD, LOCK_FD, NEXT, connect, is_newer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub, Serve

HANDOVER: Final = "helmsman-handover 1"
_SECONDS: Final = 30.0


def serve_handover(write_all: Callable[[], Awaitable[None]]) -> Serve:
    """Hand over to a newer hub that asks. `write_all` writes down what is known."""

    async def serve(hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
        version = fields[0] if fields else ""
        if refused is None and is_newer(version, __version__):
            await write_all()
            connection.hand_over([LOCK_FD, LISTENER_FD])
            hub.end(NEXT, f"version {version} takes over")

    return serve


def take_over(state: str) -> bool:
    """Get lock and socket from the hub that is there, and wait until it is gone; False if it hands over nothing. Blocks."""
    with_hub = connect(state)
    if with_hub is None:
        return False
    with socket.socket(fileno=with_hub.detach()) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.sendall(f"{HANDOVER}\t{__version__}\n".encode())
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 2)
            if len(descriptors) != 2:
                return False
            for descriptor, number in zip(descriptors, (LOCK_FD, LISTENER_FD), strict=True):
                os.dup2(descriptor, number, inheritable=False)
                os.close(descriptor)
            while connection.recv(16):  # it has closed the store when it is gone
                pass
        except OSError:
            return False
    return True
