"""Identity of an MCP client, which decides on whose sessions its model may act.

A client names itself, and two may use the same name, so the name alone proves nothing. On a pipe the connection is the
identity. A restarted client has a new pipe. It counts as the earlier one if it has the same name and the same
directory, and the process behind the earlier pipe has ended. While both run, they are two clients.

Over HTTP every client has the same token, and requests of protocol 2026-07-28 belong to no connection. There only the
name distinguishes clients.
"""

from __future__ import annotations

from typing import Final

from helmsman.base.processes import Process
from helmsman.base.structs import Value

HTTP: Final = "http"
"""Connection of every client that comes over HTTP."""
HANDED: Final = "handed"
"""Connection of a client that the user handed a session to by name. Every client of that name matches."""
_NAME_CHARS: Final = 200


class McpClient(Value, frozen=True):
    """MCP client. `connection` is the id of its pipe, `HTTP` or `HANDED`; `process` is the one behind a pipe."""

    connection: str
    name: str
    directory: str = ""
    process: Process | None = None

    @property
    def title(self) -> str:
        """Name in one bounded line."""
        return " ".join(self.name.split())[:_NAME_CHARS] or "an unnamed MCP client"

    def is_same_as(self, owner: McpClient) -> bool:
        """Return whether this client is the one that owns something."""
        if owner.connection == HANDED:
            return self.name == owner.name
        # Over HTTP all clients share one token, so only the name is left to compare.
        if HTTP in (self.connection, owner.connection):
            return self.connection == owner.connection and self.name == owner.name
        if self.connection == owner.connection:
            return True
        # A restarted client has a new pipe. While the old process lives, it is another client of the same name.
        is_alike = (self.name, self.directory) == (owner.name, owner.directory)
        return is_alike and (owner.process is None or not owner.process.is_alive())
