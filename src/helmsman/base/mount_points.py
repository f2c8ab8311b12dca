"""Clean up after killed sandboxes: the empty directories that they mounted on.

Codex's sandbox prevents `.git`, `.codex` and others from being created in writable directories. If such a directory is
missing, the sandbox creates one to mount on, and removes it when its program ends. If the sandbox is killed, the
directory stays in the user's repository. So Helmsman records the missing directories before a sandbox starts.

A directory is removed only if it is empty and no sandbox uses it: removing it would unmount it inside that sandbox, and
expose the protected files. A sandbox that has not mounted yet is found by its record. All others, including those of a
Codex that Helmsman did not start, are found by their mounts.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from helmsman.base.files import file_lock, replace_file
from helmsman.base.processes import Process, all_pids, read_proc

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PLACE: Final = "mount-points"
_LOCK: Final = ".lock"
_LOCK_SECONDS: Final = 10.0
_GONE_SECONDS: Final = 2.0
_GONE_POLL: Final = 0.05
_NOBODY: Final = Process(0, "")
"""Owner of directories whose sandbox has ended, and which are not yet removed."""
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
"""Octal escape that the kernel uses for a space and other separators."""


class _Expected(NamedTuple):
    """Directories that a sandbox creates to mount on, and the process that is about to start it."""

    file: Path
    starter: Process
    paths: frozenset[str]


class MountPoints:
    """Mount points of the sandboxes of one state directory. Methods block briefly."""

    def __init__(self, state_dir: Path) -> None:
        self._place = state_dir / _PLACE

    def expect(self, name: str, paths: Iterable[Path]) -> None:
        """Record a sandbox that is about to start: it creates those of these directories that do not exist."""
        # The directory itself does not exist yet, so only its parent is resolved.
        named = [str(path.parent.resolve() / path.name) for path in paths]  # as the kernel writes the path of a mount
        self._place.mkdir(mode=0o700, exist_ok=True)
        with file_lock(self._place / _LOCK, timeout=_LOCK_SECONDS):
            others = frozenset[str]().union(*(expected.paths for expected in self._read()))
            # A directory that another sandbox creates exists only as long as that one runs.
            made = [path for path in named if path in others or not os.path.lexists(path)]
            replace_file(self._place / name, json.dumps([Process.me(), made]), durable=False)

    def clear(self, *ended: str) -> None:
        """Remove directories of these sandboxes, and of sandboxes whose starter is gone. Retry what fails.

        A sandbox of the same name may have another owner, for example the next hub for the same session. It has not
        ended.
        """
        if not self._place.is_dir():
            return
        deadline = time.monotonic() + (_GONE_SECONDS if ended else 0.0)
        with suppress(OSError):
            awaited = self._remove(ended)
            while awaited and time.monotonic() < deadline:  # a killed process may take a moment to disappear
                time.sleep(_GONE_POLL)  # without the lock: other sandboxes may be starting
                awaited &= self._remove()

    def _remove(self, ended: tuple[str, ...] = ()) -> frozenset[str]:
        """Remove what can be removed. Return what must wait, of the sandboxes in `ended` or, if it is empty, of all."""
        with file_lock(self._place / _LOCK, timeout=_LOCK_SECONDS):
            found, me = self._read(), Process.me()
            over = [
                # A sandbox of the same name may belong to another hub, and still run.
                one
                for one in found
                if (one.file.name in ended and one.starter == me) or not one.starter.is_alive()
            ]
            in_use = frozenset[str]().union(*(one.paths for one in found if one not in over))
            left = [path for one in over for path in one.paths if path not in in_use and os.path.lexists(path)]
            mounted = _mounted_among(left)
            for path in left:
                # Removing a directory with a mount would unmount it inside a sandbox.
                if path not in mounted:
                    with suppress(OSError):  # not empty: the user has put files into it
                        os.rmdir(path)  # noqa: PTH106 - also of a path that is no text
            for one in over:
                if not one.paths & mounted:
                    one.file.unlink(missing_ok=True)
                elif one.starter != _NOBODY:  # the next one of this name is another
                    replace_file(one.file, json.dumps([_NOBODY, sorted(one.paths)]), durable=False)
            asked = [one.paths for one in over if not ended or one.file.name in ended]
            return mounted & frozenset[str]().union(*asked)

    def _read(self) -> list[_Expected]:
        found: list[_Expected] = []
        for file in self._place.iterdir():
            if file.name != _LOCK:
                with suppress(OSError, ValueError, TypeError):
                    starter, paths = json.loads(file.read_bytes())
                    found.append(_Expected(file, Process(*starter), frozenset(map(str, paths))))
        return found


def _mounted_among(paths: Iterable[str]) -> frozenset[str]:
    """Return those of these directories on which a process of this user has mounted something."""
    wanted, seen = {os.fsencode(path): path for path in paths}, set[str]()
    for pid in all_pids() if wanted else ():
        with suppress(OSError):  # it has ended, or belongs to another user
            for line in read_proc(f"/proc/{pid}/mountinfo").splitlines():
                # The fifth field is the mount point, with blanks in octal.
                place = _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), line.split(b" ", 5)[4])
                if place in wanted:
                    seen.add(wanted[place])
    return frozenset(seen)
