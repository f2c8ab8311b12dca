"""All that lives below a keeper, and its end.

A keeper is a subreaper where there is such a thing (Linux): whatever its child has started stays below it, also a daemon
that forked twice, also when the child itself has died. So nothing escapes its end. For the day the keeper itself is killed,
it writes down now and then what lives below it, and all of it carries the keeper's name in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from helmsman.agents.keeper.places import BELOW
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
    """From now on orphans below this process become its children, and it has to reap them; or they do not any more."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(really))


def end_with_parent() -> None:
    """In a child, before it becomes another program: it is told to end when the keeper dies, however that dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Below:
    """What lives below this process."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / BELOW
        self._written: frozenset[Process] = frozenset()

    def write_down(self) -> None:
        """Not durable: it is of no use once the machine has restarted."""
        found = descendants(Process.me())
        if found != self._written:
            self._written = found
            with contextlib.suppress(OSError):
                replace_file(self._file, json.dumps(sorted(found)), durable=False)

    def seen(self) -> frozenset[Process]:
        """What there is now, where it would be lost with the child; where it stays below us, looking later will do."""
        return frozenset() if sys.platform == "linux" else descendants(Process.me())

    def sweep(
        self, seen: frozenset[Process], wait: Callable[[float], object], *, grace: float = TERMINATED_SECONDS
    ) -> None:
        """End all of it, and what was `seen` before. `wait` sleeps, and reaps what has ended."""
        end_processes(lambda: descendants(Process.me()) | still_running(seen), grace=grace, wait=wait)


def left_by(directory: Path) -> frozenset[Process]:
    """What a keeper that was killed has left running."""
    found: set[Process] = set()
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        for pid, started in json.loads((directory / BELOW).read_bytes()):
            process = Process(int(pid), str(started))
            if process.is_alive():
                found |= {process, *descendants(process)}
    ourselves = parents_of(os.getpid())  # it may be what runs us
    return frozenset(found | {one for one in with_variable(MARK, str(directory)) if one.pid not in ourselves})
