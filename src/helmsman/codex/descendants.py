"""Finds what a process has started, and what those have started, so that it can be ended too.

Codex runs commands in process groups of their own. When it is terminated or killed they live on, and no signal to its
group reaches them: who wants to end them has to have looked before. A process is known by its pid and the time it began,
so that nobody is hit who got the same pid later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PS_SECONDS: Final = 5.0
_KILL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


class Process(NamedTuple):
    pid: int
    began: str


def descendants(pid: int) -> frozenset[Process]:
    """The processes below `pid`; none where the system does not tell."""
    children: dict[int, list[Process]] = {}
    for process, parent in _running():
        children.setdefault(parent, []).append(process)
    found: list[Process] = []
    parents = [pid]
    for parent in parents:
        found += children.get(parent, [])
        parents += [process.pid for process in children.get(parent, [])]
    return frozenset(found)


def parents_of(pid: int) -> frozenset[int]:
    """A process, its parent, the parent of that, and so on, as pids."""
    parents = {process.pid: parent for process, parent in _running()}
    line = [pid]
    while (parent := parents.get(line[-1])) is not None and parent not in line:
        line.append(parent)
    return frozenset(line)


def running_process(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none, or it has ended and only waits to be reaped."""
    if not Path("/proc/self/stat").exists():
        return next((process for process, _ in _from_ps() if process.pid == pid), None)
    with suppress(OSError):
        return next((process for process, _ in _read_stat(Path(f"/proc/{pid}"))), None)
    return None


def kill(processes: Collection[Process]) -> frozenset[Process]:
    """Kill those that still run; they are returned, and may take a moment to be gone."""
    left = frozenset(process for process, _ in _running() if process in processes) if processes else frozenset()
    for process in left:
        with suppress(OSError):
            os.kill(process.pid, _KILL)
    return left


def _running() -> Iterator[tuple[Process, int]]:
    """Every process with its parent, but for those that have ended and only wait to be reaped."""
    return _from_proc() if Path("/proc/self/stat").exists() else _from_ps()


def _from_proc() -> Iterator[tuple[Process, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                yield from _read_stat(entry)


def _read_stat(entry: Path) -> Iterator[tuple[Process, int]]:
    # pid (name) state ppid …, and the name may contain anything
    fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    if fields[0] not in "ZX":
        yield Process(int(entry.name), fields[19]), int(fields[1])


def _from_ps() -> Iterator[tuple[Process, int]]:
    with suppress(OSError, subprocess.SubprocessError):
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,state=,lstart="],
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PS_SECONDS,
            check=True,
        )
        for line in listing.stdout.splitlines():
            pid, parent, state, began = line.split(maxsplit=3)
            if not state.startswith("Z"):
                yield Process(int(pid), began), int(parent)
