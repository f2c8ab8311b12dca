"""Identify the process at the other end of a Unix socket, and decide whether to serve it.

The permissions of the socket's directory exclude other users. They do not exclude sandboxed commands with network
access, which run as the same user. Those are recognized by `NoNewPrivs` and `Seccomp`, which the sandbox of an
unprivileged user needs, which cannot be undone and which all descendants inherit; and by their own PID namespace. Any
error means refusal: a process that ends at the right moment must not get in. Standard library only, because supervisors
import this.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERPIDFD: Final = 77
"""Linux 6.5: a handle of the process that connected, safe if its pid is reused."""
_LOCAL_PEERCRED: Final = 1
"""macOS."""
_LOCAL_CREDENTIALS_BYTES: Final = 76


@lru_cache(maxsize=1)
def can_tell_sandboxed() -> bool:
    """Return whether sandboxed processes can be recognized; not if this process itself may gain no privileges."""
    try:
        return sys.platform == "linux" and _confinement("self")[0] == 0
    except (OSError, ValueError, LookupError):
        return False


def belongs_to_other(connection: socket.socket) -> bool:
    """Return whether the peer is another user's; False where the system does not tell."""
    # macOS has no such option; the permissions of the directory exclude other users there.
    if not hasattr(socket, "SO_PEERCRED"):
        return False
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] != os.geteuid())


def why_refused(connection: socket.socket, also: Callable[[int], str | None] = lambda _pid: None) -> str | None:
    """Return why a connection is refused, or None. Anything that cannot be determined is a reason.

    `also` is called with the pid while it is known to be the pid of the peer (Linux).
    """
    try:
        if sys.platform != "linux":
            raw = connection.getsockopt(0, _LOCAL_PEERCRED, _LOCAL_CREDENTIALS_BYTES)
            _, uid = struct.unpack("2I", raw[:8])
            return None if uid == os.geteuid() else "it belongs to another user"
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.geteuid():
            return "it belongs to another user"
        # The kernel reports 0 for a process in a namespace that is not visible here.
        if pid <= 0:
            return "it is in a namespace that is not seen from here"
        # A handle first: while it is open, the pid names the peer.
        process = _process(connection, pid)
        try:
            reason = _why_sandboxed(pid) or also(pid)
            # The handle becomes readable when the process ends. Its pid may be another's from then on.
            return reason or ("it has ended" if select.select([process], [], [], 0)[0] else None)
        finally:
            os.close(process)
    except (OSError, ValueError, LookupError, struct.error) as error:
        return f"it cannot be looked at ({error})"


def _process(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


def _why_sandboxed(pid: int) -> str | None:
    # Inside a container both may be restricted, so compare with this process.
    if any(their > our for our, their in zip(_confinement("self"), _confinement(str(pid)), strict=True)):
        return "it runs in a sandbox"
    if Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
        return "it is in a pid namespace of its own"
    return None


def _confinement(process: str) -> tuple[int, int]:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    lines = dict(line.partition(":")[::2] for line in status.splitlines())
    return int(lines["NoNewPrivs"]), int(lines["Seccomp"])
