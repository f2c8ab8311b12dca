"""Who is at the other end of a Unix socket, and whether that may be one of ours.

The directory of a socket keeps other users out, and a sandbox with network access does not keep its commands out: they are
the user's too. What tells them is `NoNewPrivs`, which every sandbox of an unprivileged user needs, which nobody can take
back and every descendant inherits; and a pid namespace of their own. Standard library only: keepers import this.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERPIDFD: Final = 77
"""Linux 6.5: the process that connected, not whichever has its number now."""


@lru_cache(maxsize=1)
def tells_sandboxed() -> bool:
    """Whether a sandboxed process can be told from us: not where we may gain no privileges ourselves."""
    try:
        return sys.platform == "linux" and _no_new_privileges("self") == "0"
    except OSError:
        return False


def why_refused(connection: socket.socket) -> str | None:
    """Why whoever connected is not to be served; None where it may be. Whatever cannot be found out is a reason."""
    if sys.platform != "linux":
        return None  # the directory of the socket keeps others out, and no more is known
    try:
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.geteuid():
            return "it belongs to another user"
        if pid <= 0:
            return "it is in a namespace that is not seen from here"
        process = _process(connection, pid)
        try:
            return _why_sandboxed(pid) or ("it has ended" if select.select([process], [], [], 0)[0] else None)
        finally:
            os.close(process)
    except (OSError, ValueError, struct.error) as error:
        return f"it cannot be looked at ({error})"


def _process(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


def _why_sandboxed(pid: int) -> str | None:
    if _no_new_privileges(str(pid)) > _no_new_privileges("self"):
        return "it runs in a sandbox"
    if Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
        return "it is in a pid namespace of its own"
    return None


def _no_new_privileges(process: str) -> str:
    for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "NoNewPrivs":
            return value.strip()
    raise OSError("the system does not say whether it may gain privileges")
