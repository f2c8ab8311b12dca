"""Stop all processes of a PID namespace until standard input is closed: `python -I -S stop_namespace.py PID DEVICE INODE`.

PID is its first process, as seen from here, and DEVICE and INODE identify the namespace. The helper joins it in a child (it
has one thread, as joining a user namespace demands), sends SIGSTOP to all but the first process and itself, writes a byte,
and sends SIGCONT when its input ends, also if its reader is gone. It imports nothing of Helmsman, so that it starts fast.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

_NEW_USER: Final = 0x10000000
_NEW_PID: Final = 0x20000000
_OWNER_OF_NAMESPACE: Final = 0xB701
"""Ioctl NS_GET_USERNS. The user namespace of the process itself may be a further one, inside."""
CHILD_WAS_KILLED: Final = 3
"""Exit code: a signal ended the child before it could stop the others."""


def _identity(namespace: int | str) -> tuple[int, int]:
    status = os.stat(namespace)  # noqa: PTH116 - no pathlib here
    return status.st_dev, status.st_ino


def main() -> None:
    import ctypes
    import fcntl

    libc = ctypes.CDLL(None, use_errno=True)

    def join(descriptor: int, kind: int) -> None:
        if libc.setns(descriptor, kind):
            raise OSError(ctypes.get_errno(), "setns")

    namespace = os.open(f"/proc/{int(sys.argv[1])}/ns/pid", os.O_RDONLY)
    # The pid may have been reused since the caller looked.
    if _identity(namespace) != tuple(map(int, sys.argv[2:4])):
        return  # the pid was reused: never stop a process outside the namespace
    owner = fcntl.ioctl(namespace, _OWNER_OF_NAMESPACE)
    # Joining the own user namespace again fails.
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:  # noqa: PTH116 - no pathlib here
        join(owner, _NEW_USER)
    join(namespace, _NEW_PID)
    outside = _identity("/proc/self/ns/pid")
    # `setns` moves only later children into a PID namespace.
    child = os.fork()  # only children are in it
    if child:
        sys.exit(CHILD_WAS_KILLED if os.WIFSIGNALED(os.waitpid(child, 0)[1]) else 0)
    if os.getppid() or _identity(namespace) == outside:
        os._exit(1)  # a process has no parent that it could see in the namespace it was forked into
    # Reaches all processes of the namespace but pid 1 and this one.
    os.kill(-1, signal.SIGSTOP)
    try:
        os.write(1, b".")
        # Ends when the caller closes its end, or dies.
        os.read(0, 1)
    finally:
        os.kill(-1, signal.SIGCONT)


if __name__ == "__main__":
    main()
