"""Who may connect to the hub: the user alone, and no command that an agent runs.

A sandboxed command with network access can connect to any socket of the user's, and must not ask the hub for more than it
was given. What tells it, in this order: `NoNewPrivs` and `Seccomp`, which every sandbox that a user can set up needs, which
nobody can take back and all descendants inherit; a pid namespace of its own; its ancestors, which lead to a keeper as long
as that lives. An error on the way is a refusal: whoever ends a parent at the right moment must not be let in for it.
"""

from __future__ import annotations

import os
import select
import struct
import sys
from socket import SOL_SOCKET
from typing import TYPE_CHECKING, Final

from helmsman.base.processes import running_process
from helmsman.hub.launch import below_an_agent, parent_of, read

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection

    from helmsman.base.processes import Process

_SO_PEERCRED: Final = 17
_SO_PEERPIDFD: Final = 77
"""Linux 6.5: the process that connected, not the one that has its number now."""
_LOCAL_PEERCRED: Final = 1
"""macOS."""


class PeerRefused(Exception):
    """This process may not use the hub; the text says why."""


def check_peer(connection: socket.socket, keepers: Collection[Process]) -> None:
    """Let a process in, or refuse it. `keepers` are the processes that own agents.

    Raises:
        PeerRefused: It may not use the hub.
    """
    try:
        if sys.platform == "linux":
            _check_linux(connection, keepers)
        else:
            _, uid = struct.unpack("2I", connection.getsockopt(0, _LOCAL_PEERCRED, 76)[:8])
            _require(uid == os.geteuid(), "it belongs to another user")
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise PeerRefused(f"it cannot be told who it is ({error})") from error


def _check_linux(connection: socket.socket, keeping: Collection[Process]) -> None:
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(SOL_SOCKET, _SO_PEERCRED, 12))
    _require(uid == os.geteuid(), "it belongs to another user")
    _require(pid > 0, "it runs in a namespace of its own")
    handle = _handle(connection, pid)
    try:
        ours, theirs = _confinement("self"), _confinement(str(pid))
        _require(all(their <= our for our, their in zip(ours, theirs, strict=True)), "it runs in a sandbox")
        same = os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")  # noqa: PTH115
        _require(same, "it runs in a namespace of its own")
        _require(not below_an_agent(pid), "it was started by an agent of Helmsman's own")
        _require(not _is_kept(pid, keeping), "it was started by an agent of Helmsman's own")
        _require(not select.select([handle], [], [], 0)[0], "it has ended")
    finally:
        os.close(handle)


def _handle(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


def _confinement(process: str) -> tuple[int, int]:
    lines = dict(line.partition(b":")[::2] for line in read(f"/proc/{process}/status").splitlines())
    return int(lines[b"NoNewPrivs"]), int(lines[b"Seccomp"])


def _is_kept(pid: int, keeping: Collection[Process]) -> bool:
    """Whether one of the ancestors is a keeper; by pid and start time, for a pid alone is reused."""
    while pid > 1:
        if running_process(pid) in keeping:
            return True
        pid = parent_of(pid)
    return False


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PeerRefused(otherwise)
