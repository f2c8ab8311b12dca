"""Admission to the hub: only the user may connect, and no command that an agent runs.

A sandboxed command with network access can connect to any socket of the user, and must not get more from the hub than it was
given (`helmsman.base.peers`). A command without a sandbox is recognised by its ancestors, which lead to a supervisor as long
as that lives. It is also recognised by a variable that every descendant of an agent has in its environment, unless it
removed that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.base.peers import why_refused
from helmsman.base.processes import is_marked, running_process
from helmsman.hub.launch import below_an_agent, parent_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection

    from helmsman.base.processes import Process

_AGENTS: Final = "it was started by an agent of Helmsman's own"


def why_not_served(connection: socket.socket, supervisors: Collection[Process]) -> str | None:
    """Return why a process may not use the hub, or None if it may. `supervisors` are the processes that own agents."""

    def why_below(pid: int) -> str | None:
        return _AGENTS if is_marked(pid) or below_an_agent(pid) or _is_kept(pid, supervisors) else None

    return why_refused(connection, why_below)


def _is_kept(pid: int, supervisors: Collection[Process]) -> bool:
    """Return whether one of the ancestors is a supervisor. Compares pid and start time, because a pid alone is reused."""
    while pid > 1:
        if running_process(pid) in supervisors:
            return True
        pid = parent_of(pid)
    return False
