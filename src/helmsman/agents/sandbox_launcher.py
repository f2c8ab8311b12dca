"""Start a program under Landlock, to restrict what mounts cannot.

Around a sandbox: no mount hides an abstract socket (X11, D-Bus and others have some). Landlock does since version 6 of
its interface (Linux 6.12): the program and its descendants connect only to their own. They also cannot signal processes
outside, such as the helper that enters their PID namespace to stop it.

Inside a sandbox of root: the kernel lets root write its settings in `/proc/sys` without any capability, and one of them
names a program that it runs outside (`core_pattern`). There `/proc` and `/sys` become read-only (Linux 5.19).

On older kernels nothing is restricted. Run by its file, with an absolute path and arguments, and nothing else imported:
`python -I -S FILE around|inside PROGRAM ARGUMENTS…`.
"""

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SCOPES_SINCE = 6
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""These numbers are the same on every architecture."""
_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE, _MOVE, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_MOVE_SINCE, _TRUNCATE_SINCE = 2, 3
"""Before version 2 nothing could be moved between directories."""
_FILES_ONLY = 8
"""Size of a ruleset that older kernels know."""
_NO_NEW_PRIVILEGES = 38


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32)]


def landlock_version() -> int:
    """Return the version of Landlock's interface that the kernel has; less than 1 if none."""
    if not sys.platform.startswith("linux"):
        return 0
    # Asking for the version creates no ruleset.
    return int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION))


def can_scope() -> bool:
    """Return whether this kernel can close abstract sockets and signals."""
    return landlock_version() >= _SCOPES_SINCE


def close_scopes() -> None:
    """Block abstract sockets of other processes, and signals to them, for this process and its descendants.

    Raises:
        OSError: The kernel refuses.
    """
    _restrict(_Ruleset(0, 0, _ABSTRACT_SOCKETS | _SIGNALS), ctypes.sizeof(_Ruleset), ())


def close_kernel_files() -> None:
    """Make `/proc` and `/sys` read-only, for this process and its descendants.

    Raises:
        OSError: The kernel refuses.
    """
    # Without the right to truncate, a file could still be emptied; older kernels do not know it.
    rights = _WRITE_FILE | _MOVE | (_TRUNCATE if landlock_version() >= _TRUNCATE_SINCE else 0)
    # Landlock only grants: allow everything below `/` but these two.
    others = [f"/{name}" for name in os.listdir("/") if name not in ("proc", "sys")]  # noqa: PTH208
    _restrict(_Ruleset(rights, 0, 0), _FILES_ONLY, [place for place in others if os.path.isdir(place)])  # noqa: PTH112


def _restrict(rules: _Ruleset, size: int, directories: "Iterable[str]") -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        done = int(libc.syscall(number, *arguments))
        if done < 0:
            raise OSError(ctypes.get_errno(), "Landlock refused")
        return done

    ruleset = call(_CREATE_RULESET, ctypes.byref(rules), size, 0)
    for place in directories:
        directory = os.open(place, os.O_PATH | os.O_CLOEXEC)
        call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(rules.files, directory)), 0)
        os.close(directory)
    # The kernel requires it of unprivileged processes.
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs refused")
    call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


if __name__ == "__main__":
    os.closerange(3, 1 << 20)  # whatever was inherited is not for what runs inside
    if sys.argv[1] == "around" and can_scope():
        close_scopes()
    if sys.argv[1] == "inside" and landlock_version() >= _MOVE_SINCE:
        close_kernel_files()
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606
