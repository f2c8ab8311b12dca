"""Directories that have changed, as the kernel tells (inotify, on Linux).

A directory is watched, then looked at, and need not be looked at again before it is among the changed ones. It is then
watched anew: so each directory is in the kernel's queue once at most, however much is written there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import weakref
from typing import Final

_IN_MODIFY, _IN_ATTRIB, _IN_MOVED, _IN_CREATE, _IN_DELETE, _IN_SELF = 0x2, 0x4, 0xC0, 0x100, 0x200, 0xC00
_ANY_CHANGE: Final = _IN_MODIFY | _IN_ATTRIB | _IN_MOVED | _IN_CREATE | _IN_DELETE | _IN_SELF
_IN_Q_OVERFLOW, _IN_ONESHOT = 0x4000, 0x80000000
_HEADER: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024


class DirectoryChanges:
    """Watches directories. Not thread-safe."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._fd: int | None = None
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if fd >= 0:  # otherwise the user has too many of them
                self._fd = fd
                weakref.finalize(self, os.close, fd)

    def watch(self, directory: str) -> bool:
        """Have the next change in a directory told. Return False if the system does not tell."""
        if self._fd is None:
            return False
        path = os.fsencode(directory)
        number = self._libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(_ANY_CHANGE | _IN_ONESHOT))
        if number >= 0:
            self._names[number] = directory
        return bool(number >= 0)

    def take(self) -> set[str] | None:
        """Return the directories that have changed since they were watched; None if the kernel has forgotten some.

        They are watched no longer.
        """
        changed: set[str] = set()
        has_forgotten = False
        while self._fd is not None:
            try:
                events = os.read(self._fd, _READ_BYTES)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    break
                raise
            place = 0
            while place < len(events):
                number, kind, _, length = _HEADER.unpack_from(events, place)
                place += _HEADER.size + length
                has_forgotten = has_forgotten or bool(kind & _IN_Q_OVERFLOW)
                # Each watch has a second event, which says that it has ended.
                if (directory := self._names.pop(number, None)) is not None:
                    changed.add(directory)
        return None if has_forgotten else changed
