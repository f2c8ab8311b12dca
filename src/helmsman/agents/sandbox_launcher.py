"""Start a program that cannot connect to abstract Unix sockets of processes outside.

No mount hides an abstract socket (X11, D-Bus and others have some). Landlock does since version 6 of its interface (Linux
6.12): what is started here, and all that it starts, connects only to those of its own. On older kernels nothing is closed.

Run by its file, with an absolute path and arguments, and nothing else imported: `python -I -S FILE PROGRAM ARGUMENT…`.
"""

import ctypes
import os
import sys

_SCOPES_SINCE = 6
_ABSTRACT_SOCKETS = 1
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""The same numbers on every architecture."""
_VERSION = 1
_NO_NEW_PRIVILEGES = 38


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


def can_scope() -> bool:
    """Return whether this kernel can close abstract sockets."""
    if not sys.platform.startswith("linux"):
        return False
    return int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION)) >= _SCOPES_SINCE


def scope() -> None:
    """Close the abstract sockets of others for this process and what it starts.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rules = _Ruleset(0, 0, _ABSTRACT_SOCKETS)
    descriptor = libc.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    if (
        descriptor < 0
        or libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0
        or libc.syscall(_RESTRICT_SELF, descriptor, 0) != 0
    ):
        raise OSError(ctypes.get_errno(), "Landlock refused")
    os.close(descriptor)


if __name__ == "__main__":
    os.closerange(3, 1 << 20)  # whatever was inherited is not for what runs inside
    if can_scope():
        scope()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606
