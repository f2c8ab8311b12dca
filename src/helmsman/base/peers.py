"""Who is at the other end of a Unix socket, and whether that may be one of ours.

The directory of a socket keeps other users out, and a sandbox with network access does not keep its commands out: they are
the user's too. What tells them is `NoNewPrivs` and `Seccomp`, which a sandbox of an unprivileged user needs, which nobody
can take back and every descendant inherits; and their own pid namespace. An error on the way is a refusal: whoever
ends a process at the right moment must not be let in for it. Standard library only: supervisors import this.
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
"""Linux 6.5: the process that connected, not whichever has its number now."""
_LOCAL_PEERCRED: Final = 1
"""macOS."""
_LOCAL_CREDENTIALS_BYTES: Final = 76


@lru_cache(maxsize=1)
def can_tell_sandboxed() -> bool:
    """Return whether a sandboxed process can be told from us: not where we may gain no privileges ourselves."""
    try:
        return sys.platform == "linux" and _confinement("self")[0] == 0
    except (OSError, ValueError, LookupError):
        return False


def why_refused(connection: socket.socket, also: Callable[[int], str | None] = lambda _pid: None) -> str | None:
    """Why whoever connected is not to be served; None where it may be. Whatever cannot be found out is a reason.

    `also` is asked about the process by its pid, while that is known to be the one that connected (Linux).
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
        if pid <= 0:
            return "it is in a namespace that is not seen from here"
        process = _process(connection, pid)
        try:
            reason = _why_sandboxed(pid) or also(pid)
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
    if any(their > our for our, their in zip(_confinement("self"), _confinement(str(pid)), strict=True)):
        return "it runs in a sandbox"
    if Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
        return "it is in a pid namespace of its own"
    return None


def _confinement(process: str) -> tuple[int, int]:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    lines = dict(line.partition(":")[::2] for line in status.splitlines())
    return int(lines["NoNewPrivs"]), int(lines["Seccomp"])
