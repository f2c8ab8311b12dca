"""Find processes that a test has left running.

On Linux, all processes of a test carry a marker in their environment, including detached ones. On other systems only
direct children are found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.base.processes import read_proc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

MARKER_VARIABLE = "HELMSMAN_TEST_ID"
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_PS_SECONDS = 10


@dataclass(frozen=True, slots=True)
class LeftProcess:
    """Leaked process. A zombie has ended, but its parent has not waited for it."""

    pid: int
    command: str = field(compare=False)  # a process that executes another program is still the same
    zombie: bool = False

    def __str__(self) -> str:
        return f"{self.pid} {self.command}" + (" (zombie: nobody waited for it)" if self.zombie else "")


def running_processes() -> set[str]:
    """Return the ids of all other processes (Linux)."""
    # Every test calls this: a path object per process would triple the cost.
    return {name for name in os.listdir("/proc") if name.isdecimal()} - {str(os.getpid())}  # noqa: PTH208


def marked_processes(marker: str, *, besides: AbstractSet[str] = frozenset()) -> set[LeftProcess]:
    """Return all processes with the marker in their environment, except this one and those in `besides` (Linux)."""
    found: set[LeftProcess] = set()
    wanted = f"{MARKER_VARIABLE}={marker}".encode()
    for name in running_processes() - besides:
        with contextlib.suppress(OSError):  # it ended while we looked, or belongs to someone else
            # With the separators, so that one marker is not found inside another.
            if wanted in read_proc(f"/proc/{name}/environ").split(b"\0"):
                found.add(LeftProcess(int(name), command_of(Path("/proc", name))))
    return found


def child_processes() -> set[LeftProcess]:
    """Return direct children, including zombies."""
    return set(_children_from_proc() if sys.platform == "linux" else children_from_ps())


def wait_until_gone(
    marker: str,
    before: set[LeftProcess],
    *,
    others: AbstractSet[str] = frozenset(),
    grace: float = _GRACE_SECONDS,
) -> set[LeftProcess]:
    """Return the processes that a test with this marker left, after a grace period for those that are exiting.

    `before` are the children at its start; `others`, the processes at its start, are skipped.
    """
    known = {process.pid for process in before}
    deadline = time.monotonic() + grace
    while True:
        children = {process for process in child_processes() if process.pid not in known}
        left = children | marked_processes(marker, besides=others) if sys.platform == "linux" else children
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)


def report(processes: set[LeftProcess]) -> str:
    """Return one line per process, with details of its state (Linux)."""
    return "\n".join(f"{process}{_circumstances(process.pid)}" for process in sorted(processes, key=str))


def end(processes: set[LeftProcess]) -> None:
    """Kill leaked processes, so that they do not disturb the next test."""
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


def _children_from_proc() -> Iterator[LeftProcess]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in (task / "children").read_text(encoding="ascii").split():
                folder = Path("/proc") / pid
                # The name may contain spaces and brackets: fields are counted from its end.
                state = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
                yield LeftProcess(int(pid), command_of(folder), zombie=state == "Z")


def children_from_ps() -> Iterator[LeftProcess]:
    """Yield direct children, from `ps`."""
    listing = ["ps", "-axwwo", "pid=,ppid=,state=,command="]  # `ww`: not cut at 80 columns
    shown = subprocess.run(
        listing, capture_output=True, encoding="utf-8", errors="replace", timeout=_PS_SECONDS, check=False
    )
    for line in shown.stdout.splitlines():
        pid, parent, state, *command = line.split(maxsplit=3)
        # `ps` is a child as well.
        if int(parent) == os.getpid() and command != [" ".join(listing)]:
            yield LeftProcess(int(pid), "".join(command), zombie=state.startswith("Z"))


def _circumstances(pid: int) -> str:
    folder = Path("/proc", str(pid))
    with contextlib.suppress(OSError, KeyError):
        status = status_of(folder)
        waits_in = (folder / "wchan").read_text(encoding="utf-8") or "nothing"
        return f"\n  state {status['State']}, parent {status['PPid']}, waits in {waits_in}"
    return ""


def status_of(folder: Path) -> dict[str, str]:
    """Return the fields of a process in its `status` file."""
    lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def command_of(folder: Path) -> str:
    """Return the command line of a process."""
    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return words or (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
