"""The descendants of a supervisor, and their end.

On Linux a supervisor is a subreaper: all processes that its child starts stay its descendants, including daemons that fork
twice, and also after the child has died. So none escapes. In case the supervisor itself is killed, it writes a list of its
descendants from time to time, and all of them carry the path of its directory in their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.directory import DESCENDANTS
from helmsman.base.files import replace_file
from helmsman.base.process_ending import TERMINATED_SECONDS, end_processes
from helmsman.base.processes import KEPT_MARK, Process, descendants, parents_of, still_running, with_variable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MARK: Final = KEPT_MARK

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper(*, really: bool = True) -> None:
    """Make orphaned descendants children of this process, which has to reap them; or stop doing so."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(really))


def end_with_parent() -> None:
    """Have the system terminate a child when the supervisor dies. Called in the child before it executes its program."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Descendants:
    """The descendants of this process."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / DESCENDANTS
        self._written: frozenset[Process] = frozenset()

    def write_down(self) -> None:
        """Write the list. Not durable: it is of no use once the machine has restarted."""
        found = descendants(Process.me())
        if found != self._written:
            self._written = found
            with contextlib.suppress(OSError):
                replace_file(self._file, json.dumps(sorted(found)), durable=False)

    def seen(self) -> frozenset[Process]:
        """Return the descendants where they would be lost with the child; none where they stay descendants."""
        return frozenset() if sys.platform == "linux" else descendants(Process.me())

    def sweep(
        self, seen: frozenset[Process], wait: Callable[[float], object], *, grace: float = TERMINATED_SECONDS
    ) -> None:
        """End all descendants, and those `seen` before. `wait` sleeps, and reaps processes that have ended."""
        end_processes(lambda: descendants(Process.me()) | still_running(seen), grace=grace, wait=wait)


def surviving_descendants(directory: Path) -> frozenset[Process]:
    """Return the processes that a killed supervisor has left running."""
    found: set[Process] = set()
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        for pid, started in json.loads((directory / DESCENDANTS).read_bytes()):
            process = Process(int(pid), str(started))
            if process.is_alive():
                found |= {process, *descendants(process)}
    ourselves = parents_of(os.getpid())  # one of them may have started this process
    return frozenset(found | {one for one in with_variable(MARK, str(directory)) if one.pid not in ourselves})
