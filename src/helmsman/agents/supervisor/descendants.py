"""The process tree of a supervisor: find it, and end all of it.

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
import time
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.directory import DESCENDANTS, forget
from helmsman.base.files import replace_file
from helmsman.base.process_ending import TERMINATED_SECONDS, end_processes, send_signal
from helmsman.base.processes import KEPT_MARK, KILL, Process, descendants, parents_of, still_running, with_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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


# --- ending from outside ---------------------------------------------------------------------------------------------

STOP_TIMEOUT: Final = 20.0
"""How long a supervisor may take to end its child: it interrupts, terminates and kills, each within bounds."""

CHILD_GRACE: Final = 2.0
"""How long a child without a supervisor may take after SIGTERM."""

KILLED_GRACE: Final = 5.0
"""How long the system may take to remove a process that was killed."""

_POLL: Final = 0.02


def stop_supervised(directory: Path, sockets: Sequence[Path], supervisor: Process, child: Process) -> None:
    """End a supervisor, its agent and all that it has started. Blocks for a bounded time."""
    end(supervisor, STOP_TIMEOUT)
    started = surviving_descendants(directory)  # the supervisor was killed, or hung
    if child.is_alive():
        started |= descendants(child)
        end(child, CHILD_GRACE)
    end_processes(lambda: still_running(started) | surviving_descendants(directory))
    forget(directory, *sockets)


# --- processes that are not our children -----------------------------------------------------------------------------


def end(process: Process, grace: float) -> None:
    """Terminate a process, and kill it if it does not end."""
    send_signal(process, signal.SIGTERM)
    if not gone_within(process, grace):
        send_signal(process, KILL)
        gone_within(process, KILLED_GRACE)


def gone_within(process: Process, seconds: float) -> bool:
    """Wait until a process has ended, for so long. Blocks."""
    deadline = time.monotonic() + seconds
    while process.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True
